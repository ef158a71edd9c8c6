"""`PlanSearchAgent`: a search over sharding plans, in runs that grow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.search.descent import Budget
from shard_gym.agents.search.memories import in_both_memories
from shard_gym.agents.search.plan_starts import by_rule, packed, starts
from shard_gym.agents.search.search_plans import SHARE_OF_STARTS, search_plans
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.common.checks import checked_count, checked_positive, checked_seed
from shard_gym.common.errors import MemoryExceededError, NoPlacementFoundError
from shard_gym.cost_models import CostModel, CountedCostModel, make_cost_model
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.column_levels import UNIT
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import COLUMN_WISE, ONE_GROUP, TABLE_WISE, Groups
from shard_gym.plans.variants import MAX_SHARDS, checked_max_shards, checked_sharding_types, default_max_shards
from shard_gym.tasks import Task
from shard_gym.tasks.groups import may_have_groups, possible_groups, task_of_group

FINALISTS = 2
"""Numbers of groups, above one, that are searched to the end."""

SEARCHES = 2 + FINALISTS
"""Whole searches that a task with groups takes."""


def cheapest_in_groups(
    task: Task, plan: Callable[[Task, float], tuple[float, ShardingPlan]]
) -> tuple[float, ShardingPlan]:
    """The cost in ms of the cheapest plan found for any groups of the devices of `task`, and the plan.

    One group is searched to the end. All other possible groups share a search as long; the `FINALISTS` whose plans
    then cost least get a whole one each.

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
    return min(found.values(), key=lambda each: each[0])


DEFAULT_QUERIES, MORE_QUERIES = 200_000, 800_000
FEW_DEVICES, MORE_DEVICES, MOST_DEVICES = 8, 16, 768
"""Evaluations for a task on up to the first number of devices, and from the second on; between them in proportion. Each
takes a time in proportion to the devices, so above the third number there are fewer, and all take about as long."""

LONGER = 8
"""Runs end when the evaluations of the default were made, or a power of this number times as many or as few. So with
the default the last run has seven eighths of them."""

LEAST = 4  # evaluations for each table that the first run has

PER_PAIR = 1_500  # evaluations for each pair of tables: more bring nothing new where tables are few,
FEW = 20_000  # but so many may be made of any task

Found = TypeVar("Found")


class Ended(IntEnum):
    """What ended a search."""

    NOTHING_NEW = 0  #: all plans in reach are known
    FEW_TABLES = 1  #: it made as many evaluations as a task of so many tables takes
    BUDGET = 2  #: it made as many as its options allow; more may find a cheaper plan


def default_queries(num_devices: int) -> int:
    """Evaluations for a task on so many devices, if no option says how many.

    An evaluation takes a time in proportion to the devices, and the starts one in proportion to tables times devices.
    """
    share = (num_devices - FEW_DEVICES) / (MORE_DEVICES - FEW_DEVICES)
    queries = DEFAULT_QUERIES + min(max(share, 0.0), 1.0) * (MORE_QUERIES - DEFAULT_QUERIES)
    return int(queries * min(1.0, MOST_DEVICES / num_devices))


def run_ends(default: int, least: int, most: int) -> Iterator[int]:
    """How many evaluations have been made when each run ends, the first at `least`; the same for any `most`."""
    for power in count(-8):
        end = int(default * float(LONGER) ** power)
        if end >= least:
            yield end
            if end >= most:
                return


class _Known(NamedTuple):
    """What a search knows after a run."""

    options: SplitOptions
    by_rule: list[SplitTables]
    best: SplitTables


@dataclass
class SearchRun:
    """One run of a search: its evaluations and what it knows from shorter ones."""

    number: int
    queries: int  # for one search; of several searches a share of them each
    total: Budget  # of all runs
    known: dict[Any, _Known]  # by search
    ends_by_itself: bool = True  # no search of it used its evaluations up
    searches: Iterator[int] = field(default_factory=count)  # numbers of its searches, the same in each run


