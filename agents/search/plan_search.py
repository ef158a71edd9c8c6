"""`PlanSearchAgent`, and `search_plans`, the search of all agents that search under a cost model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import IntEnum

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.search.descent import BATCH, MIN_GAIN_MS, Budget, Descent
from shard_gym.agents.search.memories import in_both_memories
from shard_gym.agents.search.plan_starts import MANY_DEVICES, starts
from shard_gym.agents.search.pairs import PairSearch
from shard_gym.agents.search.rebuild import Rebuilder
from shard_gym.agents.search.reforms import SHARP, Reformer
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.common.checks import checked_count, checked_positive, checked_seed
from shard_gym.common.errors import MemoryExceededError, NoPlacementFoundError
from shard_gym.cost_models import CostModel, CountedCostModel, make_cost_model
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.column_levels import UNIT
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import COLUMN_WISE, ONE_GROUP, TABLE_WISE, Groups
from shard_gym.plans.variants import checked_max_shards, checked_sharding_types
from shard_gym.tasks import Task
from shard_gym.tasks.groups import possible_groups, task_of_group

FINALISTS = 2
"""Numbers of groups, above one, that are searched to the end."""

SEARCHES = 2 + FINALISTS
"""Whole searches that a task with groups takes."""


def cheapest_in_groups(task: Task, plan: Callable[[Task, float], tuple[float, ShardingPlan]]) -> ShardingPlan:
    """The cheapest plan found for any groups of the devices of `task`.

    One group is searched to the end, as in a task without groups, so the plan is no worse than there. All other
    possible groups share a search as long; the `FINALISTS` whose plans then cost least get a whole one each.

    Args:
        plan: the cost in ms, and a plan, of the task of a group, found with this share of a whole search.

    Raises:
        NoPlacementFoundError: none was found that fits.
    """
    found: dict[Groups, tuple[float, ShardingPlan]] = {}
    several = [groups for groups in possible_groups(task) if groups != ONE_GROUP]
    failure: NoPlacementFoundError | MemoryExceededError | None = None

    def search(groups: Groups, share: float) -> None:
        nonlocal failure
        try:
            cost, answer = plan(task_of_group(task, groups), share)
        except (NoPlacementFoundError, MemoryExceededError) as error:
            failure = error
            return
        if groups not in found or cost < found[groups][0]:
            found[groups] = cost, replace(answer, groups=groups)

    for groups in several:
        search(groups, 1.0 / len(several))
    for groups in [ONE_GROUP, *sorted(found, key=lambda each: found[each][0])[:FINALISTS]]:
        search(groups, 1.0)
    if not found:
        assert failure is not None  # one group, at least, was searched
        raise failure
    return min(found.values(), key=lambda each: each[0])[1]


SHARE_OF_STARTS, SHARE_OF_ROUND, SHARE_OF_REBUILDING = 0.5, 0.08, 0.01
"""Shares of the evaluations: after the first no start is made, the second is for each round of starts, the third for
rebuilding between two descents. Half of the plans are left after a round, so a start that is not the cheapest may win.
"""

TRIED_AT_PRICES = 6
MAX_STARTS = 16  # the cheapest of them are taken
ACCEPTED = 0.002  # the share by which a rebuilt plan may cost more and be taken, at first, on average; it falls to 0
MAX_FRUITLESS = 50  # rebuilds in a row in which no plan has a new cost: then all plans in reach are known
PER_PAIR = 1_500  # evaluations for each pair of tables: more bring nothing new where tables are few,
FEW = 20_000  # but so many may be made of any task
DIGITS = 9  # after which equal costs differ by rounding


class Ended(IntEnum):
    """What ended a search."""

    NOTHING_NEW = 0  #: all plans in reach are known
    FEW_TABLES = 1  #: it made as many evaluations as a task of so many tables takes
    BUDGET = 2  #: it made as many as its options allow; more may find a cheaper plan


def search_plans(
    found: Iterable[SplitTables], rng: np.random.Generator, budget: Budget, batch: int = BATCH
) -> SplitTables:
    """The cheapest plan found by rebuilding and descents from the plans `found`, one at least.

    The cheapest starts are rebuilt in rounds, and the cheaper half stays in. The last one descends; then it is
    perturbed or rebuilt and descends again, over and over, and what does not cost more is kept. The search ends when
    the budget is spent, or when rebuilding brings nothing new. With a `batch` of 1, for costs that take long, no plan
    is rebuilt, because that asks for the costs of parts of plans, and the cheapest start alone descends.
    """
    searches: list[_Search] = []
    for start in found:
        if not searches or batch > 1 or not budget.spent():
            searches.append(_Search(start, rng, budget, batch))
    searches.sort(key=lambda search: search.best_cost)
    searches = searches[: MAX_STARTS if batch > 1 else 1]
    while len(searches) > 1 and not budget.spent():
        for search in searches:
            search.improve(budget.share + SHARE_OF_ROUND / len(searches))
        searches.sort(key=lambda search: search.best_cost)
        searches = searches[: len(searches) // 2]
    searches[0].run()
    return searches[0].best


class _Search(Descent):
    """A descent that goes on."""

    def __init__(self, start: SplitTables, rng: np.random.Generator, budget: Budget, batch: int) -> None:
        super().__init__(start, rng, budget, batch)
        self._rebuilds, self._seen, self._fruitless = batch > 1, set[float](), 0
        options = start.options
        self._balances = batch > 1 and options.task.num_devices >= MANY_DEVICES
        self._reformer = Reformer(options, rng) if self._balances else None
        self._norm = np.inf
        if self._balances:
            self._balance(start)

    def improve(self, until: float) -> None:
        """Rebuild the plan, or of many devices reform it, until that share of the budget is spent."""
        if self._reformer is None:
            self.rebuild(until)
        else:
            self.reform(until)

    def _balance(self, split: SplitTables) -> None:
        """Go on from `split` after moves and swaps of pairs of devices, if its sharp norm is lower then."""
        search = PairSearch(split.items(), split.device, self._rng)
        search.run(self._spent, SHARP)
        if search.best_cost < self.best_cost - MIN_GAIN_MS:
            self.keep(split.moved(search.best), search.best_cost)
        if search.norm < self._norm * (1.0 - 1e-7):
            self._norm = search.norm
            self.take(split.moved(search.placement))

    def reform(self, until: float) -> None:
        """Change the forms of many tables and balance, until that share of the budget is spent; keep what costs less."""
        assert self._reformer is not None
        self._until = until
        while not self._spent():
            split, (more, own) = self.split, self._reformer.more(self.split)
            for _ in range(TRIED_AT_PRICES):
                changed = self._reformer.changed(split, more, own)
                if changed is not None:
                    self._balance(changed)
                if self.split is not split or self._spent():
                    break

    def run(self) -> None:
        """Descend; then change the plan, descend, and return if nothing better was found, until the budget is spent."""
        if self._reformer is not None:
            self._run_many()
            return
        self.descend()
        while not self.budget.spent() and self._fruitless < MAX_FRUITLESS:
            before, cost = self.split, self.current.costs.smoothed
            if self._rebuilds and self._rng.random() < 0.5:
                self.rebuild(self.budget.share + SHARE_OF_REBUILDING)
            elif not self.perturb() and not self._rebuilds:
                return
            self.descend()
            if self.current.costs.smoothed > cost:
                self.take(before)

    def _run_many(self) -> None:
        import os
        mix = float(os.environ.get("MIX", "1"))
        seg = float(os.environ.get("SEG", ".02"))
        while not self.budget.spent():
            before, cost = self.split, self._norm
            if self._rng.random() < mix:
                self.reform(self.budget.share + seg)
                continue
            if self._rng.random() < float(os.environ.get("REB", ".5")):
                self.rebuild(self.budget.share + seg / 2)
            self.descend(self.budget.share + seg / 2)
            self._until = 1.0
            self._norm = np.inf
            self._balance(self.split)
            if self._norm > cost:
                self.take(before)
                self._norm = cost

    def rebuild(self, until: float) -> None:
        """Rebuild the plan until that share of the budget is spent; take what costs less, or little more."""
        self._until = until
        split, phases, cost = self.split, self.current.phases_ms, float(self.current.costs.smoothed)
        while not self._spent() and self._fruitless < MAX_FRUITLESS:
            rebuilt = Rebuilder(split, phases, self._rng).rebuild(lambda: self.budget.share >= 1.0)
            costs = rebuilt.costs
            lowest = int(costs.exact.argmin())
            if costs.exact[lowest] < self.best_cost - MIN_GAIN_MS:
                self.keep(rebuilt.plan(lowest), float(costs.exact[lowest]))
            new = set(map(_rounded, costs.smoothed[np.isfinite(costs.smoothed)].tolist())) - self._seen
            self._seen |= new
            self._fruitless = 0 if new else self._fruitless + 1
            best = int(costs.smoothed.argmin())
            worse = ACCEPTED * max(0.0, 1.0 - self.budget.share) * self._rng.exponential()
            if costs.smoothed[best] < cost * (1.0 + worse):
                split, cost = rebuilt.plan(best), float(costs.smoothed[best])
                options = split.options
                phases, _ = options.model.costs(split.items().device_loads(split.device), options.cluster)
        self.take(split)


def _rounded(cost: float) -> float:
    return float(f"{cost:.{DIGITS}e}")


class PlanSearchAgent(Agent):
    """Search over sharding plans from greedily split starts: rebuilding and descents (see `search_plans`).

    A start takes T D evaluations for T parts on D devices; where that is more than a share of the budget, only the
    least busy devices are tried for a part. A rebuild takes about D for each part that it takes out and each plan.

    Args:
        cost_model: the model to search under, or its name; it supports splits.
        sharding_types: those allowed, a list or names with commas between them.
        max_shards: column shards of a table at most, a power of two. Columns are halved, or cut into nearly equal parts
            where they cannot be (`shard_gym.plans.column_levels`), or where no start fits otherwise.
        max_queries: cost-model evaluations for each task, at most ten million; exceeded by one batch at most, or by the
            first start. Tasks of T tables take 1,500 T T at most, or 20,000 if that is more. Where a plan may have
            groups of devices, four times as many are made (`in_groups`).
        max_seconds: wall-clock limit for each task after its starts, which take longer for many tables; None for no
            limit. With a limit, results depend on the machine.
        seed: of the order in which changes are tried, and of the perturbations. Equal seeds give equal plans.

    Attributes:
        ended: what ended the search for the last task; of several searches, for groups, the one that stopped most.

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
        self.cost_model = CountedCostModel(make_cost_model(cost_model, additive=True, splits=True))
        self._of_replicas: CountedCostModel | None = None
        self.sharding_types = checked_sharding_types(sharding_types)
        self.max_shards = checked_max_shards(max_shards)
        self.max_queries = checked_count("max_queries", max_queries, most=MAX_QUERIES)
        if max_seconds is not None:
            checked_positive("max_seconds", max_seconds)
        self.max_seconds = max_seconds
        self.seed = checked_seed(seed)
        self.ended = Ended.NOTHING_NEW

    @property
    @override
    def search_budget(self) -> int:
        """That of a task without groups, until it has answered one with groups."""
        return self.max_queries * (1 if self._of_replicas is None else SEARCHES)

    @override
    def true_cost_queries(self, fingerprint: str) -> int:
        queries = self.cost_model.queries + (0 if self._of_replicas is None else self._of_replicas.queries)
        return queries if self.cost_model.fingerprint == fingerprint else 0

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        self.ended = Ended.NOTHING_NEW
        return in_both_memories(task, lambda own: self._search(own, (TABLE_WISE,), self.cost_model)).placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        """Where the task may have groups, those whose plans cost least when searched for a while are searched on."""
        self.ended = Ended.NOTHING_NEW
        if not task.sync_every:
            return self.split(task).plan()
        return cheapest_in_groups(task, self._plan_in_groups)

    def _plan_in_groups(self, task: Task, share: float) -> tuple[float, ShardingPlan]:
        """The plan of one of the groups, and its cost, for a share of the evaluations."""
        model = self.cost_model
        if task.topology.replicas is not None:
            self._of_replicas = model = self._of_replicas or CountedCostModel(model_of(task.topology, model.model))
        plan = self._search(task, self.sharding_types, model, share).plan()
        return model.estimate(plan, task.tables, task.topology).total_ms, plan

    def split(self, task: Task) -> SplitTables:
        """The parts of the plan, as the search has them; raises the error of `plan`."""
        return in_both_memories(task, lambda own: self._search(own, self.sharding_types, self.cost_model))

    def _search(
        self, task: Task, sharding_types: tuple[str, ...], model: CountedCostModel, share: float = 1.0
    ) -> SplitTables:
        options = SplitOptions(task, model, sharding_types, self.max_shards)
        of_tables = max(FEW, PER_PAIR * task.num_tables**2)
        max_queries = max(1, int(share * min(self.max_queries, of_tables)))
        budget = Budget(model, max_queries, None if self.max_seconds is None else share * self.max_seconds)
        most = max(1, int(SHARE_OF_STARTS * max_queries))
        found = _starts(options, most, budget)
        # Parts that are no halves may fit. Groups of so few devices that halves do not fit are left out.
        if not found and COLUMN_WISE in sharding_types and task.topology.replicas is None:
            found = _starts(SplitOptions(task, model, sharding_types, self.max_shards, every_count=True), most, budget)
        if not found:
            _require_forms(options, sharding_types)
            raise NoPlacementFoundError(
                f"No plan of task {task.name!r} was found that fits the memory of its devices "
                + "and keeps to its constraints " * (task.constraints is not None)
                + f"with {', '.join(sharding_types)} and at most {self.max_shards} shards of a table. "
                + _ways_out(task, sharding_types, self.max_shards)
            )
        best = search_plans(found, task_rng(self.seed, task), budget).in_order()
        if budget.share >= 1.0:
            few = self.max_queries > of_tables and self.max_seconds is None
            self.ended = max(self.ended, Ended.FEW_TABLES if few else Ended.BUDGET)
        return best


