"""The problems, each in a file: what evaluations, leaderboards and commands need to know of it."""

from __future__ import annotations

from typing import Any

from shard_gym.tasks.problems.base import Answer, Attempt, Problem
from shard_gym.tasks.problems.placement import PlacementProblem
from shard_gym.tasks.problems.sharding import ShardingProblem
from shard_gym.tasks.task import SuiteTask

PROBLEMS: dict[str, Problem[Any]] = {each.name: each for each in (PlacementProblem(), ShardingProblem())}
"""By name; a task says which is its own. `shard_gym.replanning` adds its own."""


def problem_of(task: SuiteTask) -> Problem[Any]:
    """The problem of a task."""
    return PROBLEMS[task.problem]


__all__ = ["PROBLEMS", "Answer", "Attempt", "Problem", "problem_of"]
