"""Ruin and recreate: parts are taken out of a plan, some get other forms, and go where cheapest; many plans at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.neighbourhood import Costs, smoothed_ms
from shard_gym.agents.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.cost_models.analytical import lane_share
from shard_gym.cost_models.base import FloatArray, IntArray

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

    Returns:
        (N, k) int64 devices, and the (N,) costs of the plans, inf where a part found no room.
    """
    model, (count, most, _), there = options.model, put.shape, put[..., 0] != NONE
    order = np.argsort(-there.sum(axis=1), kind="stable")  # in each step the first plans have parts left
    back = np.argsort(order)
    held, free, put, allowed = held[:, order], free[:, order], put[order], allowed[..., order]
    free[:, (free < 0).any(axis=0)] = NO_ROOM
    own, shared = model.device_phases(held), held[..., model.shared_loads].copy()
    device = np.zeros((count, most), np.int64)
    for step, left in enumerate(there.sum(axis=0).tolist()):
        if stop():
            return device, Costs(np.full(count, np.inf), np.full(count, np.inf))
        table, level = put[:left, step].T
        memory, loads = options.memory[table, level], options.loads[table, level]
        fits = (free[:, :left] >= memory) & allowed[step, :, :left]
        has_room = fits.any(axis=0)
        free[:, :left][:, ~has_room] = NO_ROOM
        tried = np.flatnonzero(fits)
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
        plans = np.flatnonzero(has_room)
        best = smoothed.argmin(axis=0)[plans]
        chosen = np.searchsorted(tried, best * left + plans)
        held[best, plans], own[best, plans] = after[chosen], own_after[chosen]
        shared[best, plans] = after[chosen, model.shared_loads]
        free[best, plans] -= memory[plans]
        device[plans, step] = best
    phases, shared = own.swapaxes(0, 1), shared.swapaxes(0, 1)
    model.fill_communication(phases, shared, options.cluster)
    costs = Costs.of(phases, model.iteration_cost(phases, shared, options.cluster))
    valid = (free[0] != NO_ROOM)[back]
    exact, smoothed = np.where(valid, costs.exact[back], np.inf), np.where(valid, costs.smoothed[back], np.inf)
    return device[back], Costs(exact, smoothed)


@dataclass(eq=False)
class _Ruin:
    """What is left of a plan."""

    stays: NDArray[np.bool_]  # (I,) the parts that stay
    put: list[tuple[int, int]]  # table and level of the parts to put back
    spread: IntArray  # (T,) as in the plan


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """N plans made of one: their (N,) `costs`, inf where a part found no room, and `plan(n)`."""

    costs: Costs
    _split: SplitTables
    _ruins: list[_Ruin]
    _device: IntArray

    def plan(self, which: int) -> SplitTables:
        """Plan number `which`."""
        split, ruin = self._split, self._ruins[which]
        table, level = np.array(ruin.put, np.int64).reshape(-1, 2).T
        return SplitTables(
            split.options,
            np.concatenate([split.table[ruin.stays], table]),
            np.concatenate([split.level[ruin.stays], level]),
            np.concatenate([split.device[ruin.stays], self._device[which, : len(table)]]),
            ruin.spread,
        )


