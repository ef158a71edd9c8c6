"""Environments over custom tasks, whole episodes, and tasks of several environments as one problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import EnvProblem
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.tasks import Task, TaskSuite


@pytest.fixture(scope="session")
def env_of() -> Callable[..., EmbeddingPlacementEnv]:
    """Makes an environment over the tasks given."""

    def make(*tasks: Task, **arguments: Any) -> EmbeddingPlacementEnv:
        return EmbeddingPlacementEnv(TaskSuite("own", tasks), **arguments)

    return make


@pytest.fixture(scope="session")
def play() -> Callable[..., tuple[float, dict[str, Any]]]:
    """Takes the actions given until the episode ends; returns the sum of the rewards and the last info."""

    def run(env: EmbeddingPlacementEnv, actions: Iterable[int]) -> tuple[float, dict[str, Any]]:
        total = 0.0
        for action in actions:
            _, reward, terminated, _, info = env.step(int(action))
            total += reward
            if terminated:
                return total, info
        raise AssertionError("the episode did not end")

    return run


@pytest.fixture(scope="session")
def random_actions() -> Callable[[EmbeddingPlacementEnv, np.random.Generator], Iterable[int]]:
    """Legal actions, drawn as the episode goes on."""

    def actions(env: EmbeddingPlacementEnv, rng: np.random.Generator) -> Iterable[int]:
        while True:
            yield int(rng.choice(np.flatnonzero(env.action_masks())))

    return actions


@pytest.fixture(scope="session")
def together() -> Callable[..., EnvProblem]:
    """Makes one problem of tasks, one for each environment, padded to a number of tables and of devices."""

    def make(
        tasks: list[Task],
        max_tables: int,
        max_devices: int,
        rules: SplitRules | None = None,
        cost_model: str = "analytical",
    ) -> EnvProblem:
        # No suite: every task is stored once for each environment.
        source: Any = SimpleNamespace(
            host_memory=any(task.topology.host is not None for task in tasks),
            num_groups=max(len(task.tables.workloads) for task in tasks),
        )
        model = (
            make_cost_model(cost_model, additive=True)
            if rules is None
            else make_cost_model(cost_model, additive=True, splits=True)
        )
        prepared = PreparedTasks(source, model, max_tables, max_devices, len(tasks), rules=rules)
        prepared.begin(np.arange(len(tasks)), tasks)
        return prepared.problem

    return make
