"""Plans with groups of devices, from an agent that plans for one group: how many, and where to search on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shard_gym.errors import MemoryExceededError, NoPlacementFoundError
from shard_gym.grouping import possible_groups, task_of_group
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import Groups
from shard_gym.tasks import Task

FINALISTS = 2
"""Groups that are searched to the end."""


def cheapest_in_groups(task: Task, plan: Callable[[Task, float], tuple[float, ShardingPlan]]) -> ShardingPlan:
    """The cheapest plan found for any groups of the devices of `task`.

    All possible groups share one search, as long as that of a task without groups; the `FINALISTS` whose plans then
    cost least get a whole one each.

    Args:
        plan: the cost in ms, and a plan, of the task of a group, found with this share of a whole search.

    Raises:
        NoPlacementFoundError: none was found that fits.
    """
    found: dict[Groups, tuple[float, ShardingPlan]] = {}
    everyone, failure = list(possible_groups(task)), None

    def search(groups: Groups, share: float) -> None:
        nonlocal failure
        try:
            cost, answer = plan(task_of_group(task, groups), share)
        except (NoPlacementFoundError, MemoryExceededError) as error:
            failure = error
            return
        if groups not in found or cost < found[groups][0]:
            found[groups] = cost, replace(answer, groups=groups)

    for groups in everyone if len(everyone) > 1 else ():
        search(groups, 1.0 / len(everyone))
    for groups in sorted(found, key=lambda each: found[each][0])[:FINALISTS] or everyone:
        search(groups, 1.0)
    if not found:
        raise failure or NoPlacementFoundError(f"No groups of the devices of task {task.name!r} hold its tables.")
    return min(found.values(), key=lambda each: each[0])[1]