class Rebuilder:
    """Makes plans of `split`, whose (D, 4) `phases` in ms say which devices are slow."""

    def __init__(self, split: SplitTables, phases: FloatArray, rng: np.random.Generator) -> None:
        self._split, self._rng, self._phases = split, rng, phases
        self._options = split.options
        self._order = np.argsort(split.device, kind="stable")
        self._present, self._first = np.unique(split.device[self._order], return_index=True)
        self._has_forms = self._options.max_halvings > 0 or bool(self._options.spreads)

    def rebuild(self, stop: Callable[[], bool]) -> Rebuilt:
        """About AT_ONCE / D plans, one at least; all cost inf if `stop`, asked before each step, says so."""
        count = max(1, AT_ONCE // len(self._phases))
        ruins = [self._ruin() for _ in range(count)]
        put = np.full((count, max(len(ruin.put) for ruin in ruins), 2), NONE)
        for which, ruin in enumerate(ruins):
            if ruin.put:
                put[which, : len(ruin.put)] = ruin.put
        held, free = self._left(ruins)
        allowed = self._rng.random((put.shape[1], *free.shape)) >= BLINK
        device, costs = put_at_once(self._options, held, free, put, allowed, stop)
        return Rebuilt(costs, self._split, ruins, device)

    def _left(self, ruins: list[_Ruin]) -> tuple[FloatArray, IntArray]:
        """(D, N, K) loads of the devices with what stays, and the (D, N) bytes that they have free."""
        split, options, sums = self._split, self._options, self._options.model.num_sum_loads
        fixed = [split.fixed()]
        fixed = [fixed[0] if ruin.spread is split.spread else options.fixed(ruin.spread) for ruin in ruins]
        held, free = np.stack([loads for loads, _ in fixed], axis=1), np.stack([left for _, left in fixed], axis=1)
        if len(split.table):
            stays = np.stack([ruin.stays[self._order] for ruin in ruins], axis=1)
            part = split.table[self._order], split.level[self._order]
            loads = options.loads[part][:, None] * stays[..., None]
            summed = np.add.reduceat(loads[..., :sums], self._first, axis=0)
            largest = np.maximum.reduceat(loads[..., sums:], self._first, axis=0)
            held[self._present] = options.model.add(held[self._present], np.concatenate([summed, largest], axis=-1))
            free[self._present] -= np.add.reduceat(options.memory[part][:, None] * stays, self._first, axis=0)
        return held, free

    def _ruin(self) -> _Ruin:
        split, rng = self._split, self._rng
        ruin = _Ruin(np.ones(len(split.table), np.bool_), [], split.spread)
        if len(split.table):
            ruin.stays[self._taken()] = False
        redrawn: set[int] = set()
        while self._has_forms and rng.random() < FORM_SHARE:
            if (table := self._change_form(ruin, redrawn)) is not None:
                redrawn.add(table)
        for part in np.flatnonzero(~ruin.stays).tolist():
            if (table := int(split.table[part])) not in redrawn:
                ruin.put.append((table, int(split.level[part])))
        self._sort(ruin.put)
        return ruin

    def _taken(self) -> IntArray:
        """Random parts of some devices."""
        rng, devices, parts = self._rng, len(self._phases), len(self._split.table)
        if rng.random() < LARGE_SHARE:
            many = int(np.exp(rng.uniform(np.log(2), np.log(max(3, devices)))))
            size = int(np.exp(rng.uniform(np.log(4), np.log(max(5, LARGEST * parts)))))
        else:
            many, size = int(rng.integers(2, 4)), int(rng.integers(*SMALL))
        chosen = rng.permutation(devices)[:many]
        if rng.random() < CRITICAL_SHARE:
            chosen[0] = self._phases[:, rng.integers(self._phases.shape[1])].argmax()
        reached = np.zeros(devices, np.bool_)
        reached[chosen] = True
        return rng.permutation(np.flatnonzero(reached[self._split.device]))[:size]

    def _change_form(self, ruin: _Ruin, redrawn: set[int]) -> int | None:
        """Halve a part that is out, merge it with another one, or give its table or a spread one any other form.

        Returns the table, all parts of which to put back are then in `ruin.put`; None if it is one of `redrawn`.
        """
        split, options, rng = self._split, self._options, self._rng
        out, spread = np.flatnonzero(~ruin.stays), np.flatnonzero(split.spread != NOT_SPREAD)
        if len(spread) and (not len(out) or rng.random() < SPREAD_SHARE):
            table, part, action = int(rng.choice(spread)), NONE, 1.0
        elif len(out):
            part, action = int(rng.choice(out)), rng.random()
            table = int(split.table[part])
        else:
            return None
        if table in redrawn:
            return None
        own = split.table == table
        level = int(split.level[part]) if part != NONE else 0
        if action < 0.3 and options.can_halve(np.array(table), np.array(level)):
            gone, put = [part], [level + 1] * 2
        elif action < 0.6 and len(mates := np.flatnonzero(own & (split.level == level))) > 1:
            gone, put = [part, int(rng.choice(mates[mates != part]))], [level - 1]
        else:
            ruin.stays[own] = False
            levels = np.flatnonzero(options.legal[table, : options.max_halvings + 1]).tolist()
            ways = [number for number, way in enumerate(options.spreads) if options.legal[table, way.variant]]
            form = int(rng.integers(len(levels) + len(ways)))
            ruin.spread = ruin.spread.copy()
            ruin.spread[table] = ways[form - len(levels)] if form >= len(levels) else NOT_SPREAD
            ruin.put += [(table, levels[form])] * (1 << levels[form]) if form < len(levels) else []
            return table
        ruin.stays[gone] = False
        others = np.setdiff1d(np.flatnonzero(own & ~ruin.stays), gone)
        ruin.put += [(table, each) for each in (*put, *split.level[others].tolist())]
        return table

    def _sort(self, put: list[tuple[int, int]]) -> None:
        """The costliest first, within the classes of width or over all, or in random order."""
        order = self._rng.random()
        if order < 0.25:
            self._rng.shuffle(put)
            return
        put.sort(key=lambda part: -self._options.part_ms[part])
        if order < 0.5:
            widths = self._options.task.tables.embedding_dim
            put.sort(key=lambda part: -float(lane_share(widths[part[0]] >> part[1])))
