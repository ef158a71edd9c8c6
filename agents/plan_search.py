"""Local search over sharding plans: moves and swaps of shards, halving, merging, and tables on many devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from shard_gym.agents.base import MAX_QUERIES, Agent, task_rng
from shard_gym.agents.heuristics import lane_placements
from shard_gym.agents.items import IntArray, NoRoomError, put_where_cheapest
from shard_gym.agents.neighbourhood import NO_TABLE, Costs, Neighbourhood
from shard_gym.agents.search import BATCH, MIN_GAIN_MS, Search
from shard_gym.agents.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.checks import checked_count, checked_seed
from shard_gym.cost_models import CostModel, make_sharding_cost_model
from shard_gym.cost_models.counted import CountedShardingModel
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.sharding.variants import checked_sharding_types
from shard_gym.tasks import Task


SHARE_SPLIT = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Halvings of the costliest parts in the starts of the search, for each table."""

MOST_SHARES = (0.5, 1.0, 2.0)
"""In the starts of the search, tables are spread that cost every device at most these shares of a D-th of one device."""

NARROW = (32, 64)
"""Widths of the thread groups of FBGEMM below that of a whole warp: narrow tables are faster with no wider ones."""

STARTS = 4
"""Plans from which the search descends before it goes on from the cheapest."""

PERTURBED = (2, 5)
"""Random changes of a perturbation: from the first to before the second number."""