class PlanSearchAgent(Agent):
    """Search over sharding plans from split starts, among them those of the rule `moldable` (see `search_plans`).

    The search is run with a few evaluations, then with eight times as many, and so on, each time with other random
    numbers and with the best plan so far as a further start; the cheapest plan of all counts. What a run does does not
    depend on the evaluations in all, so more of them never find a dearer plan.

    A start takes T D evaluations for T parts on D devices; where that is more than a share of the budget, and on many
    devices, only the least busy devices are tried for a part. A rebuild takes about D for each part that it takes out
    and each plan.

    Args:
        cost_model: the model to search under, or its name; it supports splits.
        sharding_types: those allowed, a list or names with commas between them.
        max_shards: column shards of a table at most, a power of two; None for 8, or 32 where the largest table needs
            more memory than 8 devices have. Above 8 half as many are searched first. Columns are halved, or cut into
            nearly equal parts where they cannot be (`shard_gym.plans.column_levels`), or where no start fits otherwise.
        max_queries: cost-model evaluations for each task, at most ten million; None for 200,000 on up to 8 devices,
            800,000 on 16 to 768, in between in proportion, and fewer on more (`default_queries`). Tasks of T tables
            take 1,500 T T at most, or 20,000 if that is more. They are exceeded by one batch at most, or by the starts
            of the run in which they end, which may be half of them; the starts of the first run, some evaluations for
            each table, are made whatever they are. Where a plan may have groups of devices, four
            searches share them, or 800,000 by default (`cheapest_in_groups`).
        max_seconds: wall-clock limit for each task after its starts, which take longer for many tables; None for no
            limit. With a limit, results depend on the machine.
        seed: of the order in which changes are tried, and of the perturbations. Equal seeds give equal plans.

    Attributes:
        ended: what ended the search for the last task.

    Raises:
        InvalidOptionError, UnknownNameError: an option is not valid, or the model does not cost sharded tables.
    """

    name = "plan-search"

    def __init__(
        self,
        cost_model: str | CostModel = "analytical",
        sharding_types: Collection[str] = SHARDING_TYPES,
        max_shards: int | None = None,
        max_queries: int | None = None,
        max_seconds: float | None = None,
        seed: int = 0,
    ) -> None:
        self.cost_model = CountedCostModel(make_cost_model(cost_model, additive=True, splits=True))
        self._of_replicas: CountedCostModel | None = None
        self.sharding_types = checked_sharding_types(sharding_types)
        self.max_shards = None if max_shards is None else checked_max_shards(max_shards)
        if max_queries is not None:
            checked_count("max_queries", max_queries, most=MAX_QUERIES)
        self.max_queries = max_queries
        if max_seconds is not None:
            checked_positive("max_seconds", max_seconds)
        self.max_seconds = max_seconds
        self.seed = checked_seed(seed)
        self.ended = Ended.NOTHING_NEW

    @property
    @override
    def search_budget(self) -> int:
        """Evaluations for a task on a few devices; see `budget_for`."""
        return self.max_queries or DEFAULT_QUERIES

    @property
    def queries(self) -> int:
        """Evaluations so far, of all models."""
        return self.cost_model.queries + (0 if self._of_replicas is None else self._of_replicas.queries)

    @override
    def true_cost_queries(self, fingerprint: str) -> int:
        return self.queries if self.cost_model.fingerprint == fingerprint else 0

    @override
    def budget_for(self, task: Task) -> int:
        """Evaluations for `task`, of all searches, if it has no fewer tables than need so many."""
        return self.max_queries or self._default(task) * (SEARCHES if may_have_groups(task) else 1)

    def _default(self, task: Task) -> int:
        """Of each search."""
        return DEFAULT_QUERIES if may_have_groups(task) else default_queries(task.num_devices)

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        return self._split(task, (TABLE_WISE,)).placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        """Where the task may have groups, those whose plans cost least when searched for a while are searched on."""
        if not may_have_groups(task):
            return self.split(task).plan()
        return self._cheapest(task, lambda run: cheapest_in_groups(task, partial(self._plan_in_groups, run)), SEARCHES)

    def split(self, task: Task) -> SplitTables:
        """The parts of the plan, as the search has them; raises the error of `plan`."""
        return self._split(task, self.sharding_types)

    def _split(self, task: Task, sharding_types: tuple[str, ...]) -> SplitTables:
        def once(run: SearchRun) -> tuple[float, SplitTables]:
            found = in_both_memories(
                task, lambda own: self._search(own, sharding_types, self.cost_model, run, next(run.searches))
            )
            return found.items().cost_ms(found.device), found

        return self._cheapest(task, once)

    def _cheapest(self, task: Task, once: Callable[[SearchRun], tuple[float, Found]], searches: int = 1) -> Found:
        """The cheapest that `once` finds in any run.

        A run that finds nothing does not end the search: a longer one has more starts. If none finds anything, the
        error of the first is raised.
        """
        few = max(FEW, PER_PAIR * task.num_tables**2)
        wanted = max(1, self.budget_for(task) // searches)  # of each search
        most = min(wanted, few)
        total = Budget(self, searches * most, self.max_seconds)
        before, known = 0, dict[Any, _Known]()
        best: tuple[float, Found] | None = None
        failure: NoPlacementFoundError | MemoryExceededError | None = None
        for number, end in enumerate(run_ends(self._default(task), LEAST * task.num_tables, most)):
            run, before = SearchRun(number, end - before, total, known), end
            try:
                cost, found = once(run)
            except (NoPlacementFoundError, MemoryExceededError) as error:
                failure = failure or error
            else:
                if best is None or cost < best[0]:
                    best = cost, found
                if run.ends_by_itself:
                    break
            if total.share >= 1.0:
                break
        if best is None:
            assert failure is not None  # there is a run
            raise failure
        self.ended = Ended.NOTHING_NEW
        if total.share >= 1.0:
            few_tables = wanted > few and self.max_seconds is None
            self.ended = Ended.FEW_TABLES if few_tables else Ended.BUDGET
        return best[1]

    def _plan_in_groups(self, run: SearchRun, task: Task, share: float) -> tuple[float, ShardingPlan]:
        """The plan of one of the groups, and its cost, for a share of the evaluations."""
        model = self.cost_model
        if task.topology.replicas is not None:
            self._of_replicas = model = self._of_replicas or CountedCostModel(model_of(task.topology, model.model))
        key = task.num_devices, task.topology.replicas
        plan = self._search(task, self.sharding_types, model, run, key, share).plan()
        return model.estimate(plan, task.tables, task.topology).total_ms, plan

    def _seen(self, task: Task) -> Task:
        """The task as the search sees it."""
        return task

    def _search(
        self,
        task: Task,
        sharding_types: tuple[str, ...],
        model: CountedCostModel,
        run: SearchRun,
        key: Any,
        share: float = 1.0,
    ) -> SplitTables:
        """The best plan of a run. Where tables may have more than `MAX_SHARDS` column shards, half of the search is one
        with half as many, from whose plan the other half starts: parts as narrow as the rule makes them are hardly ever
        merged, and to halve parts is easy.
        """
        task = self._seen(task)
        most = self.max_shards or default_max_shards(task.tables, int(task.topology.memory_cap_bytes.max()))
        if most <= MAX_SHARDS or COLUMN_WISE not in sharding_types:
            return self._search_with(most, task, sharding_types, model, run, key, share)
        coarse = list[ShardingPlan]()
        with suppress(NoPlacementFoundError, MemoryExceededError):
            found = self._search_with(most // 2, task, sharding_types, model, run, (key, most // 2), share / 2)
            coarse.append(found.plan())
        return self._search_with(most, task, sharding_types, model, run, key, share / 2, coarse)

    def _search_with(
        self,
        max_shards: int,
        task: Task,
        sharding_types: tuple[str, ...],
        model: CountedCostModel,
        run: SearchRun,
        key: Any,
        share: float,
        given: Collection[ShardingPlan] = (),
    ) -> SplitTables:
        """The best plan with so many column shards of a table at most, from starts among which are those `given`."""
        max_queries = max(1, int(share * run.queries))
        budget = Budget(self, max_queries, within=run.total)
        most = max(1, int(SHARE_OF_STARTS * max_queries))
        known = run.known.get(key)
        options = SplitOptions(task, model, sharding_types, max_shards) if known is None else known.options
        ruled = by_rule(options) if known is None else known.by_rule
        before = [] if known is None else [known.best]
        before += [same for plan in given if (same := SplitTables.of_plan(options, plan)) is not None]
        found = _starts(options, most, budget, [*before, *ruled])
        # Parts that are no halves may fit. Groups of so few devices that halves do not fit are left out.
        if not found and COLUMN_WISE in sharding_types and task.topology.replicas is None:
            options = SplitOptions(task, model, sharding_types, max_shards, every_count=True)
            ruled = by_rule(options)
            found = _starts(options, most, budget, ruled)
        found = found or packed(options)
        if not found:
            _require_forms(options, sharding_types)
            raise NoPlacementFoundError(
                f"No plan of task {task.name!r} was found that fits the memory of its devices "
                + "and keeps to its constraints " * (task.constraints is not None)
                + f"with {', '.join(sharding_types)} and at most {options.max_shards} shards of a table. "
                + _ways_out(task, sharding_types, options.max_shards)
            )
        best = search_plans(found, task_rng(self.seed, task, run.number), budget)
        run.known[key] = _Known(options, ruled, best)
        run.ends_by_itself &= budget.share < 1.0
        return best.in_order()


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


def _starts(options: SplitOptions, most_queries: int, budget: Budget, given: list[SplitTables]) -> list[SplitTables]:
    """The starts that differ, those that are given first."""
    found = [*given, *starts(options, most_queries, lambda: budget.share > SHARE_OF_STARTS)]
    return list({start.key: start for start in found}.values())


def _ways_out(task: Task, sharding_types: tuple[str, ...], max_shards: int) -> str:
    """What could make a plan fit, a sentence."""
    ways = ["Raise the caps of the devices"] + ["relax the constraints"] * (task.constraints is not None)
    if COLUMN_WISE in sharding_types and (task.tables.embedding_dim // UNIT > max_shards).any():
        ways.append("allow more shards of a table (max_shards)")
    if others := [name for name in SHARDING_TYPES if name not in sharding_types]:
        ways.append(f"allow other sharding types ({', '.join(others)})")
    return f"{', or '.join(ways)}."