def _require_forms(options: SplitOptions, sharding_types: tuple[str, ...]) -> None:
    """Raise NoPlacementFoundError for a table of which constraints permit nothing that the search may make of it."""
    task = options.task
    none = ~options.levels.is_form.any(axis=1) & ~options.may_spread.any(axis=1)
    if task.constraints is not None and none.any():
        table = int(none.argmax())
        raise NoPlacementFoundError(
            f"Table {task.tables.names[table]!r} of task {task.name!r} {task.constraints.told(table)}, and this search "
            f"may make its tables {', '.join(sharding_types)} only: allow another sharding type, here or there."
        )


def _starts(options: SplitOptions, most_queries: int, budget: Budget) -> list[SplitTables]:
    """The starts that differ."""
    found = starts(options, most_queries, lambda: budget.share > SHARE_OF_STARTS)
    return list({start.key: start for start in found}.values())


def _ways_out(task: Task, sharding_types: tuple[str, ...], max_shards: int) -> str:
    """What could make a plan fit, a sentence."""
    ways = ["Raise the caps of the devices"] + ["relax the constraints"] * (task.constraints is not None)
    if COLUMN_WISE in sharding_types and (task.tables.embedding_dim // UNIT > max_shards).any():
        ways.append("allow more shards of a table (max_shards)")
    if others := [name for name in SHARDING_TYPES if name not in sharding_types]:
        ways.append(f"allow other sharding types ({', '.join(others)})")
    return f"{', or '.join(ways)}."
