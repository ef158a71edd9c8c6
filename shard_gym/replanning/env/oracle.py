"""The best sequence of actions of an episode, with hindsight: a dynamic program over all plans that can be made."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shard_gym.common.arrays import IntArray
from shard_gym.hardware import Topology
from shard_gym.plans.migration import migration_seconds
from shard_gym.replanning.env.plan_table import NO_PLAN, PlanTable
from shard_gym.replanning.env.windows import HOURS, LAST_HOUR


class BestSequence(NamedTuple):
    """The best (decisions,) int64 actions of an episode, and the seconds that it then takes."""

    seconds: float
    actions: IntArray


def best_sequence(table: PlanTable, topology: Topology, pause_s: float) -> BestSequence:
    """The sequence of actions that takes the least time, where each plan takes a pause of `pause_s`.

    Takes about a second. The state is the plan in action. From the last decision back, each plan gets the seconds that
    are left if it is in action and all that follows is best.
    """
    count, decisions = table.seconds.shape
    left, choices = np.zeros(count), np.zeros((decisions, count), np.int64)
    for decision in reversed(range(decisions)):
        bytes_of, number = table.bytes_of[decision // HOURS], table.number[decision]
        there = slice(int(table.number[: decision + 1].max()) + 1)  # plans are numbered as they can first be made
        takes = np.full((1 + len(number), count), np.inf)
        for kind, plan in enumerate(number.tolist()):
            if plan != NO_PLAN:
                moved = migration_seconds(table.where[there], table.where[plan], bytes_of, topology)
                takes[1 + kind, there] = pause_s + moved + table.seconds[plan, decision] + left[plan]
        kept = table.seconds[:, decision] + left
        takes[0] = np.where(np.isnan(kept), takes[1 + LAST_HOUR], kept)  # a plan that cannot run is repaired
        choices[decision], left = takes.argmin(axis=0), takes.min(axis=0)
    actions, plan = np.empty(decisions, np.int64), 0
    for decision in range(decisions):
        action = actions[decision] = choices[decision, plan]
        if action or np.isnan(table.seconds[plan, decision]):
            plan = int(table.number[decision, max(action - 1, LAST_HOUR)])
    return BestSequence(float(left[0]), actions)
