"""Ruin and recreate: parts are taken out of a plan, some get other forms, and go where cheapest; many plans at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.neighbourhood import Costs, smoothed_ms
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.model import lane_share

AT_ONCE = 128
"""Placements costed at once, about: plans that are rebuilt times devices. Half of it takes twice as long for each, and
with thrice as many a search takes too few of the best of them."""

SMALL = (2, 12)  # parts that a small ruin takes out, from the first to before the second number
LARGE_SHARE, LARGEST = 0.3, 0.5
"""The share of large ruins, of parts up to this share of all on up to all devices; small ones are of two or three."""

CRITICAL_SHARE = 0.8  # of the ruins that reach a slowest device
FORM_SHARE = 0.6  # the probability of a change of form, and of each further one
SPREAD_SHARE = 0.3  # of the changes of form, those of a spread table
BLINK = 0.03  # the probability that a device is passed over for a part
NONE = -1  # no item
NO_ROOM = -1  # bytes free on the devices of a plan of which a part fits nowhere


def put_at_once(
    options: SplitOptions,
    held: FloatArray,
    free: IntArray,
    put: IntArray,
    allowed: NDArray[np.bool_],
    stop: Callable[[], bool] = lambda: False,
    holds: IntArray | None = None,
) -> tuple[IntArray, Costs]:
    """Put k parts into each of N plans, one after another, each where the smoothed cost so far is lowest.

    Takes at most N k D evaluations, and N for the whole plans, in steps of N D.

    Args:
        options: what the parts are of.
        held: (D, N, K) loads of the devices before.
        free: (D, N) int64 bytes that they have free.
        put: (N, k, 2) int64, table and level of each part in order; then NONE where a plan has fewer.
        allowed: (k, D, N) bool, devices that a part may go to.
        stop: asked before each step whether to give up all plans.
        holds: (T, D, N) int64, parts of each table on the devices before, where constraints keep tables apart; None if
            there are none.

    Returns:
        (N, k) int64 devices, and the (N,) costs of the plans, inf where a part found no room.
    """
    model, (count, most, _), there = options.model, put.shape, put[..., 0] != NONE
    limits = options.task.constraints
    order = np.argsort(-there.sum(axis=1), kind="stable")  # in each step the first plans have parts left
    back = np.argsort(order)
    held, free, put, allowed = held[:, order], free[:, order], put[order], allowed[..., order]
    if limits is not None and limits.conflicts is not None:
        shape = len(limits), *free.shape
        holds = np.zeros(shape, np.int64) if holds is None else holds[..., order]
    free[:, (free < 0).any(axis=0)] = NO_ROOM
    own, shared = model.device_phases(held), held[..., model.shared_loads].copy()
    device = np.zeros((count, most), np.int64)
    for step, left in enumerate(there.sum(axis=0).tolist()):
        if stop():
            return device, Costs(np.full(count, np.inf), np.full(count, np.inf))
        table, level = put[:left, step].T
        memory, loads = options.memory[table, level], options.loads[table, level]
        fits = (free[:, :left] >= memory) & allowed[step, :, :left]
        if limits is not None:
            fits &= limits.devices[table].T
            if limits.conflicts is not None and holds is not None:
                fits &= np.einsum("nt,tdn->dn", limits.conflicts[table].astype(np.int64), holds[..., :left]) == 0
        has_room = fits.any(axis=0)
        free[:, :left][:, ~has_room] = NO_ROOM
        tried = np.nonzero(fits.ravel())[0]
        if not len(tried):
            continue
        (target, plan), every = np.divmod(tried, left), np.arange(len(tried))
        after = model.add(held[target, plan], loads[plan])
        own_after = model.device_phases(after)
        phases, outputs = own.take(plan, axis=1), shared.take(plan, axis=1)
        phases[target, every] = own_after
        outputs[target, every] = after[:, model.shared_loads]
        phases, outputs = phases.swapaxes(0, 1), outputs.swapaxes(0, 1)
        model.fill_communication(phases, outputs, options.cluster)
        smoothed = np.full(fits.shape, np.inf)
        smoothed.ravel()[tried] = smoothed_ms(phases)
        plans = np.nonzero(has_room)[0]
        best = smoothed.argmin(axis=0)[plans]
        chosen = np.searchsorted(tried, best * left + plans)
        held[best, plans], own[best, plans] = after[chosen], own_after[chosen]
        shared[best, plans] = after[chosen, model.shared_loads]
        free[best, plans] -= memory[plans]
        device[plans, step] = best
        if holds is not None:
            holds[table[plans], best, plans] += 1
    phases, shared = own.swapaxes(0, 1), shared.swapaxes(0, 1)
    model.fill_communication(phases, shared, options.cluster)
    costs = Costs.of(phases, model.iteration_cost(phases, shared, options.cluster))
    valid = (free[0] != NO_ROOM)[back]
    exact, smoothed = np.where(valid, costs.exact[back], np.inf), np.where(valid, costs.smoothed[back], np.inf)
    return device[back], Costs(exact, smoothed)


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """N plans made of one: their (N,) `costs`, inf where a part found no room, and `plan(n)`."""

    costs: Costs
    _split: SplitTables
    _stays: NDArray[np.bool_]  # (N, I), the parts that stay
    _put: IntArray  # (N, k, 2), as in `put_at_once`
    _device: IntArray  # (N, k), where they went
    _spread: IntArray  # (N, T), as in a plan

    def plan(self, which: int) -> SplitTables:
        """Plan number `which`."""
        split, stays, there = self._split, self._stays[which], self._put[which, :, 0] != NONE
        table, level = self._put[which, there].T
        return SplitTables(
            split.options,
            np.concatenate([split.table[stays], table]),
            np.concatenate([split.level[stays], level]),
            np.concatenate([split.device[stays], self._device[which, there]]),
            self._spread[which],
        )


class Rebuilder:
    """Makes plans of `split`, whose (D, 4) `phases` in ms say which devices are slow."""

    def __init__(self, split: SplitTables, phases: FloatArray, rng: np.random.Generator) -> None:
        self._split, self._rng, self._phases = split, rng, phases
        self._options = split.options
        self._spread = np.flatnonzero(split.spread != NOT_SPREAD).tolist()
        self._own: dict[int, IntArray] = {}  # the parts of a table
        self._has_forms = len(self._options.levels) > 1 or bool(self._options.spreads)

    def rebuild(self, stop: Callable[[], bool]) -> Rebuilt:
        """About AT_ONCE / D plans, one at least; all cost inf if `stop`, asked before each step, says so."""
        count = max(1, AT_ONCE // len(self._phases))
        stays, spread = ~self._taken(count), np.repeat(self._split.spread[None], count, axis=0)
        put = self._sorted(count, self._changed(stays, spread))
        held, free = self._left(stays, spread)
        allowed = self._rng.random((put.shape[1], *free.shape)) >= BLINK
        device, costs = put_at_once(self._options, held, free, put, allowed, stop, self._holds(stays))
        return Rebuilt(costs, self._split, stays, put, device, spread)

    def _left(self, stays: NDArray[np.bool_], spread: IntArray) -> tuple[FloatArray, IntArray]:
        """(D, N, K) loads of the devices with what stays, and the (D, N) bytes that they have free."""
        split, options, maxima = self._split, self._options, self._options.model.maxima
        fixed, left = split.fixed()
        held, free = np.repeat(fixed[:, None], len(stays), axis=1), np.repeat(left[:, None], len(stays), axis=1)
        for which in np.flatnonzero((spread != split.spread).any(axis=1)).tolist():
            held[:, which], free[:, which] = options.fixed(spread[which])
        if len(split.table):
            order = np.argsort(split.device, kind="stable")
            present, first = np.unique(split.device[order], return_index=True)
            stay, part = stays.T[order], (split.table[order], split.level[order])
            loads = options.loads[part][:, None] * stay[..., None]
            joined = np.add.reduceat(loads, first, axis=0)
            joined[..., maxima] = np.maximum.reduceat(loads[..., maxima], first, axis=0)
            held[present] = options.model.add(held[present], joined)
            free[present] -= np.add.reduceat(options.memory[part][:, None] * stay, first, axis=0)
        return held, free

    def _holds(self, stays: NDArray[np.bool_]) -> IntArray | None:
        """(T, D, N) int64, parts of each table that stay on each device, where constraints keep tables apart."""
        split, limits = self._split, self._options.task.constraints
        if limits is None or limits.conflicts is None:
            return None
        holds = np.zeros((len(limits), len(self._phases), len(stays)), np.int64)
        np.add.at(holds, (split.table, split.device), stays.T.astype(np.int64))
        return holds

    def _taken(self, count: int) -> NDArray[np.bool_]:
        """(N, I) random parts of some devices, for each of N plans."""
        rng, device, devices, parts = self._rng, self._split.device, len(self._phases), len(self._split.table)
        large = rng.random(count) < LARGE_SHARE
        many = np.where(large, _log_uniform(rng, 2, max(3, devices), count), rng.integers(2, 4, count))
        size = np.where(large, _log_uniform(rng, 4, max(5, LARGEST * parts), count), rng.integers(*SMALL, count))
        chosen = rng.random((count, devices)).argsort(axis=1)
        slowest = self._phases.argmax(axis=0)[rng.integers(self._phases.shape[1], size=count)]
        chosen[:, 0] = np.where(rng.random(count) < CRITICAL_SHARE, slowest, chosen[:, 0])
        reached, taken = np.zeros((count, devices), np.bool_), np.zeros((count, parts), np.bool_)
        which, rank = np.nonzero(np.arange(devices) < many[:, None])
        reached[which, chosen[which, rank]] = True
        reached = reached[:, device]
        order = np.where(reached, rng.random((count, parts)), 1.0).argsort(axis=1)
        np.put_along_axis(taken, order, np.arange(parts) < size[:, None], axis=1)
        return taken & reached

    def _changed(self, stays: NDArray[np.bool_], spread: IntArray) -> IntArray:
        """(M, 3) plan, table and level of the parts to put back, after changes of form in `stays` and `spread`."""
        back, more, redrawn = ~stays, list[tuple[int, int, int]](), np.zeros_like(spread, np.bool_)
        for which in range(len(stays) if self._has_forms else 0):
            while self._rng.random() < FORM_SHARE:
                table, levels = self._change_form(stays[which], spread[which], redrawn[which])
                if table != NONE:
                    redrawn[which, table] = True
                    more += [(which, table, level) for level in levels]
        plan, part = np.nonzero(back & ~redrawn[:, self._split.table])
        kept = np.stack([plan, self._split.table[part], self._split.level[part]], axis=-1)
        return np.concatenate([kept, np.array(more, np.int64).reshape(-1, 3)])

    def _change_form(
        self, stays: NDArray[np.bool_], spread: IntArray, redrawn: NDArray[np.bool_]
    ) -> tuple[int, list[int]]:
        """Halve a part that is out, merge it with another half, or give its table or a spread one any other form.

        Returns the table, NONE if it is `redrawn` already, and the levels of all its parts to put back.
        """
        split, options, levels, some = self._split, self._options, self._options.levels, self._some
        out = (~stays).nonzero()[0]
        if self._spread and (not len(out) or self._rng.random() < SPREAD_SHARE):
            table, part, level, action = some(self._spread), NONE, 0, 1.0
        elif len(out):
            part, action = some(out), self._rng.random()
            table, level = int(split.table[part]), int(split.level[part])
        else:
            return NONE, []
        if redrawn[table]:
            return NONE, []
        own = self._own.get(table)
        if own is None:
            own = self._own[table] = (split.table == table).nonzero()[0]
        if action < 0.3 and levels.halves[table, level, 0] != NONE:
            gone, put = [part], levels.halves[table, level].tolist()
        elif action < 0.6 and (mates := self._mates(table, level, part, own)):
            mate = some(mates)
            gone, put = [part, mate], [int(levels.merged(table, level, split.level[mate]))]
        else:
            stays[own] = False
            forms, ways = levels.forms(table), options.ways(table)
            form = int(self._rng.random() * (len(forms) + len(ways)))
            if form < len(forms):
                spread[table] = NOT_SPREAD
                return table, forms[form]
            spread[table] = ways[form - len(forms)]
            return table, []
        others = [other for other in own[~stays[own]].tolist() if other not in gone]
        stays[gone] = False
        return table, put + split.level[others].tolist()

    def _mates(self, table: int, level: int, part: int, own: IntArray) -> list[int]:
        """Those of a table's `own` parts that can be merged with the one of number `part`."""
        halves = self._options.levels.merged(table, level, self._split.level[own]) != NONE
        return [mate for mate in own[halves].tolist() if mate != part]

    def _some(self, among: Sequence[int] | IntArray) -> int:
        return int(among[int(self._rng.random() * len(among))])

    def _sorted(self, count: int, parts: IntArray) -> IntArray:
        """(N, k, 2), `put_at_once`'s: the costliest first, within the classes of width or over all, or in any order."""
        which, table, level = parts.T
        order = self._rng.random(count)[which]
        alone = np.where(order < 0.25, self._rng.random(len(parts)), -self._options.part_ms[table, level])
        widths = self._options.levels.width[table, level]
        parts = parts[np.lexsort((alone, np.where((order >= 0.25) & (order < 0.5), -lane_share(widths), 0.0), which))]
        many = np.bincount(which, minlength=count)
        put = np.full((count, many.max(), 2), NONE)
        put[np.arange(put.shape[1]) < many[:, None]] = parts[:, 1:]
        return put


def _log_uniform(rng: np.random.Generator, least: float, most: float, count: int) -> IntArray:
    """(N,) int64 from `least` to before `most`, smaller ones more often."""
    return np.exp(rng.uniform(np.log(least), np.log(most), count)).astype(np.int64)
