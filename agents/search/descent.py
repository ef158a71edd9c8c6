"""Descents over plans: moves and swaps of parts, halving, merging, and tables on many devices, until none helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np

from shard_gym.agents.search.memories import room_in_both
from shard_gym.agents.search.neighbourhood import NO_TABLE, Costs, Moves, Neighbourhood
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.plans.column_levels import NONE
from shard_gym.plans.placement import Placement

MIN_GAIN_MS = 1e-9  # a smaller gain is rounding error
LISTED = 4096  # moves listed at once

BATCH = 384
"""Moves costed at once. Larger batches have less overhead, but find the first gain later. With 512, the arrays of a
16-device task are so large that each is requested from the system, and the search runs at two thirds of the speed."""


MAX_IDLE = 1_000  # looks at the budget, about one for each placement that is tried, in which no cost was asked for


class CountsQueries(Protocol):
    """What counts the evaluations of a search."""

    @property
    def queries(self) -> int:
        """Those so far."""


class Budget:
    """The evaluations that `counts` counts, and the seconds if limited, that a search has for one task from here on.

    Args:
        counts: the cost model.
        max_queries: evaluations.
        max_seconds: seconds; None for no limit.
        within: a budget of which this one is a part; with it, this one is spent, too.
    """

    def __init__(
        self, counts: CountsQueries, max_queries: int, max_seconds: float | None = None, within: Budget | None = None
    ) -> None:
        self._counts, self._max_queries, self._within = counts, max_queries, within
        self._first = self._last = counts.queries
        self._started, self._max_seconds = time.perf_counter(), float("inf") if max_seconds is None else max_seconds
        if within is not None:
            self._max_seconds = min(self._max_seconds, within.seconds_left)
        self._idle = 0

    def spent(self) -> bool:
        """Whether it is spent, or nothing was asked for long: the costs of all placements that are tried are known."""
        self._idle = self._idle + 1 if self._last == self._counts.queries else 0
        self._last = self._counts.queries
        return self.share >= 1.0 or self._idle >= MAX_IDLE

    @property
    def seconds_left(self) -> float:
        """Seconds until the limit; infinity if there is none."""
        return self._max_seconds - (time.perf_counter() - self._started)

    @property
    def share(self) -> float:
        """The share that is spent, of the evaluations or of the seconds, whichever is more."""
        if self._within is not None and self._within.share >= 1.0:
            return 1.0
        seconds = 0.0 if self._max_seconds == float("inf") else 1.0 - self.seconds_left / max(self._max_seconds, 1e-9)
        return max((self._counts.queries - self._first) / self._max_queries, seconds)


Found = TypeVar("Found")


class Best(Generic[Found]):
    """The cheapest of what a search finds that holds; as long as nothing does, the cheapest.

    Args:
        found: the first.
        cost: its cost in ms.
        holds: whether something may be an answer; None where all may be.
    """

    def __init__(self, found: Found, cost: float, holds: Callable[[Found], bool] | None = None) -> None:
        self.found, self.cost, self._holds = found, cost, holds
        self._held = holds is None or holds(found)

    @property
    def rank(self) -> tuple[bool, float]:
        """What sorts those that hold first, then the cheapest."""
        return not self._held, self.cost

    def offer(self, cost: float, make: Callable[[], Found], least_gain_ms: float = MIN_GAIN_MS) -> None:
        """Take what `make` returns if its `cost` in ms is lower by more than `least_gain_ms`, and it holds, or the best
        does not; or if it is the first that holds. An infinite cost is that of nothing."""
        lower = cost < self.cost - least_gain_ms
        if (not lower and self._held) or cost == np.inf:
            return
        found = make()
        held = self._holds is None or self._holds(found)
        if held >= self._held and (lower or held > self._held):
            self.found, self.cost, self._held = found, cost, held


class MoveSearch:
    """A descent over moves and swaps of items; `best` is the cheapest placement found that `holds` (see `Best`)."""

    def __init__(
        self,
        current: Neighbourhood,
        rng: np.random.Generator,
        spent: Callable[[], bool],
        batch: int,
        holds: Callable[[Placement], bool] | None = None,
    ) -> None:
        self._current = current
        self._batch = batch
        self._rng = rng
        self._spent = spent
        self.best = Best(current.placement, float(current.costs.exact), holds)

    def descend(self) -> None:
        """Apply moves that lower the cost until none does."""
        while not self._spent() and self._improve():
            pass

    def _improve(self) -> bool:
        """Apply the best move of the first batch, in random order, that has one with a gain; False if none has."""
        for batch in self._batches():
            costs = self._current.costs_after(batch)
            self._keep_best(batch, costs)
            best = int(costs.smoothed.argmin())
            if costs.smoothed[best] < self._current.costs.smoothed - MIN_GAIN_MS:
                self._current.set_placement(self._current.placement_after(batch, best))
                return True
            if self._spent():
                return False
        return False

    def _batches(self) -> Iterator[Moves]:
        """All moves of the critical tables, listed a few tables at a time: a large task rarely needs all of them."""
        items = self._current.items
        tables = self._rng.permutation(self._current.critical_tables())
        at_once = max(1, LISTED // (len(items) + items.num_devices))
        for first in range(0, len(tables), at_once):
            moves = self._current.moves(tables[first : first + at_once])
            shuffled = self._rng.permutation(len(moves))
            for start in range(0, len(moves), self._batch):
                yield moves.take(shuffled[start : start + self._batch])

    def _keep_best(self, batch: Moves, costs: Costs) -> None:
        """Keep the cheapest placement found, also where the smoothed cost leads elsewhere."""
        cheapest = int(costs.exact.argmin())
        self.best.offer(float(costs.exact[cheapest]), lambda: self._current.placement_after(batch, cheapest))


_Change = tuple[float, Callable[[], SplitTables]]  # the smoothed cost of a plan that may come next, and what makes it
_Form = tuple[FloatArray, Callable[[], SplitTables]]  # the (D, K) loads of the devices after a change, and the plan


class Descent:
    """A plan that descends, `split`; `best` is the cheapest plan on the way that holds (see `Best`).

    Moves and swaps of parts lead to a local optimum. Then a change of form that lowers the cost is made: of a part that
    is halved or two that are merged the best, else the first found of a table that is spread, spread in another way or
    gathered; and so on until none does. The descent follows the smoothed cost (see `neighbourhood.Costs`); `best` has
    the lowest exact one.

    A round over all moves costs as many evaluations as tables on the slowest devices times all parts and devices. One
    over all forms costs one for each way to spread each of these tables, and one for each spread table and device.

    Args:
        start: the plan.
        rng: decides the order in which changes are tried.
        budget: when it is spent, the descent ends.
        batch: the most changes that are costed at once.
    """

    def __init__(self, start: SplitTables, rng: np.random.Generator, budget: Budget, batch: int = BATCH) -> None:
        self._rng, self.budget, self._batch, self._until = rng, budget, batch, 1.0
        self.take(start)
        self._holds = room_in_both(start.options.origin)
        self.best = Best(start, float(self.current.costs.exact), self._holds)

    def holds_in(self, split: SplitTables) -> Callable[[Placement], bool] | None:
        """Whether `split` with its parts on other devices may be an answer; None if any may be."""
        holds = self._holds
        return None if holds is None else lambda device: holds(split.moved(device))

    def take(self, split: SplitTables) -> None:
        """Go on from `split`."""
        self.split = split
        self.current = Neighbourhood(split.items(), split.device)

    def keep(self, split: SplitTables, cost: float) -> None:
        """Make `split`, of exact `cost` in ms, the best plan if it is better."""
        self.best.offer(cost, lambda: split)

    def _spent(self) -> bool:
        return self.budget.spent() or self.budget.share >= self._until

    def descend(self, until: float = 1.0) -> None:
        """Apply changes that lower the smoothed cost until none does, or until that share of the budget is spent."""
        self._until = until
        while True:
            holds = self.holds_in(self.split)
            search = MoveSearch(self.current, self._rng, self._spent, self._batch, holds)
            search.descend()
            self.split = self.split.moved(self.current.placement)
            self.keep(self.split.moved(search.best.found), search.best.cost)
            if self._spent() or not self._change_form():
                return

    def perturb(self) -> bool:
        """Two to four random moves or swaps, to leave a local optimum; False if none fits the memory."""
        wanted, made = int(self._rng.integers(2, 5)), 0
        for part in self._rng.permutation(len(self.split.table)):
            moves = self.current.moves(np.array([part]))
            if len(moves):
                self.current.set_placement(self.current.placement_after(moves, int(self._rng.integers(len(moves)))))
                made += 1
            if made == wanted:
                break
        self.split = self.split.moved(self.current.placement)
        return made > 0

    def _change_form(self) -> bool:
        """Make a change of the parts or of a spread table that lowers the smoothed cost; False if none does."""
        options = self.split.options
        for changes in (
            self._of_parts if len(options.levels) > 1 else None,
            self._of_spreads if options.spreads else None,
        ):
            if changes is None:
                continue
            smoothed, apply = min(changes(), key=lambda change: change[0], default=(np.inf, None))
            if apply is not None and self._lower(smoothed):
                self.take(apply())
                self.keep(self.split, float(self.current.costs.exact))
                return True
        return False

    def _lower(self, smoothed: float) -> bool:
        return bool(smoothed < self.current.costs.smoothed - MIN_GAIN_MS)

    def _of_parts(self) -> Iterator[_Change]:
        """The best halving of a part on a critical device, and the best merger of two parts of which one is on it."""
        split, options, devices = self.split, self.split.options, self.split.device
        critical = self.current.critical_tables()
        left = self.current.items.memory_left(devices)
        # The wider half stays, the other one goes to any other device.
        parts = critical[options.can_halve(split.table[critical], split.level[critical])]
        part, target = (each.ravel() for each in np.meshgrid(parts, np.arange(len(left)), indexing="ij"))
        table, level, own = split.table[part], split.level[part], devices[part]
        if len(part):
            stays, goes = options.levels.halves[table, level].T
            fits = left[own] + options.memory[table, level] >= options.memory[table, stays]
            fits &= (left[target] >= options.memory[table, goes]) & (own != target)
            fits &= self.current.may_hold(table, target)
            part, target, table = part[fits], target[fits], table[fits]
            yield from self._best(
                np.stack([devices[part], target]),
                np.stack([part, np.full(len(part), NO_TABLE)]),
                np.stack([options.loads[table, stays[fits]], options.loads[table, goes[fits]]]),
                lambda which: split.halved(int(part[which]), int(target[which])),
            )
        # Two parts of a table that are halves of one become that one, on the device of either.
        one, two = np.nonzero((split.table[critical][:, None] == split.table) & (devices[critical][:, None] != devices))
        one = critical[one]
        halves = options.levels.merged(split.table[one], split.level[one], split.level[two]) != NONE
        one, two = one[halves], two[halves]
        one, two = np.concatenate([one, two]), np.concatenate([two, one])  # the merged part is where the first was
        if len(one):
            merged = options.levels.merged(split.table[one], split.level[one], split.level[two])
            fits = (
                left[devices[one]] + options.memory[split.table[one], split.level[one]]
                >= (options.memory[split.table[one], merged])
            )
            one, two = one[fits], two[fits]
            merged_loads = options.loads[split.table[one], merged[fits]]
            yield from self._best(
                np.stack([devices[one], devices[two]]),
                np.stack([one, two]),
                np.stack([merged_loads, np.zeros_like(merged_loads)]),
                lambda which: split.merged(int(one[which]), int(two[which]), int(devices[one[which]])),
            )

    def _best(
        self, devices: IntArray, leaves: IntArray, joining: np.ndarray, apply: Callable[[int], SplitTables]
    ) -> Iterator[_Change]:
        """The one of M changes (see `Neighbourhood.costs_if`) with the lowest smoothed cost, if there is any."""
        count = devices.shape[1]
        if not count:
            return
        pieces = [slice(first, first + BATCH) for first in range(0, count, BATCH)]
        costs = [self.current.costs_if(devices[:, p], leaves[:, p], joining[:, p]).smoothed for p in pieces]
        smoothed = np.concatenate(costs)
        which = int(smoothed.argmin())
        yield float(smoothed[which]), lambda: apply(which)

    def _of_spreads(self) -> Iterator[_Change]:
        """The best change of the first batch of `_forms` that has one with a gain."""
        forms, options = self._forms(), self.split.options
        while batch := list(islice(forms, self._batch)):
            loads = np.stack([after for after, _ in batch])
            smoothed = Costs.of(*options.model.costs(loads, options.cluster)).smoothed
            which = int(smoothed.argmin())
            if self._lower(float(smoothed[which])):
                yield float(smoothed[which]), batch[which][1]
                return
            if self._spent():
                return

    def _forms(self) -> Iterator[_Form]:
        """In random order: ways to spread tables with a part on a critical device, and other forms of spread tables."""
        split, options = self.split, self.split.options
        tables = np.union1d(split.table[self.current.critical_tables()], np.flatnonzero(split.spread != NOT_SPREAD))
        for table in self._rng.permutation(tables).tolist():
            rest = split.spread_over(table, NOT_SPREAD)
            items = rest.items()
            held, left = items.device_loads(rest.device), items.memory_left(rest.device)
            for number, (_, variant, devices, *_) in enumerate(options.spreads):
                fits = options.may_spread[table, number] and (left[devices] >= options.memory[table, variant]).all()
                if fits and number != split.spread[table]:
                    after = _joined(options, held, devices, options.loads[table, variant])
                    yield after, partial(split.spread_over, table, number)
            if split.spread[table] != NOT_SPREAD:
                room = (left >= options.memory[table, 0]) & options.open_to(table, rest.table, rest.device)
                for device in np.flatnonzero(room).tolist():
                    after = _joined(options, held, np.array([device]), options.loads[table, 0])
                    yield after, partial(split.gathered, table, device)


def _joined(options: SplitOptions, held: FloatArray, devices: IntArray, added: FloatArray) -> FloatArray:
    """(D, K) loads `held` by the devices, with (K,) loads `added` to each of `devices`."""
    after = held.copy()
    after[devices] = options.model.add(held[devices], added)
    return after
