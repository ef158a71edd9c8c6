"""All moves and swaps around a placement, costed in batches on additive loads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.candidates import Candidates
from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.placement import Placement, memory_used
from shard_gym.tasks import Task

IntArray = NDArray[np.int64]

NOBODY = -1

TIE = 1e-9
"""Devices whose times differ by this share are equally slow; the rest is rounding."""

SMOOTHING_SQUARES = 4
"""Squarings of the smoothing norm: an exponent of 16, which of 4, 8, 16 and 64 served the suites best."""


@dataclass(frozen=True)
class Changes:
    """M candidate changes: table `table[m]` goes to device `device[m]`, and `partner[m]` takes its place.

    Attributes:
        table: (M,) int64.
        device: (M,) int64, not the table's own device.
        partner: (M,) int64, a table on that device, or NOBODY for a plain move.
    """

    table: IntArray
    device: IntArray
    partner: IntArray

    def __len__(self) -> int:
        return len(self.table)

    def take(self, keep: NDArray[np.bool_] | IntArray) -> Changes:
        """Those of `keep`."""
        return Changes(self.table[keep], self.device[keep], self.partner[keep])


@dataclass(frozen=True)
class Costs:
    """What placements cost, exactly and smoothed; ms.

    The exact cost is flat wherever a change leaves the slowest devices alone. The smoothed one, the sum over the phases
    of the 16-norm over the devices, rewards every step towards balance and is close above it: at most D ** (1 / 16)
    times the sum of the maxima.

    Attributes:
        exact: (...) float64, the model's iteration cost.
        smoothed: (...) float64.
    """

    exact: FloatArray
    smoothed: FloatArray

    @staticmethod
    def of(phases: FloatArray, exact: FloatArray) -> Costs:
        """From the (..., D, 4) phases and the (...) exact costs."""
        slowest = np.maximum(phases.max(axis=-2), np.finfo(float).tiny)
        power = phases / slowest[..., None, :]
        for _ in range(SMOOTHING_SQUARES):
            np.square(power, out=power)
        norm = power.sum(axis=-2)
        for _ in range(SMOOTHING_SQUARES):
            np.sqrt(norm, out=norm)
        return Costs(exact, (slowest * norm).sum(axis=-1))


class Neighbourhood:
    """A placement with its loads, ready to cost and to apply changes.

    Removing a table from a device needs the maximum over the others, so the two largest values of every max-reduced
    load are kept for each device; a change costs O(K) for each of the two devices it touches.

    Attributes:
        task: the task.
        placement: (T,) int64, the current placement; valid.
        phases_ms: (D, 4) float64, its phases.
        costs: what it costs, both numbers without a leading shape.
    """

    def __init__(self, task: Task, model: AdditiveCostModel, placement: Placement) -> None:
        self.task = task
        self._model = model
        self._cluster = task.topology.cluster()
        loads = model.table_loads(task.tables, task.topology)
        self._loads = np.concatenate([loads, np.zeros((1, model.num_loads))])  # NOBODY reads the last row
        self._memory = task.tables.memory_bytes
        self.set_placement(placement)

    def set_placement(self, placement: Placement) -> None:
        """Make `placement` (valid) the current one."""
        self.placement = placement.copy()
        self._device_loads = self._model.reduce(self._loads[:-1], placement, self.task.num_devices)
        self._free = self.task.topology.memory_cap_bytes - memory_used(
            placement, self.task.tables, self.task.num_devices
        )
        self._count = np.bincount(placement, minlength=self.task.num_devices)
        self._rank_maxima()
        self._candidates = Candidates(self._model, self._cluster, self._device_loads)
        self.phases_ms, exact = self._model.costs(self._device_loads, self._cluster)
        self.costs = Costs.of(self.phases_ms, exact)

    def _rank_maxima(self) -> None:
        """The table that holds each device's maximum of each max-reduced load, and the runner-up's value."""
        devices, columns = self.task.num_devices, self._model.num_loads - self._model.num_sum_loads
        self._holder = np.full((devices, columns), NOBODY)
        self._runner_up = np.zeros((devices, columns))
        values = self._loads[:-1, self._model.num_sum_loads :]
        for device in range(devices):
            tables = np.flatnonzero(self.placement == device)
            if tables.size:
                self._holder[device] = tables[values[tables].argmax(axis=0)]
            if tables.size > 1:
                self._runner_up[device] = np.partition(values[tables], -2, axis=0)[-2]

    def around(self, tables: IntArray) -> Changes:
        """Every move of `tables` and every swap of one of them with a table elsewhere that fits the memory."""
        devices = np.arange(self.task.num_devices)
        movers, targets = (grid.ravel() for grid in np.meshgrid(tables, devices, indexing="ij"))
        swappers, partners = (
            grid.ravel() for grid in np.meshgrid(tables, np.arange(self.task.num_tables), indexing="ij")
        )
        every = Changes(
            np.concatenate([movers, swappers]),
            np.concatenate([targets, self.placement[partners]]),
            np.concatenate([np.full(len(movers), NOBODY), partners]),
        )
        return every.take(self._fitting(every))

    def _fitting(self, changes: Changes) -> NDArray[np.bool_]:
        """(M,) bool: the change goes to another device, and both devices keep within their memory."""
        home = self.placement[changes.table]
        growth = self._memory[changes.table] - np.where(changes.partner == NOBODY, 0, self._memory[changes.partner])
        fits = (growth <= self._free[changes.device]) & (-growth <= self._free[home])
        return np.asarray(fits & (home != changes.device))

    def costs_after(self, changes: Changes) -> Costs:
        """What the placement costs after each change alone; (M,) both."""
        home, target = self.placement[changes.table], changes.device
        left = self._exchanged(home, changes.table, changes.partner)
        joined = self._exchanged(target, changes.partner, changes.table)
        return Costs.of(*self._candidates.costs((home, left), (target, joined)))

    def _exchanged(self, device: IntArray, leaves: IntArray, joins: IntArray) -> FloatArray:
        """(M, K) loads of `device` after the table `leaves` went and `joins` came; either may be NOBODY."""
        split = self._model.num_sum_loads
        loads = self._device_loads[device]
        loads[:, :split] -= self._loads[leaves, :split]
        emptied = (self._count[device] == 1) & (leaves != NOBODY)
        loads[emptied, :split] = 0.0  # exactly, where the subtraction leaves a rounding error
        gone = self._holder[device] == leaves[:, None]
        gone &= (leaves != NOBODY)[:, None]
        loads[:, split:] = np.where(gone, self._runner_up[device], loads[:, split:])
        return self._model.add(loads, self._loads[joins])

    def placement_after(self, changes: Changes, which: int) -> Placement:
        """(T,) int64, the placement after change `which` of `changes`."""
        placement = self.placement.copy()
        table, partner = changes.table[which], changes.partner[which]
        if partner != NOBODY:
            placement[partner] = placement[table]
        placement[table] = changes.device[which]
        return placement

    def critical_tables(self) -> IntArray:
        """(M,) int64, the tables on the slowest device of any phase, ties included.

        Within one host only changing these can lower a cost that is a sum of maxima. Across hosts a device also waits
        for what its neighbours receive; such changes are left to the kicks of a search.
        """
        slowest = (self.phases_ms >= self.phases_ms.max(axis=0) * (1.0 - TIE)).any(axis=1)
        return np.flatnonzero(slowest[self.placement])
