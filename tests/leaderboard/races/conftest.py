"""A race of three entries on a machine that is made up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents import make_agent
from shard_gym.leaderboard.race import Race, load_race
from shard_gym.leaderboard.racing import run_race
from shard_gym.plans.placement import Placement
from shard_gym.tasks import TaskSuite, load_suite

pytest.importorskip("pyarrow")


class Course:
    """A folder to race into, six tasks, placements of three entries, and machines that are made up."""

    def __init__(self, folder: Path, suite: TaskSuite, placements: Any, machine: Any) -> None:
        self.folder, self.suite, self.placements, self.machine = folder, suite, placements, machine

    def failing(self, fails: Callable[[int, list[int]], bool]) -> Any:
        """A machine that cannot measure the placements that `fails` names by task number and placement."""
        numbers = {id(task.tables): number for number, task in enumerate(self.suite)}
        return self.machine(fails=lambda tables, placement: fails(numbers[id(tables)], placement))

    def run(self, machine: Any = None, *, into: str = "", placements: Any = None, **options: Any) -> Race:
        placements = self.placements if placements is None else placements
        return run_race(self.folder / into, self.suite, placements, machine or self.machine(), **options)

    def load(self) -> Race:
        return load_race(self.folder, self.suite)


@pytest.fixture(scope="session")
def suite() -> TaskSuite:
    whole = load_suite("cpu-20x2")
    return TaskSuite(whole.name, whole.tasks[:6], whole.split)


@pytest.fixture(scope="session")
def placements(suite: TaskSuite) -> dict[str, list[Placement | None]]:
    agents = make_agent("random"), make_agent("lookup-greedy"), make_agent("local-search", max_queries=2_000)
    return {agent.name: [agent.place(task) for task in suite] for agent in agents}


@pytest.fixture
def course(suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any) -> Course:
    return Course(tmp_path, suite, placements, new_machine)


@pytest.fixture(scope="session")
def race_folder(suite: TaskSuite, placements: Any, new_machine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a race of three rounds; tests must not change it."""
    folder = tmp_path_factory.mktemp("race")
    Course(folder, suite, placements, new_machine).run(rounds=3)
    return folder


@pytest.fixture
def raced(course: Course, race_folder: Path) -> Course:
    """A course after that race, whose files tests may change."""
    shutil.copytree(race_folder, course.folder, dirs_exist_ok=True)
    return course
