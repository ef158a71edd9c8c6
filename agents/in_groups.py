"""Plans with groups of devices, from an agent that plans for one group: how many, and where to search on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shard_gym.errors import MemoryExceededError, NoPlacementFoundError
from shard_gym.grouping import possible_groups, task_of_group
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import Groups
from shard_gym.tasks import Task

FIRST = 0.4
"""Share of a search in which all groups are tried; the cheapest half of them share as much of the rest, and so on."""


def cheapest_in_groups(task: Task, plan: Callable[[Task, float], tuple[float, ShardingPlan]]) -> ShardingPlan:
    """The cheapest plan found for any groups of the devices of `task`.

    All possible groups are searched for an equal share of `FIRST`, the cheaper half of them for an equal share of
    `FIRST` of the rest, and so on; all that is left is the best one's.

    Args:
        plan: the cost in ms, and a plan, of the task of a group, found with a share of the whole search.

    Raises:
        NoPlacementFoundError: none was found that fits.
    """
    found: dict[Groups, tuple[float, ShardingPlan]] = {}
    groups, left, failure = list(possible_groups(task)), 1.0, None
    while groups:
        share = left if len(groups) == 1 else FIRST * left / len(groups)
        for each in groups:
            own = task_of_group(task, each)
            try:
                cost, answer = plan(own, share)
            except (NoPlacementFoundError, MemoryExceededError) as error:
                failure = error
                continue
            if each not in found or cost < found[each][0]:
                found[each] = cost, replace(answer, groups=each)
        left -= share * len(groups)
        ranked = sorted((each for each in groups if each in found), key=lambda each: found[each][0])
        groups = ranked[: len(groups) // 2]
    if not found:
        raise failure or NoPlacementFoundError(f"No groups of the devices of task {task.name!r} hold its tables.")
    return min(found.values(), key=lambda each: each[0])[1]
