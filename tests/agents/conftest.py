"""A small suite that every learned agent can be trained on, tasks whose tables hardly fit, and planted optima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.agents.training import Learner, Report
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.tasks import Task, TaskSuite


@pytest.fixture(scope="session")
def small_suite(random_task: Callable[..., Task]) -> TaskSuite:
    """Tasks of 5 to 8 tables on 2 or 3 devices, with memory caps that matter."""
    rng = np.random.default_rng(5)
    sizes = [(5, 2), (8, 3), (6, 2), (7, 3)]
    return TaskSuite(
        "small", tuple(random_task(rng, t, d, slack=1.6, name=f"small/{i}") for i, (t, d) in enumerate(sizes))
    )


@pytest.fixture(scope="session")
def dead_end(packing_task: Callable[..., Task]) -> Task:
    """Three tables of 60, 50 and 50 MiB on devices of 100 and 60 MiB: only 50 + 50 and 60 fit.

    The largest comes first in every order, and the emptiest (or first) device is the wrong one.
    """
    return packing_task((60, 50, 50), (100, 60), (30.0, 20.0, 20.0))


@pytest.fixture(scope="session")
def planted_suite(planted_task: Callable[..., Any]) -> Callable[..., tuple[TaskSuite, np.ndarray]]:
    """Makes a suite of tables that come in groups of equals, and what the best placement of each task costs, ms."""

    def make(rng: np.random.Generator, count: int, groups: int, devices: int) -> tuple[TaskSuite, np.ndarray]:
        pairs = [planted_task(rng, groups, devices) for _ in range(count)]
        tasks = tuple(Task(f"planted/{n}", task.tables, task.topology) for n, (task, _) in enumerate(pairs))
        model = AnalyticalCostModel()
        costs = [model.estimate(best, task.tables, task.topology).total_ms for task, best in pairs]
        return TaskSuite("planted", tasks), np.array(costs)

    return make


@pytest.fixture(scope="session")
def trained() -> Callable[[Learner], list[Report]]:
    """Trains a learner to its end, without a folder; the reports of its iterations."""

    def train(learner: Learner) -> list[Report]:
        reports = []
        while learner.iteration < learner.iterations:
            reports.append(learner.iterate())
            learner.iteration += 1
        return reports

    return train
