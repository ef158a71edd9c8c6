"""The tool that compares plans with the best known placements of the same tables."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.errors import NoPlacementFoundError
from shard_gym.sharding import ShardingPlan, plan_of_placement
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known
from shard_gym.tasks import Task

SUITE = "mixdim-4"


def test_the_best_placements_themselves_gain_nothing_and_failures_are_no_costs(
    tool: Callable[[str], ModuleType],
) -> None:
    splitting, tasks = tool("splitting"), load_suite(SUITE).tasks[:3]
    best = best_known(load_suite(SUITE), make_cost_model("analytical"))
    best_ms = [best[task.name].cost_ms for task in tasks]

    def known(task: Task) -> ShardingPlan:
        if task is tasks[1]:
            raise NoPlacementFoundError("No room.")
        return plan_of_placement(best[task.name].answer, task.tables)

    found = splitting.outcome(known, list(tasks), best_ms)
    assert found.change == pytest.approx(0.0, abs=1e-12)
    assert found.failed == 1
    assert splitting.cell(found, 3).endswith("fails on 1 of 3)")
    searched = splitting.outcome(splitting.METHODS["NeuroShard's search, true costs"], list(tasks[:1]), best_ms[:1])
    assert searched.failed == 0