class PlanSearchAgent(Agent):
    """Descent over sharding plans from greedily split starts, then from random perturbations of the cheapest plan.

    Moves and swaps of shards lead to a local optimum. Then the change that lowers the cost most is made: halving a part
    of a table, merging two halves, spreading a table over many devices, or gathering it; and so on until none does.

    Args:
        cost_model: the model to search under, or its name; a `ShardingCostModel`.
        sharding_types: those allowed.
        max_shards: column shards of a table at most, a power of two.
        max_queries: cost-model evaluations for each task; exceeded by the starts at most.
        seed: of the order in which changes are tried, and of the perturbations. Equal seeds give equal plans.

    Raises:
        InvalidOptionError, UnknownNameError: an option is not valid, or the model does not cost sharded tables.
    """

    name = "plan-search"

    def __init__(
        self,
        cost_model: str | CostModel = "analytical",
        sharding_types: Collection[str] = SHARDING_TYPES,
        max_shards: int = 8,
        max_queries: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.cost_model = CountedShardingModel(make_sharding_cost_model(cost_model))
        self.sharding_types = checked_sharding_types(sharding_types)
        self.max_shards = checked_count("max_shards", max_shards)
        self.max_queries = checked_count("max_queries", max_queries, most=MAX_QUERIES)
        self.seed = checked_seed(seed)

    @property
    def search_budget(self) -> int:
        """See `Agent`."""
        return self.max_queries

    def true_cost_queries(self, fingerprint: str) -> int:
        """See `Agent`."""
        return self.cost_model.queries if self.cost_model.fingerprint == fingerprint else 0

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        return self._search(task, (TABLE_WISE,)).best.device

    def plan(self, task: Task) -> ShardingPlan:
        """See `Agent`."""
        return self._search(task, self.sharding_types).best.plan()

    def _search(self, task: Task, sharding_types: tuple[str, ...]) -> _PlanSearch:
        last_query = self.cost_model.queries + self.max_queries
        options = SplitOptions(task, self.cost_model, sharding_types, self.max_shards)
        starts = sorted(_starts(options), key=lambda start: start[0])
        if not starts:
            raise NoPlacementFoundError(f"No plan of task {task.name!r} was found: its tables leave no room.")
        rng, half = task_rng(self.seed, task), self.cost_model.queries + self.max_queries // 2
        searches: list[_PlanSearch] = []
        for _, start in starts[:STARTS]:
            if not searches or self.cost_model.queries < half:
                searches.append(_PlanSearch(start, rng, lambda: self.cost_model.queries >= last_query))
                searches[-1].descend()
        search = min(searches, key=lambda each: each.best_cost)
        search.run()
        return search


def _starts(options: SplitOptions) -> Iterator[tuple[float, SplitTables]]:
    """Plans and their costs: of whole tables by lanes, and with the costliest parts halved more and more often."""
    task = options.task
    try:
        for _, placement in lane_placements(task):
            whole = SplitTables.whole(options, placement)
            yield whole.items().cost_ms(placement), whole
    except NoPlacementFoundError:
        pass
    found: list[tuple[float, IntArray]] = []
    for spread in _spread_sets(options):
        placed = list(_placed(chain([_unsplit(options, spread)], _no_wider(options, spread))))
        found += [(cost, spread) for cost, _ in placed]
        yield from placed
    if found:
        spread = min(found, key=lambda each: each[0])[1]
        yield from _placed(_halved_more_and_more(options, spread))


def _placed(splits: Iterable[SplitTables]) -> Iterator[tuple[float, SplitTables]]:
    """Those of `splits` that fit, with each part where the plan so far costs least, the costliest first; and costs."""
    for split in splits:
        items = split.items()
        order = np.argsort(-split.options.part_ms[split.table, split.level], kind="stable")
        try:
            placement = put_where_cheapest(items, order)
        except NoRoomError:
            continue
        yield items.cost_ms(placement), split.moved(placement)


def _unsplit(options: SplitOptions, spread: IntArray) -> SplitTables:
    """The tables that are not spread, whole; none has a device yet (all are on 0)."""
    table = np.flatnonzero(spread == NOT_SPREAD)
    return SplitTables(options, table, np.zeros(len(table), np.int64), np.zeros(len(table), np.int64), spread)


def _spread_sets(options: SplitOptions) -> Iterator[IntArray]:
    """(T,) int64 each: no table is spread; then those of which a copy more would cost all devices little.

    A copy is compared with a D-th of what it costs one device more, so what is paid once for all tables does not count.
    """
    task, model = options.task, options.model
    nothing = np.full(task.num_tables, NOT_SPREAD)
    yield nothing
    numbers = [n for n, spread in enumerate(options.spreads) if len(spread.devices) == task.num_devices]
    if not numbers or task.num_devices == 1:
        return
    variants = [options.spreads[number].variant for number in numbers]
    once = np.repeat(options.loads[:, variants, None], task.num_devices, axis=2)  # (T, n, D, K)
    more = np.diff([model.costs(loads, options.cluster)[1] for loads in (once, model.add(once, once))], axis=0)[0]
    more[~options.legal[:, variants]] = np.inf
    alone = options.loads[:, 0]
    whole = model.single_table_costs(model.add(alone, alone), task.topology) - options.part_ms[:, 0]
    best, share = more.argmin(axis=1), more.min(axis=1) / (whole / task.num_devices)
    for most in MOST_SHARES:
        if (share < most).any():
            yield np.where(share < most, np.array(numbers)[best], NOT_SPREAD)


def _no_wider(options: SplitOptions, spread: IntArray) -> Iterator[SplitTables]:
    """The tables that are not spread, halved until no part is wider than 32 columns, and the same with 64."""
    whole = np.flatnonzero(spread == NOT_SPREAD)
    for width in NARROW:
        table, level = whole, np.zeros(len(whole), np.int64)
        dims = options.task.tables.embedding_dim
        while True:
            halve = (dims[table] >> level > width) & options.can_halve(table, level)
            if not halve.any():
                break
            level = np.concatenate([level + halve, level[halve] + 1])
            table = np.concatenate([table, table[halve]])
        if len(table) > len(whole):
            yield SplitTables(options, table, level, np.zeros(len(table), np.int64), spread)


def _halved_more_and_more(options: SplitOptions, spread: IntArray) -> Iterator[SplitTables]:
    """The tables that are not spread, with the costliest parts halved; no part has a device yet (all are on 0)."""
    table = np.flatnonzero(spread == NOT_SPREAD)
    level = np.zeros(len(table), np.int64)
    halved = 0
    for share in SHARE_SPLIT:
        wanted = int(share * options.task.num_tables)
        while halved < wanted:
            cost = np.where(options.can_halve(table, level), options.part_ms[table, level], -np.inf)
            if not len(cost) or cost.max() == -np.inf:
                return
            part = int(cost.argmax())
            level[part] += 1
            table, level = np.append(table, table[part]), np.append(level, level[part])
            halved += 1
        yield SplitTables(options, table.copy(), level.copy(), np.zeros(len(table), np.int64), spread)


class _Change(NamedTuple):
    """A plan that may come next, and its smoothed cost."""

    smoothed: float
    apply: Callable[[], SplitTables]


class _PlanSearch:
    """One search over the plans of a task; `best` is the cheapest plan found, `best_cost` its cost."""

    def __init__(self, start: SplitTables, rng: np.random.Generator, spent: Callable[[], bool]) -> None:
        self._rng, self._spent = rng, spent
        self._take(start)
        self.best, self.best_cost = start, float(self._current.costs.exact)

    def run(self) -> None:
        """After a descent: perturb, descend, and return if nothing better was found, until the budget is spent."""
        while not self._spent():
            before, cost = self._split, self._current.costs.smoothed
            self._perturb()
            self.descend()
            if self._current.costs.smoothed > cost:
                self._take(before)

    def _take(self, split: SplitTables) -> None:
        self._split = split
        self._current = Neighbourhood(split.items(), split.device)

    def _keep_best(self) -> None:
        cost = float(self._current.costs.exact)
        if cost < self.best_cost - MIN_GAIN_MS:
            self.best, self.best_cost = self._split, cost

    def descend(self) -> None:
        """Apply changes that lower the smoothed cost until none does."""
        while True:
            search = Search(self._current, self._rng, self._spent, BATCH)
            search.descend()
            self._split = self._split.moved(self._current.placement)
            if search.best_cost < self.best_cost - MIN_GAIN_MS:
                self.best, self.best_cost = self._split.moved(search.best), search.best_cost
            if self._spent() or not self._improve_split():
                return

    def _improve_split(self) -> bool:
        """Make the change of the parts that lowers the smoothed cost most; False if none does."""
        for changes in (self._of_parts, self._of_spreads):
            best = min(changes(), key=lambda change: change.smoothed, default=None)
            if best is not None and best.smoothed < self._current.costs.smoothed - MIN_GAIN_MS:
                self._take(best.apply())
                self._keep_best()
                return True
        return False

    def _of_parts(self) -> Iterator[_Change]:
        """The best halving of a part on a critical device, and the best merger of two parts of which one is on it."""
        split, options, devices = self._split, self._split.options, self._split.device
        critical = self._current.critical_tables()
        left = self._current.items.memory_left(devices)
        # One half stays, the other one goes to any other device.
        parts = critical[options.can_halve(split.table[critical], split.level[critical])]
        part, target = (each.ravel() for each in np.meshgrid(parts, np.arange(len(left)), indexing="ij"))
        table, level, own = split.table[part], split.level[part], devices[part]
        if len(part):
            half = options.memory[table, level + 1]
            fits = (left[target] >= half) & (left[own] + options.memory[table, level] >= half) & (own != target)
            part, target = part[fits], target[fits]
            half_loads = options.loads[split.table[part], split.level[part] + 1]
            yield from self._best(
                np.stack([devices[part], target]),
                np.stack([part, np.full(len(part), NO_TABLE)]),
                np.stack([half_loads, half_loads]),
                lambda which: split.halved(int(part[which]), int(target[which])),
            )
        # Two parts of a table that are halved equally often become one, on the device of either.
        key = split.table * (options.max_halvings + 1) + split.level
        same = (key[critical][:, None] == key) & (devices[critical][:, None] != devices) & (split.level > 0)
        one, two = np.nonzero(same)
        one = critical[one]
        one, two = np.concatenate([one, two]), np.concatenate([two, one])  # the merged part is where the first was
        if len(one):
            merged = options.memory[split.table[one], split.level[one] - 1]
            fits = left[devices[one]] + options.memory[split.table[one], split.level[one]] >= merged
            one, two = one[fits], two[fits]
            merged_loads = options.loads[split.table[one], split.level[one] - 1]
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
        costs = [self._current.costs_if(devices[:, p], leaves[:, p], joining[:, p]).smoothed for p in pieces]
        smoothed = np.concatenate(costs)
        which = int(smoothed.argmin())
        yield _Change(float(smoothed[which]), lambda: apply(which))

    def _of_spreads(self) -> Iterator[_Change]:
        """Every way to spread a table with a part on a critical device, and to gather a spread one."""
        split, options = self._split, self._split.options
        if not options.spreads:
            return
        model, placement = options.model, self._current.placement
        changes, loads = [], []
        tables = np.unique(split.table[self._current.critical_tables()])
        for table in tables.tolist():
            rest = split.spread_over(table, NOT_SPREAD)  # without the table
            items = rest.items()
            held, left = items.device_loads(rest.device), items.memory_left(rest.device)
            for number, spread in enumerate(options.spreads):
                needed = options.memory[table, spread.variant]
                if options.legal[table, spread.variant] and (left[spread.devices] >= needed).all():
                    after = held.copy()
                    after[spread.devices] = model.add(held[spread.devices], options.loads[table, spread.variant])
                    loads.append(after)
                    changes.append((split.spread_over, table, number))
        for table in np.flatnonzero(split.spread != NOT_SPREAD).tolist():
            rest = split.spread_over(table, NOT_SPREAD)
            items = rest.items()
            held, left = items.device_loads(rest.device), items.memory_left(rest.device)
            for device in np.flatnonzero(left >= options.memory[table, 0]).tolist():
                after = held.copy()
                after[device] = model.add(held[device], options.loads[table, 0])
                loads.append(after)
                changes.append((split.gathered, table, device))
        if not changes:
            return
        smoothed = Costs.of(*model.costs(np.stack(loads), options.cluster)).smoothed
        which = int(smoothed.argmin())
        change, table, where = changes[which]
        yield _Change(float(smoothed[which]), lambda: change(table, where))

    def _perturb(self) -> None:
        """A few random changes: parts are moved, halved or merged."""
        for _ in range(int(self._rng.integers(*PERTURBED))):
            split, options = self._split, self._split.options
            if not len(split.table):
                return
            left = self._current.items.memory_left(split.device)
            part = int(self._rng.integers(len(split.table)))
            table, level, own = split.table[part], split.level[part], split.device[part]
            action = self._rng.random()
            mates = np.flatnonzero((split.table == table) & (split.level == level))
            mates = mates[mates != part]
            if action < 0.25 and options.can_halve(table, level):
                half = options.memory[table, level + 1]
                targets = np.flatnonzero(left >= half)
                targets = targets[targets != own]
                if len(targets) and left[own] + options.memory[table, level] >= half:
                    self._take(split.halved(part, int(self._rng.choice(targets))))
            elif action < 0.5 and level > 0 and len(mates):
                other = int(self._rng.choice(mates))
                freed = options.memory[table, level] * (1 + (split.device[other] == own))
                if left[own] + freed >= options.memory[table, level - 1]:
                    self._take(split.merged(part, other, int(own)))
            else:
                targets = np.flatnonzero(left >= options.memory[table, level])
                targets = targets[targets != own]
                if len(targets):
                    device = split.device.copy()
                    device[part] = self._rng.choice(targets)
                    self._take(split.moved(device))
