"""Episodes that the tests of several agents play, with drift, devices that leave and growth; and views of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.replanning import DriftTask
from shard_gym.replanning.agents.base import View
from shard_gym.replanning.drift.levels import STRONG
from shard_gym.replanning.env.episode_data import episode_data
from shard_gym.replanning.env.plan_table import PlanTable
from shard_gym.replanning.env.windows import WINDOWS


@pytest.fixture(scope="session")
def drifting(drift_task: Callable[..., DriftTask]) -> list[DriftTask]:
    """Tasks of three devices, on one of which plans are worth 20 s now and then."""
    spot = replace(STRONG, departures=1.0)
    return [drift_task(tables=5, devices=3, level=(STRONG, spot)[seed], seed=seed, pause_s=20.0) for seed in range(2)]


@pytest.fixture(scope="session")
def tables(drifting: list[DriftTask]) -> list[PlanTable]:
    """The plans of these tasks."""
    model = make_cost_model(additive=True, splits=True)
    return [PlanTable.of(episode_data(task, model)) for task in drifting]


@pytest.fixture(scope="session")
def view() -> Callable[..., View]:
    """Makes a view of two episodes in which the plan in action costs 1, and those that can be made 0.9."""

    def make(**given: Any) -> View:
        replayed = np.full((2, 1 + len(WINDOWS), len(WINDOWS)), 0.9)
        replayed[:, 0] = 1.0
        values: dict[str, Any] = {
            "replayed": replayed,
            "legal": np.ones((2, 1 + len(WINDOWS)), np.bool_),
            "since_plan": np.full(2, 0.5),
            "pause": np.full(2, 0.01),
            "must_plan": np.zeros(2, np.bool_),
            "clock": np.zeros((2, 4)),
            "days_left": np.full(2, 5.0),
            "available": np.ones(2),
            "used": np.ones(2),
            "measured": np.ones((2, 96)),
        }
        return View(**(values | given))

    return make
