"""`MoldableAgent`: the rule of `moldable.py` as an agent, which finds a plan wherever a search does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent, require_whole
from shard_gym.agents.search.descent import Budget
from shard_gym.agents.search.heuristics import lane_placements
from shard_gym.agents.search.memories import in_both_memories
from shard_gym.agents.search.moldable import moldable_splits
from shard_gym.agents.search.own_times import OwnTimes
from shard_gym.agents.search.plan_starts import packed, starts
from shard_gym.agents.search.search_plans import SHARE_OF_STARTS, search_plans
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.common.errors import MemoryExceededError, NoPlacementFoundError
from shard_gym.cost_models import CountedCostModel
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tasks import Task
from shard_gym.tasks.groups import may_have_groups, possible_groups, task_of_group

QUERIES = 20_000  # evaluations of `OwnTimes` where the rule finds no plan


class MoldableAgent(Agent):
    """Chooses the form of each table for a target time, and places the parts, the longest first; see `moldable.py`.

    It asks no cost model: the plan is that which its own arithmetic, on the numbers of the hardware profile, calls
    cheapest. Where all its plans need too much memory, a short search under that arithmetic finds one.
    """

    name = "moldable"
    estimates = True

    def place(self, task: Task) -> Placement:
        """Whole tables: by the same arithmetic the cheapest placement of the rule, or of those of `lane-greedy`."""
        require_whole(task)
        splits = moldable_splits(task, sharding_types=(TABLE_WISE,), max_shards=1)
        found = [(cost, split.in_order().placement) for cost, split in splits[:1]]
        model, cluster = OwnTimes(task.tables, task.topology), task.topology.cluster()
        loads = model.loads(task.tables, task.topology)
        try:
            lanes = [placement for _, placement in lane_placements(task)]
        except NoPlacementFoundError:
            lanes = []
            if not found and (searched := _searched(task, False, (TABLE_WISE,), 1)):
                found = [(searched[0], searched[1].in_order().placement)]
            if not found:
                raise
        for placement in lanes:
            held = model.reduce(loads, placement, task.num_devices)
            found.append((float(model.costs(held, cluster)[1]), placement))
        return min(found, key=lambda each: each[0])[1]

    @override
    def plan(self, task: Task) -> ShardingPlan:
        """The cheapest plan for any groups of devices that the task may have."""
        return cheapest_plan(task, _cheapest)


def cheapest_plan(task: Task, cheapest: Callable[[Task], tuple[float, SplitTables]]) -> ShardingPlan:
    """The plan of a task, for any groups of devices that it may have, with room in HBM and in host memory.

    Args:
        task: which may have groups.
        cheapest: the ms and the plan of a task of one group.

    Raises:
        NoPlacementFoundError, MemoryExceededError: `cheapest` raised it, for all groups.
    """
    if not may_have_groups(task):
        return in_both_memories(task, lambda own: cheapest(own)[1]).plan()
    found: list[tuple[float, ShardingPlan]] = []
    failure: Exception | None = None
    for groups in possible_groups(task):
        try:
            cost, split = cheapest(task_of_group(task, groups))
        except (NoPlacementFoundError, MemoryExceededError) as error:
            failure = error
            continue
        found.append((cost, replace(split.plan(), groups=groups)))
    if not found:
        assert failure is not None  # one group, at least, was tried
        raise failure
    return min(found, key=lambda each: each[0])[1]


def _cheapest(task: Task) -> tuple[float, SplitTables]:
    """The cheapest plan of the rule and its estimate in ms; where it has none, a start that fits, improved under it."""
    if found := moldable_splits(task):
        return found[0]
    for every_count in (False, True):
        if searched := _searched(task, every_count):
            return searched
    raise NoPlacementFoundError(
        f"Agent 'moldable' found no plan of task {task.name!r} that fits the memory of its devices"
        + " and keeps to its constraints" * (task.constraints is not None)
        + ". Raise the caps of the devices"
        + ", or relax the constraints" * (task.constraints is not None)
        + "."
    )


def _searched(
    task: Task, every_count: bool, sharding_types: tuple[str, ...] = SHARDING_TYPES, max_shards: int | None = None
) -> tuple[float, SplitTables] | None:
    """The estimate in ms, and the plan, that a short search under it finds; None if it finds none."""
    model = CountedCostModel(OwnTimes(task.tables, task.topology))
    options, budget = SplitOptions(task, model, sharding_types, max_shards, every_count), Budget(model, QUERIES)
    found = list(starts(options, QUERIES // 2, lambda: budget.share > SHARE_OF_STARTS))
    if not found and (every_count or max_shards == 1):  # the last try
        found = packed(options)
    if not found:
        return None
    best = search_plans(found, np.random.default_rng(0), budget)
    return best.items().cost_ms(best.device), best
