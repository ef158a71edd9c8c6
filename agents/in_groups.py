"""Plans with groups of devices, from an agent that plans for one group: how many, and where to search on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shard_gym.errors import MemoryExceededError, NoPlacementFoundError
from shard_gym.grouping import possible_groups, task_of_group
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import ONE_GROUP, Groups
from shard_gym.tasks import Task

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
