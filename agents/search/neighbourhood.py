"""Moves and swaps of placed tables or shards, costed in batches on additive loads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.items import Items
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.plans.placement import Placement

NO_TABLE = -1  # the partner of a plain move
NOTHING_THAT_MOVES = -2  # the item with the largest load of a device if something fixed has it
TIE = 1e-9  # devices whose times differ by less than this share are equally slow; the rest is rounding

TINY = float(np.finfo(float).tiny)

SMOOTHING_SQUARES = 4
"""Squarings of the smoothing norm: an exponent of 16. Of 4, 8, 16 and 64 it gave the best results on the suites."""


@dataclass(frozen=True)
class Moves:
    """M candidate moves: table `table[m]` goes to device `device[m]`, and `partner[m]` takes its place."""

    table: IntArray  # (M,) int64
    device: IntArray  # (M,) int64, not the table's current device
    partner: IntArray  # (M,) int64, a table on that device to swap with, or NO_TABLE for a plain move

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
    """

    exact: FloatArray  # (...) float64, the model's iteration cost
    smoothed: FloatArray  # (...) float64

    @staticmethod
    def of(phases: FloatArray, exact: FloatArray) -> Costs:
        """From the (..., D, 4) phases and the (...) exact costs."""
        return Costs(exact, smoothed_ms(phases))


def smoothed_ms(phases: FloatArray, squarings: int = SMOOTHING_SQUARES) -> FloatArray:
    """(...) ms, the smoothed cost (see `Costs`) from the (..., D, 4) phases; the exponent is 2^squarings."""
    slowest = np.maximum(phases.max(axis=-2), TINY)
    power = phases * (1.0 / slowest)[..., None, :]
    for _ in range(squarings):
        np.square(power, out=power)
    norm = power.sum(axis=-2)
    for _ in range(squarings):
        np.sqrt(norm, out=norm)
    return np.asarray(np.einsum("...p,...p->...", slowest, norm))


