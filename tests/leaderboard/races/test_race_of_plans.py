"""Races of plans, by workers that start at once and answer random times."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidPlacementError, InvalidPlanError
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.cost_models.measured.model import penalty_ms
from shard_gym.leaderboard.race import Answers, Race, devices_of, load_race, write_race
from shard_gym.leaderboard.racing import run_race
from shard_gym.leaderboard.store import RACE
from shard_gym.plans import ShardingPlan, plan_memory_used, plan_of_placement
from shard_gym.tasks import Task, TaskSuite, load_suite

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("quick_workers")

TASKS = 3


class Counting(MeasuredCostModel):
    """Counts what it measures, and is stopped by the user before the measurement of the number `stop`."""

    count, stop = 0, 10**6

    def measure_again(self, *arguments: Any) -> Any:
        if self.count == self.stop:
            raise KeyboardInterrupt
        self.count += 1
        return super().measure_again(*arguments)


@pytest.fixture(scope="session")
def suite() -> TaskSuite:
    whole = load_suite("shard-cpu-20x2")
    return TaskSuite(whole.name, whole.tasks[:TASKS], whole.split)


@pytest.fixture(scope="session")
def plans(suite: TaskSuite, random_plan: Callable[..., ShardingPlan]) -> Answers:
    """Of all sharding types; of whole tables; and with a task that failed."""
    rng = np.random.default_rng(0)

    def drawn(task: Task) -> ShardingPlan:
        while True:
            plan = random_plan(rng, task.tables, task.topology)
            if (plan_memory_used(plan, task.tables, task.num_devices) <= task.topology.memory_cap_bytes).all():
                return plan

    mixed = [drawn(task) for task in suite]
    whole = [make_agent("lookup-greedy").plan(task) for task in suite]
    assert all(plan.split_tables for plan in mixed)
    return {"mixed": mixed, "whole": whole, "holed": [None, *mixed[1:]]}


@pytest.fixture
def model() -> Iterator[Counting]:
    with Counting("cpu", layout="parallel", iterations=4) as model:
        yield model


@pytest.fixture(scope="module")
def races(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Race]]:
    """A folder for the files of the race, and the race, once a test has run it."""
    return tmp_path_factory.mktemp("race"), []


@pytest.fixture
def raced(tmp_path: Path, suite: TaskSuite, plans: Answers, model: Counting, races: tuple[Path, list[Race]]) -> Race:
    """A race of two rounds, the same for all tests, with files of its own in `tmp_path`."""
    folder, done = races
    if not done:
        done.append(run_race(folder, suite, plans, model, rounds=2))
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return done[0]


def test_plans_are_raced_and_a_race_that_was_stopped_goes_on(
    tmp_path: Path, suite: TaskSuite, plans: Answers, model: Counting
) -> None:
    per_round = 3 * TASKS - 1
    model.stop = per_round + 2
    with pytest.raises(KeyboardInterrupt):
        run_race(tmp_path, suite, plans, model, rounds=3)
    assert load_race(tmp_path, suite).num_rounds == 1
    model.count, model.stop = 0, 10**6
    race = run_race(tmp_path, suite, plans, model, rounds=3)
    assert model.count == 2 * per_round
    assert (race.problem.name, race.num_rounds, len(race.measurements)) == ("sharding", 3, 3 * per_round)
    again = load_race(tmp_path, suite)
    assert again.results() == race.results()
    assert again.answers == {name: list(own) for name, own in plans.items()}
    assert {each.entry: each.failures for each in race.results()} == {"mixed": 0, "whole": 0, "holed": 1}
    record = json.loads((tmp_path / RACE).read_text())
    assert "placements" not in record
    assert record["plans"]["holed"][0] is None


def test_a_task_without_a_plan_costs_the_penalty_of_plans(raced: Race, tmp_path: Path, suite: TaskSuite) -> None:
    penalty = penalty_ms(suite[0].tables, suite[0].topology, splits=True)
    assert raced.penalties_ms[0] == penalty
    assert raced.costs_ms()[list(raced.answers).index("holed"), 0].tolist() == [penalty] * 2
    write_race(tmp_path, replace(raced, penalties_ms=raced.penalties_ms / 2))
    with pytest.raises(DamagedFileError, match="must be those of the tasks"):
        load_race(tmp_path, suite)


def _moved(record: dict[str, Any]) -> None:
    """Whole tables are on the other device, which changes no cost."""
    for _, shards in record["plans"]["whole"][0]:
        shards[0][0] = 1 - shards[0][0]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (_moved, "names other plans, hardware or settings"),
        (lambda record: record["plans"].update(whole=record["plans"]["mixed"]), "names other plans, hardware"),
        (lambda record: record["plans"]["mixed"].pop(), "does not describe a race"),
        (lambda record: record["plans"]["mixed"][0].pop(), "The plan has 19 tables"),
        (lambda record: record["plans"]["mixed"].__setitem__(0, [0] * 20), "does not describe a race"),
        (lambda record: record.update(placements=record.pop("plans")), "does not describe a race: KeyError"),
        (lambda record: record.update(placements={}), "unknown key 'placements'"),
    ],
)
def test_edited_plans_are_refused(raced: Race, tmp_path: Path, suite: TaskSuite, edit: Any, says: str) -> None:
    record = json.loads((tmp_path / RACE).read_text())
    edit(record)
    (tmp_path / RACE).write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=says):
        load_race(tmp_path, suite)


def test_a_device_with_shards_takes_time(raced: Race, tmp_path: Path, suite: TaskSuite) -> None:
    first = raced.measurements[0]
    used = devices_of(raced.answers[first.entry][first.task])
    assert used.tolist() == [0, 1]
    ms = first.phases_ms.copy()
    ms[:, 1, COMPUTE] = 0.0
    write_race(tmp_path, replace(raced, measurements=(replace(first, phases_ms=ms), *raced.measurements[1:])))
    with pytest.raises(DamagedFileError, match="above 0 where there are tables"):
        load_race(tmp_path, suite)


def test_the_devices_of_an_answer_are_those_of_its_tables_or_shards(suite: TaskSuite) -> None:
    placement = np.ones(suite[0].num_tables, np.int64)
    assert devices_of(placement).tolist() == [1]
    assert devices_of(plan_of_placement(placement, suite[0].tables)).tolist() == [1]


def test_what_is_not_measured_is_refused_before_anything_is(
    tmp_path: Path, suite: TaskSuite, plans: Answers, model: Counting
) -> None:
    placements = [plan.placement for plan in plans["whole"]]
    with pytest.raises(InvalidPlanError):
        run_race(tmp_path, suite, {**plans, "placed": placements}, model)
    with pytest.raises(InvalidPlacementError, match="has 2 plans for the 3 tasks"):
        run_race(tmp_path, suite, {**plans, "short": plans["whole"][1:]}, model)
    in_groups = replace(suite, tasks=tuple(replace(task, sync_every=10) for task in suite))
    with pytest.raises(InvalidOptionError, match="does not support plans for groups of devices"):
        run_race(tmp_path, in_groups, plans, model)
    with (
        Counting("cpu", layout="parallel", iterations=4, batch_size=511) as uneven,
        pytest.raises(InvalidOptionError, match="Pass a batch_size that is a multiple of 2"),
    ):
        run_race(tmp_path, suite, plans, uneven)
    assert (model.count, uneven.count) == (0, 0)
    assert not (tmp_path / RACE).exists()
