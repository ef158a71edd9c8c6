"""The days of an episode: plans from the past alone, and costs as the cost model's of the drifted tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_additive_cost_model
from shard_gym.drift.levels import DriftLevel
from shard_gym.drift.load_grid import drifted_tables
from shard_gym.drift.processes import INTERVALS_PER_DAY
from shard_gym.drift.tasks import DAYS, HISTORY_DAYS, DriftTask
from shard_gym.envs.replacement.episode_data import EpisodeData
from shard_gym.envs.replacement.windows import HOURS, WINDOWS
from shard_gym.errors import InvalidTaskError

MakeDriftTask = Callable[..., DriftTask]
MODEL = make_additive_cost_model("analytical")


@pytest.fixture(scope="module")
def data(drift_task: MakeDriftTask) -> EpisodeData:
    return EpisodeData(drift_task(), MODEL)


def cost_of(data: EpisodeData, lookups: np.ndarray, plan: np.ndarray) -> float:
    """ms under the cost model, of the tables themselves."""
    task = data.task
    tables = drifted_tables(task.task.tables, task.popularity, lookups)
    return MODEL.estimate(plan, tables, task.task.topology).total_ms


def test_a_running_plan_costs_what_the_cost_model_says(data: EpisodeData) -> None:
    plan = data.first_plan()
    run = data.run(plan, 3)
    first = (HISTORY_DAYS + 3) * INTERVALS_PER_DAY
    hour = [cost_of(data, data.task.drift.lookups[first + 4 * 7 + part], plan) for part in range(4)]
    assert run.hourly_ms[7] == pytest.approx(np.mean(hour), rel=2e-3)
    assert data.seconds(run.hourly_ms)[7] == pytest.approx(run.hourly_ms[7] * 100_000 / 24 / 1000)
    means = data.window_lookups(3)[7]
    assert run.replayed_ms[7] == pytest.approx([cost_of(data, each, plan) for each in means], rel=2e-3)
    slowest = run.phases_ms[7].max(axis=0).sum()
    assert slowest == pytest.approx(run.replayed_ms[7, 0], rel=1e-9)


def test_plans_are_good_for_the_window_they_are_made_for(data: EpisodeData) -> None:
    """On two devices no other placement of six tables is far cheaper."""
    plans = data.plans(2)
    every = (np.arange(64)[:, None] >> np.arange(6)) & 1
    lookups = data.window_lookups(2)
    for hour in (0, 13):
        for window in range(len(WINDOWS)):
            least = min(cost_of(data, lookups[hour, window], plan) for plan in every)
            own = cost_of(data, lookups[hour, window], plans.plans[hour, window])
            assert own == pytest.approx(plans.replayed_ms[hour, window, window], rel=2e-3)
            assert own <= 1.15 * least
    assert plans.replayed_ms.shape == (HOURS, len(WINDOWS), len(WINDOWS))


def test_plans_and_replays_do_not_depend_on_the_future(drift_task: MakeDriftTask, monkeypatch: Any) -> None:
    one, other = (EpisodeData(drift_task(), MODEL) for _ in range(2))
    changed = other.task.drift.lookups.copy()
    changed[(HISTORY_DAYS + 1) * INTERVALS_PER_DAY + 4 * 10 :] *= 3.0
    object.__setattr__(other.task, "drift", replace(other.task.drift, lookups=changed))
    for day in (0, 1):
        until = HOURS if day == 0 else 11
        assert np.array_equal(one.plans(day).plans[:until], other.plans(day).plans[:until])
        assert np.array_equal(one.plans(day).replayed_ms[:until], other.plans(day).replayed_ms[:until])
        runs = [each.run(one.first_plan(), day) for each in (one, other)]
        assert np.array_equal(runs[0].replayed_ms[:until], runs[1].replayed_ms[:until])
    assert not np.array_equal(runs[0].hourly_ms[11:], runs[1].hourly_ms[11:])


@pytest.mark.parametrize("name", ["growth", "pruned", "skew"])
def test_drift_that_costs_do_not_follow_is_refused(drift_task: MakeDriftTask, name: str) -> None:
    with pytest.raises(InvalidTaskError, match=f"drifts by {name}"):
        EpisodeData(drift_task(level=DriftLevel(**{name: 0.1})), MODEL)


def test_the_order_of_questions_changes_nothing(drift_task: MakeDriftTask) -> None:
    one, other = (EpisodeData(drift_task(seed=3), MODEL) for _ in range(2))
    last = one.plans(DAYS - 1)
    for day in range(DAYS):
        other.plans(day)
    assert np.array_equal(last.plans, other.plans(DAYS - 1).plans)
    assert one.run(one.first_plan(), 4) is one.run(one.first_plan().copy(), 4)