class Neighbourhood:
    """A valid (I,) `placement` of items, called tables here, its loads and its costs; lists, costs and applies moves.

    Removing an item from a device needs the maximum over those that stay. The two largest values of every max-reduced
    load are kept for each device, so a move costs O(K) for each of the two devices it touches.
    """

    def __init__(self, items: Items, placement: Placement) -> None:
        self.items = items
        self._model, self._cluster = items.model, items.cluster
        self._loads = np.concatenate([items.loads, np.zeros((1, items.loads.shape[1]))])  # NO_TABLE reads the last row
        self._maxima = items.loads[:, self._model.maxima]
        self._ascending = self._maxima.argsort(axis=0).T
        self._memory = np.append(items.memory, 0)  # NO_TABLE reads the last number
        self.set_placement(placement)

    def set_placement(self, placement: Placement) -> None:
        """Make a copy of `placement` (valid) the current one. What it costs is computed when it is asked for."""
        self.placement = placement.copy()
        self._free = self.items.memory_left(placement)
        self._evaluated = False

    @property
    def phases_ms(self) -> FloatArray:
        """(D, 4) float64, the phases of the placement."""
        self._evaluate()
        return self._phases_ms

    @property
    def costs(self) -> Costs:
        """The exact and the smoothed cost of the placement, without a leading shape."""
        self._evaluate()
        return self._costs

    def _evaluate(self) -> None:
        if self._evaluated:
            return
        placement, devices = self.placement, self.items.num_devices
        self._device_loads = self.items.device_loads(placement)
        self._own_phases = self._model.device_phases(self._device_loads)
        self._count = np.bincount(placement, minlength=devices)
        self._rank_maxima()
        self._phases_ms, exact = self._model.costs(self._device_loads, self._cluster)
        self._costs = Costs.of(self._phases_ms, exact)
        self._evaluated = True

    def _rank_maxima(self) -> None:
        """For each device and max-reduced load, find the table with the largest value and the second largest value."""
        shape = self.items.num_devices, len(self._ascending)
        self._largest, self._second = np.full(shape, NO_TABLE), np.zeros(shape)
        for column, ascending in enumerate(self._ascending):
            # Of the numbers assigned to one device, the last one stays: that of the largest value.
            devices = self.placement[ascending]
            self._largest[devices, column] = ascending
            others = self._largest[devices, column] != ascending
            self._second[devices[others], column] = self._maxima[ascending[others], column]
        if self.items.fixed is None:
            return
        fixed = self.items.fixed[:, self._model.maxima]
        np.maximum(self._second, fixed, out=self._second)
        self._largest[self._device_loads[:, self._model.maxima] <= fixed] = NOTHING_THAT_MOVES

    def moves(self, tables: IntArray) -> Moves:
        """Every move of one of `tables`, and every swap of one with a table elsewhere, that fits the memory."""
        devices = self.items.num_devices
        targets = np.concatenate([np.arange(devices), self.placement])
        partners = np.concatenate([np.full(devices, NO_TABLE), np.arange(len(self.items))])
        source = self.placement[tables]
        growth = self._memory[tables][:, None] - self._memory[partners]
        fits = growth <= self._free[targets]
        fits &= -growth <= self._free[source][:, None]
        fits &= source[:, None] != targets
        if self.items.constraints is not None:
            mover, option = np.nonzero(fits)
            fits[mover, option] = self.permitted(tables[mover], targets[option], partners[option])
        mover, option = np.divmod(np.flatnonzero(fits), len(targets))
        return Moves(tables[mover], targets[option], partners[option])

    def permitted(self, tables: IntArray, devices: IntArray, partners: IntArray) -> NDArray[np.bool_]:
        """(M,) bool, whether the constraints of the items permit M moves (see `Moves`)."""
        items, limits = self.items, self.items.constraints
        if limits is None:
            return np.ones(len(tables), np.bool_)
        swaps = partners != NO_TABLE
        of_item, sources = items.tables, self.placement[tables]
        mover, mate = of_item[tables], of_item[partners]
        permitted = limits.devices[mover, devices] & (limits.devices[mate, sources] | ~swaps)
        if limits.conflicts is not None:
            against = self._against()
            apart = limits.conflicts[mover, mate] & swaps
            permitted &= against[mover, devices] == apart  # the partner leaves
            permitted &= (against[mate, sources] == apart) | ~swaps
        return np.asarray(permitted)

    def may_hold(self, tables: IntArray, devices: IntArray) -> NDArray[np.bool_]:
        """(M,) bool, whether the constraints permit a further part of a table of the constraints on a device."""
        limits = self.items.constraints
        if limits is None:
            return np.ones(len(tables), np.bool_)
        permitted = limits.devices[tables, devices]
        return permitted if limits.conflicts is None else permitted & (self._against()[tables, devices] == 0)

    def _against(self) -> IntArray:
        """(T, D) int64, items on each device that each table of the constraints must be apart from."""
        limits, of_item = self.items.constraints, self.items.tables
        assert limits is not None
        assert limits.conflicts is not None
        held = np.zeros((self.items.num_devices, len(limits)), np.int64)
        np.add.at(held, (self.placement, of_item), 1)
        return np.asarray(limits.conflicts.astype(np.int64) @ held.T)

    def costs_after(self, moves: Moves) -> Costs:
        """(M,) costs of the placement after each move alone."""
        self._evaluate()
        devices = np.stack([self.placement[moves.table], moves.device])
        leaves, joins = np.stack([moves.table, moves.partner]), np.stack([moves.partner, moves.table])
        return self.costs_if(devices, leaves, self._loads.take(joins, axis=0))

    def costs_if(self, devices: IntArray, leaves: IntArray, joining: FloatArray) -> Costs:
        """(M,) costs of M changes of the placement.

        In each, C `devices` change, (C, M) int64 that differ. The tables `leaves`, (C, M) or NO_TABLE, leave them, and
        (C, M, K) loads `joining` come to them.
        """
        self._evaluate()
        loads = self._model.add(self._without(devices, leaves), joining)
        return Costs.of(*self._model.costs_with(self._cluster, self._device_loads, self._own_phases, devices, loads))

    def _without(self, device: IntArray, leaves: IntArray) -> FloatArray:
        """(..., K) loads of `device` after the table `leaves` went; it may be NO_TABLE."""
        loads = self._device_loads.take(device, axis=0)
        maxima = loads[..., self._model.maxima].copy()
        loads -= self._loads.take(leaves, axis=0)
        if self._count.min() < 2:
            emptied = (self._count[device] == 1) & (leaves != NO_TABLE)
            # Exactly what is fixed there, or 0, where the subtraction leaves a rounding error.
            loads[emptied] = 0.0 if self.items.fixed is None else self.items.fixed[device[emptied]]
        lost = self._largest.take(device, axis=0) == leaves[..., None]  # NO_TABLE where nothing was to lose: stays 0
        np.copyto(maxima, self._second.take(device, axis=0), where=lost)
        loads[..., self._model.maxima] = maxima
        return loads

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
