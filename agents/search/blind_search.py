"""A search that does not see host memory: the baseline that says what it is worth to see it."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from shard_gym.agents.search.plan_search import PlanSearchAgent
from shard_gym.tasks import Task


class BlindSearchAgent(PlanSearchAgent):
    """The search of `plan-search` as if the memory caps of devices were all HBM.

    Its answers are scored with host memory, so each device then has its best split of rows. Without host memory it
    answers as `plan-search` does.
    """

    name = "blind-search"

    @override
    def _seen(self, task: Task) -> Task:
        return replace(task, topology=replace(task.topology, host=None))
