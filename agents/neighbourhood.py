"""Moves and swaps of a placement's tables, costed in batches on additive loads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.placement import Placement, memory_used
from shard_gym.tasks import Task
from shard_gym.topology import Cluster

IntArray = NDArray[np.int64]

NO_TABLE = -1
"""The partner of a plain move."""

TIE = 1e-9
"""Devices whose times differ by less than this share are equally slow; the rest is rounding."""

SMOOTHING_SQUARES = 4
"""Squarings of the smoothing norm: an exponent of 16. Of 4, 8, 16 and 64 it gave the best results on the suites."""

NewLoads = tuple[IntArray, FloatArray]
"""For M placements: (M,) a device of each, and (M, K) the new loads of that device."""


def costs_with(
    model: AdditiveCostModel,
    cluster: Cluster,
    device_loads: FloatArray,
    own_phases: FloatArray,
    *new_loads: NewLoads,
) -> tuple[FloatArray, FloatArray]:
    """The (M, D, 4) phases and (M,) iteration costs, ms, of M variants of a placement with (D, K) `device_loads`.

    Only the devices with `new_loads`, one entry for each that differs in a variant, are computed again; `own_phases`
    is `model.device_phases(device_loads)`.
    """
    phases = _replaced(own_phases, [(device, model.device_phases(loads)) for device, loads in new_loads])
    shared = _replaced(
        device_loads[:, model.shared_loads], [(device, loads[:, model.shared_loads]) for device, loads in new_loads]
    )
    model.fill_communication(phases, shared, cluster)
    return phases, model.iteration_cost(phases, shared, cluster)


def _replaced(current: FloatArray, new: list[NewLoads]) -> FloatArray:
    """(M, D, X) copies of the (D, X) `current` with new rows; in memory the device is the slowest axis."""
    variants = np.arange(len(new[0][0]))
    copies = np.repeat(current[:, None], len(variants), axis=1)
    for device, values in new:
        copies[device, variants] = values
    return copies.swapaxes(0, 1)


@dataclass(frozen=True)
class Moves:
    """M candidate moves: table `table[m]` goes to device `device[m]`, and `partner[m]` takes its place.

    Attributes:
        table: (M,) int64.
        device: (M,) int64, not the table's current device.
        partner: (M,) int64, a table on that device to swap with, or NO_TABLE for a plain move.
    """

    table: IntArray
    device: IntArray
    partner: IntArray

    def __len__(self) -> int:
        return len(self.table)

    def take(self, keep: NDArray[np.bool_] | IntArray) -> Moves:
        """The moves selected by `keep`."""
        return Moves(self.table[keep], self.device[keep], self.partner[keep])


@dataclass(frozen=True)
class Costs:
    """Costs of placements, exact and smoothed, ms.

    The exact cost is flat wherever a move leaves the slowest devices alone. The smoothed cost is the sum over the
    phases of the 16-norm over the devices: it rewards every step towards balance and exceeds the sum of the maxima by
    a factor of at most D ** (1 / 16).

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
    """A placement, its loads and its costs; lists, costs and applies moves.

    Removing a table from a device needs the maximum over the tables that stay. The two largest values of every
    max-reduced load are kept for each device, so a move costs O(K) for each of the two devices it touches.

    Attributes:
        task: the task.
        placement: (T,) int64, the current placement; valid.
        phases_ms: (D, 4) float64, its phases.
        costs: its exact and smoothed cost, without a leading shape.
    """

    def __init__(self, task: Task, model: AdditiveCostModel, placement: Placement) -> None:
        self.task = task
        self._model = model
        self._cluster = task.topology.cluster()
        loads = model.table_loads(task.tables, task.topology)
        self._loads = np.concatenate([loads, np.zeros((1, model.num_loads))])  # NO_TABLE reads the last row
        self._memory = task.tables.memory_bytes
        self.set_placement(placement)

    def set_placement(self, placement: Placement) -> None:
        """Make a copy of `placement` (valid) the current one."""
        devices = self.task.num_devices
        self.placement = placement.copy()
        self._device_loads = self._model.reduce(self._loads[:-1], placement, devices)
        self._own_phases = self._model.device_phases(self._device_loads)
        self._free = self.task.topology.memory_cap_bytes - memory_used(placement, self.task.tables, devices)
        self._count = np.bincount(placement, minlength=devices)
        self._rank_maxima()
        self.phases_ms, exact = self._model.costs(self._device_loads, self._cluster)
        self.costs = Costs.of(self.phases_ms, exact)

    def _rank_maxima(self) -> None:
        """For each device and max-reduced load, find the table with the largest value and the second largest value."""
        devices, columns = self.task.num_devices, self._model.num_loads - self._model.num_sum_loads
        self._largest = np.full((devices, columns), NO_TABLE)
        self._second = np.zeros((devices, columns))
        values = self._loads[:-1, self._model.num_sum_loads :]
        for device in range(devices):
            tables = np.flatnonzero(self.placement == device)
            if tables.size:
                self._largest[device] = tables[values[tables].argmax(axis=0)]
            if tables.size > 1:
                self._second[device] = np.partition(values[tables], -2, axis=0)[-2]

    def moves(self, tables: IntArray) -> Moves:
        """Every move of one of `tables`, and every swap of one with a table elsewhere, that fits the memory."""
        devices = np.arange(self.task.num_devices)
        movers, targets = (grid.ravel() for grid in np.meshgrid(tables, devices, indexing="ij"))
        swappers, partners = (
            grid.ravel() for grid in np.meshgrid(tables, np.arange(self.task.num_tables), indexing="ij")
        )
        all_moves = Moves(
            np.concatenate([movers, swappers]),
            np.concatenate([targets, self.placement[partners]]),
            np.concatenate([np.full(len(movers), NO_TABLE), partners]),
        )
        return all_moves.take(self._fitting(all_moves))

    def _fitting(self, moves: Moves) -> NDArray[np.bool_]:
        """(M,) bool: the move goes to another device, and both devices stay within their memory."""
        source = self.placement[moves.table]
        growth = self._memory[moves.table] - np.where(moves.partner == NO_TABLE, 0, self._memory[moves.partner])
        fits = (growth <= self._free[moves.device]) & (-growth <= self._free[source])
        return np.asarray(fits & (source != moves.device))

    def costs_after(self, moves: Moves) -> Costs:
        """(M,) costs of the placement after each move alone."""
        source, target = self.placement[moves.table], moves.device
        left = self._exchanged(source, moves.table, moves.partner)
        joined = self._exchanged(target, moves.partner, moves.table)
        return Costs.of(
            *costs_with(
                self._model, self._cluster, self._device_loads, self._own_phases, (source, left), (target, joined)
            )
        )

    def _exchanged(self, device: IntArray, leaves: IntArray, joins: IntArray) -> FloatArray:
        """(M, K) loads of `device` after the table `leaves` went and `joins` came; either may be NO_TABLE."""
        split = self._model.num_sum_loads
        loads = self._device_loads[device]
        loads[:, :split] -= self._loads[leaves, :split]
        emptied = (self._count[device] == 1) & (leaves != NO_TABLE)
        loads[emptied, :split] = 0.0  # exactly 0, where the subtraction leaves a rounding error
        lost = self._largest[device] == leaves[:, None]
        lost &= (leaves != NO_TABLE)[:, None]
        loads[:, split:] = np.where(lost, self._second[device], loads[:, split:])
        return self._model.add(loads, self._loads[joins])

    def placement_after(self, moves: Moves, which: int) -> Placement:
        """(T,) int64, the placement after move `which`."""
        placement = self.placement.copy()
        table, partner = moves.table[which], moves.partner[which]
        if partner != NO_TABLE:
            placement[partner] = placement[table]
        placement[table] = moves.device[which]
        return placement

    def critical_tables(self) -> IntArray:
        """(M,) int64, the tables on the slowest device of any phase, ties included.

        Within one host only moves of these can lower a cost that is a sum of maxima. Across hosts a device also waits
        for what its neighbours receive; a search reaches such moves through its perturbations.
        """
        slowest = (self.phases_ms >= self.phases_ms.max(axis=0) * (1.0 - TIE)).any(axis=1)
        return np.flatnonzero(slowest[self.placement])
