"""A race of three entries on a machine that is made up: its costs are the analytical ones, times noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.measured.measurement import Measurement
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.errors import MeasurementError
from shard_gym.leaderboard.racing import run_race
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

pytest.importorskip("pyarrow")

ANALYTICAL = AnalyticalCostModel()
ITERATIONS = 4


class Machine(MeasuredCostModel):
    """Measures by estimating; `slow(number)` says how slow the machine is at its number-th measurement."""

    def __init__(
        self, noise: float = 0.02, slow: Callable[[int], float] = lambda number: 1.0, resolved: str = "parallel"
    ) -> None:
        super().__init__("cpu", iterations=ITERATIONS)
        self.noise, self.slow, self.resolved, self.count = noise, slow, resolved, 0

    def _measured(self, placement: Any, tables: Any, topology: Any, *, again: bool) -> Measurement:
        assert again
        rng = np.random.default_rng(self.count)
        self.count += 1
        phases = ANALYTICAL.estimate(placement, tables, topology).phases_ms * self.slow(self.count)
        ms = phases * rng.lognormal(0, self.noise, (ITERATIONS, *phases.shape))
        return Measurement(phases, float(phases.max(axis=0).sum()), ms, 0.0, 1.0)

    def layout_of(self, num_devices: int) -> str:
        return self.resolved


class FailingMachine(Machine):
    """Cannot measure the placements that `fails` names by task number and placement."""

    def __init__(self, suite: TaskSuite, fails: Callable[[int, list[int]], bool]) -> None:
        super().__init__()
        self.tasks, self.fails, self.refused = {id(task.tables): n for n, task in enumerate(suite)}, fails, 0

    def _measured(self, placement: Any, tables: Any, topology: Any, *, again: bool) -> Measurement:
        if self.fails(self.tasks[id(tables)], placement.tolist()):
            self.refused += 1
            raise MeasurementError("The worker of device 1\ndied.")
        return super()._measured(placement, tables, topology, again=again)


@pytest.fixture(scope="session")
def new_machine() -> type[Machine]:
    return Machine


@pytest.fixture(scope="session")
def new_failing() -> type[FailingMachine]:
    return FailingMachine


@pytest.fixture(scope="session")
def suite() -> TaskSuite:
    whole = load_suite("cpu-20x2")
    return TaskSuite(whole.name, whole.tasks[:6], whole.split)


@pytest.fixture(scope="session")
def placements(suite: TaskSuite) -> dict[str, list[Placement | None]]:
    names = ("random", "lookup-greedy", "local-search")
    return {name: [make_agent(name).place(task) for task in suite] for name in names}


@pytest.fixture
def raced(suite: TaskSuite, placements: Any, tmp_path: Path) -> Path:
    run_race(tmp_path, suite, placements, Machine(), rounds=3)
    return tmp_path
