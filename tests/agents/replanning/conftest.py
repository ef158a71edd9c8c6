"""Episodes that the tests of several agents play: lookups that drift, devices that leave, tables that grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.levels import STRONG
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replanning.episode_data import episode_data
from shard_gym.envs.replanning.plan_table import PlanTable


@pytest.fixture(scope="session")
def drifting(drift_task: Callable[..., DriftTask]) -> list[DriftTask]:
    """Tasks of three devices, on one of which plans are worth 20 s now and then."""
    spot = replace(STRONG, departures=1.0)
    return [
        drift_task(tables=5, devices=3, level=(STRONG, spot)[seed % 2], seed=seed, pause_s=20.0) for seed in range(4)
    ]


@pytest.fixture(scope="session")
def tables(drifting: list[DriftTask]) -> list[PlanTable]:
    """The plans of these tasks."""
    model = make_sharding_cost_model("analytical")
    return [PlanTable.of(episode_data(task, model)) for task in drifting]
