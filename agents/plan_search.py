"""Local search over sharding plans: moves and swaps of shards, halving, merging, and tables on many devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import MAX_QUERIES, Agent, task_rng
from shard_gym.agents.neighbourhood import NO_TABLE, Costs, Neighbourhood
from shard_gym.agents.plan_starts import starts
from shard_gym.agents.search import BATCH, MIN_GAIN_MS, Budget, Search
from shard_gym.agents.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.checks import checked_count, checked_positive, checked_seed
from shard_gym.cost_models import CostModel, make_sharding_cost_model
from shard_gym.cost_models.base import IntArray
from shard_gym.cost_models.counted import CountedShardingModel
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.sharding.variants import checked_max_shards, checked_sharding_types
from shard_gym.tasks import Task

SHARE_OF_STARTS, SHARE_OF_ROUND = 0.3, 0.15
"""Shares of the evaluations: after the first no start is made, the second is for each round of descents. Half of the
plans that descend are left after a round, so a start that is not the cheapest may win."""

PERTURBED = (2, 5)  # random changes of a perturbation: from the first to before the second number


class PlanSearchAgent(Agent):
    """Descent over sharding plans from greedily split starts, then from random perturbations of the cheapest plan.

    Moves and swaps of shards lead to a local optimum. Then the change that lowers the cost most is made: halving a part
    of a table, merging two halves, spreading a table over many devices, or gathering it; and so on until none does.

    Args:
        cost_model: the model to search under, or its name; a `ShardingCostModel`.
        sharding_types: those allowed, a list or names with commas between them.
        max_shards: column shards of a table at most, a power of two.
        max_queries: cost-model evaluations for each task, at most ten million; exceeded by one batch at most, or by the
            first start.
        max_seconds: wall-clock limit for each task after its starts, which take longer for many tables; None for no
            limit. With a limit, results depend on the machine.
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
        max_queries: int = 200_000,
        max_seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        self.cost_model = CountedShardingModel(make_sharding_cost_model(cost_model))
        self.sharding_types = checked_sharding_types(sharding_types)
        self.max_shards = checked_max_shards(max_shards)
        self.max_queries = checked_count("max_queries", max_queries, most=MAX_QUERIES)
        if max_seconds is not None:
            checked_positive("max_seconds", max_seconds)
        self.max_seconds = max_seconds
        self.seed = checked_seed(seed)

    @property
    @override
    def search_budget(self) -> int:
        return self.max_queries

    @override
    def true_cost_queries(self, fingerprint: str) -> int:
        return self.cost_model.queries if self.cost_model.fingerprint == fingerprint else 0

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        return self._search(task, (TABLE_WISE,)).device

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self.split(task).plan()

    def split(self, task: Task) -> SplitTables:
        """The parts of the plan, as the search has them; raises the error of `plan`."""
        return self._search(task, self.sharding_types)

    def _search(self, task: Task, sharding_types: tuple[str, ...]) -> SplitTables:
        options = SplitOptions(task, self.cost_model, sharding_types, self.max_shards)
        budget = Budget(self.cost_model, self.max_queries, self.max_seconds)
        rng = task_rng(self.seed, task)
        found = {start.key: start for start in starts(options, lambda: budget.share > SHARE_OF_STARTS)}
        searches = [_PlanSearch(start, rng, budget) for start in found.values()]
        if not searches:
            raise NoPlacementFoundError(
                f"No plan of task {task.name!r} was found that fits the memory of its devices. Allow more sharding "
                "types or shards (sharding_types, max_shards)."
            )
        while len(searches) > 1 and not budget.spent():
            for search in searches:
                search.descend(budget.share + SHARE_OF_ROUND / len(searches))
            searches.sort(key=lambda each: each.best_cost)
            searches = searches[: len(searches) // 2]
        searches[0].run()
        return searches[0].best


_Spreading = tuple[Callable[[], np.ndarray], Callable[[], SplitTables]]
"""Makes the (D, K) loads of the devices after a change, and the plan."""


_Change = tuple[float, Callable[[], SplitTables]]  # the smoothed cost of a plan that may come next, and what makes it


class _PlanSearch:
    """One search over the plans of a task; `best` is the cheapest plan found, `best_cost` its cost."""

    def __init__(self, start: SplitTables, rng: np.random.Generator, budget: Budget) -> None:
        self._rng, self._budget, self._until = rng, budget, 1.0
        self._take(start)
        self.best, self.best_cost = start, float(self._current.costs.exact)

    def run(self) -> None:
        """Descend; then perturb, descend, and return if nothing better was found, until the budget is spent."""
        self.descend()
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

    def _spent(self) -> bool:
        return self._budget.spent() or self._budget.share >= self._until

    def descend(self, until: float = 1.0) -> None:
        """Apply changes that lower the smoothed cost until none does, or until that share of the budget is spent."""
        self._until = until
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
            smoothed, apply = min(changes(), key=lambda change: change[0], default=(np.inf, None))
            if apply is not None and smoothed < self._current.costs.smoothed - MIN_GAIN_MS:
                self._take(apply())
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
        yield float(smoothed[which]), lambda: apply(which)

    def _of_spreads(self) -> Iterator[_Change]:
        """Every way to spread a table with a part on a critical device, and to gather a spread one."""
        options = self._split.options
        if not options.spreads:
            return
        changes = [*self._ways_to_spread(), *self._ways_to_gather()]
        smoothed = []
        for first in range(0, len(changes), BATCH):
            if first and self._spent():
                break
            loads = np.stack([after() for after, _ in changes[first : first + BATCH]])
            smoothed.append(Costs.of(*options.model.costs(loads, options.cluster)).smoothed)
        if smoothed:
            costs = np.concatenate(smoothed)
            which = int(costs.argmin())
            yield float(costs[which]), changes[which][1]

    def _ways_to_spread(self) -> Iterator[_Spreading]:
        split, options = self._split, self._split.options
        for table in np.unique(split.table[self._current.critical_tables()]).tolist():
            held, left = _without(split, table)
            for number, (_, variant, devices, *_) in enumerate(options.spreads):
                if options.legal[table, variant] and (left[devices] >= options.memory[table, variant]).all():
                    after = partial(_joined, options, held, devices, options.loads[table, variant])
                    yield after, partial(split.spread_over, table, number)

    def _ways_to_gather(self) -> Iterator[_Spreading]:
        split, options = self._split, self._split.options
        for table in np.flatnonzero(split.spread != NOT_SPREAD).tolist():
            held, left = _without(split, table)
            for device in np.flatnonzero(left >= options.memory[table, 0]).tolist():
                after = partial(_joined, options, held, np.array([device]), options.loads[table, 0])
                yield after, partial(split.gathered, table, device)

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


def _without(split: SplitTables, table: int) -> tuple[np.ndarray, IntArray]:
    """(D, K) loads of the devices without `table`, and the (D,) bytes that they then have free."""
    rest = split.spread_over(table, NOT_SPREAD)
    items = rest.items()
    return items.device_loads(rest.device), items.memory_left(rest.device)


def _joined(options: SplitOptions, held: np.ndarray, devices: IntArray, added: np.ndarray) -> np.ndarray:
    """(D, K) loads `held` by the devices, with (K,) loads `added` to each of `devices`."""
    after = held.copy()
    after[devices] = options.model.add(held[devices], added)
    return after
