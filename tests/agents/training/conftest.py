"""A learner without a network, registered as "walk": quick, and all its state is one array."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import Agent
from shard_gym.agents.training import LEARNERS, Learner, LearnerEntry, Report
from shard_gym.io.arrays import Arrays, require_arrays
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSuite


class Walker(Agent):
    """Places every table on the device its number says."""

    def __init__(self, name: str, position: float, seed: int, shift: int = 0) -> None:
        self.name, self.position, self.seed, self.shift = name, position, seed, shift

    def place(self, task: Task) -> Any:
        return np.full(task.num_tables, (int(self.position) + self.shift) % task.num_devices)


class Walk(Learner):
    """Walks at random, and evaluates one true cost in each step."""

    def __init__(
        self, suite: TaskSuite, cost_model: Any, seed: int, *, name: str = "walk", iterations: int = 4
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.iterations = iterations
        self.position = np.zeros(())

    def iterate(self) -> Report:
        self.position = self.position + self.rng().normal() + 0.1 * self.position
        task = self.suite[0]
        placement = self.rng(1).integers(task.num_devices, size=task.num_tables)
        cost = self.cost_model.estimate(placement, task.tables, task.topology).total_ms
        return Report(cost, {"position": float(self.position)})

    def state(self) -> Arrays:
        return {"position": self.position}

    def load_state(self, arrays: Arrays) -> None:
        require_arrays("The state", arrays, self.state())
        self.position = arrays["position"]

    def weights(self) -> Arrays:
        return {"position": self.position}

    def about(self) -> dict[str, Any]:
        return {"legs": 2}

    def agent(self) -> Walker:
        return Walker(self.name, float(self.position), self.seed)


def load_walk(arrays: Arrays, about: dict[str, Any], cost_model: Any, seed: int, *, shift: int = 0) -> Walker:
    assert about["legs"] == 2
    require_arrays("The walk", arrays, {"position": np.zeros(())})
    return Walker(about["agent"], float(arrays["position"]), seed, shift)


@pytest.fixture(autouse=True)
def _walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEARNERS, "walk", LearnerEntry("walk_for_tests:Walk", "walk_for_tests:load_walk"))
    monkeypatch.setitem(sys.modules, "walk_for_tests", sys.modules[__name__])


@pytest.fixture
def walk() -> type[Walk]:
    return Walk


@pytest.fixture
def suite() -> TaskSuite:
    return load_suite("dlrm-20x4", "train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x"
