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
from shard_gym.leaderboard.race import Race
from shard_gym.leaderboard.race_files import load_race
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


class Course:
    """A folder to race into, six tasks, placements of three entries, and machines that are made up."""

    machine = Machine

    def __init__(self, folder: Path, suite: TaskSuite, placements: dict[str, list[Placement | None]]) -> None:
        self.folder, self.suite, self.placements = folder, suite, placements

    def failing(self, fails: Callable[[int, list[int]], bool]) -> FailingMachine:
        return FailingMachine(self.suite, fails)

    def run(self, machine: Machine | None = None, *, into: str = "", placements: Any = None, **options: Any) -> Race:
        placements = self.placements if placements is None else placements
        return run_race(self.folder / into, self.suite, placements, machine or Machine(), **options)

    def load(self) -> Race:
        return load_race(self.folder, self.suite)


@pytest.fixture(scope="session")
def suite() -> TaskSuite:
    whole = load_suite("cpu-20x2")
    return TaskSuite(whole.name, whole.tasks[:6], whole.split)


@pytest.fixture(scope="session")
def placements(suite: TaskSuite) -> dict[str, list[Placement | None]]:
    names = ("random", "lookup-greedy", "local-search")
    return {name: [make_agent(name).place(task) for task in suite] for name in names}


@pytest.fixture
def course(suite: TaskSuite, placements: dict[str, list[Placement | None]], tmp_path: Path) -> Course:
    return Course(tmp_path, suite, placements)


@pytest.fixture
def raced(course: Course) -> Course:
    """The same after a race of three rounds."""
    course.run(rounds=3)
    return course
