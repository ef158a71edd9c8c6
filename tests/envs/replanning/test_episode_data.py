"""An episode whatever the agent does: the plans of each decision on the devices that are there, and what they cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, make_sharding_cost_model
from shard_gym.drift.levels import GROWING, SPOT, STRONG
from shard_gym.drift.load_grid import drifted_tables
from shard_gym.drift.processes import INTERVALS_PER_DAY
from shard_gym.drift.tasks import DAYS, HISTORY_DAYS, DriftTask
from shard_gym.envs.replanning import episode_data as module
from shard_gym.envs.replanning.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, Plan, episode_data
from shard_gym.envs.replanning.migration import migration_seconds
from shard_gym.envs.replanning.windows import HOURS, KINDS, LAST_DAYS, LAST_HOUR, WINDOWS, window_means
from shard_gym.errors import InvalidTaskError
from shard_gym.placement import memory_used
from shard_gym.row_popularity import RowPopularity

MakeDriftTask = Callable[..., DriftTask]
MODEL = make_sharding_cost_model("analytical")
QUICK = replace(GROWING, age_days=(3.0, 6.0), pruned=0.02)
OFTEN = replace(SPOT, departures=4.0, away_hours=(2.0, 8.0))


@pytest.fixture(scope="module")
def spot(drift_task: MakeDriftTask) -> EpisodeData:
    """Four devices that leave and return often."""
    return EpisodeData(drift_task(7, 4, level=OFTEN), MODEL)


def random_plans(data: EpisodeData, rng: np.random.Generator, count: int) -> list[Plan]:
    """Plans that can be made in the episode."""
    decisions = rng.integers(DECISIONS, size=count).tolist()
    return [data.plan(decision, int(rng.integers(len(WINDOWS)))) for decision in decisions]


# Plans


def test_the_first_plan_is_for_the_three_days_before_on_all_devices(spot: EpisodeData) -> None:
    first = spot.first_plan
    assert first.devices.tolist() == [0, 1, 2, 3]
    assert first.where.tolist() == first.placement.tolist() == spot.on(4).plans(0).plans[0, LAST_DAYS].tolist()
    task = spot.task
    mean = task.drift.lookups[: HISTORY_DAYS * INTERVALS_PER_DAY].mean(axis=0)
    tables = drifted_tables(task.task.tables, task.popularity, mean)
    assert spot.reference_ms == pytest.approx(
        MODEL.estimate(first.where, tables, task.task.topology).total_ms, rel=2e-3
    )


def test_plans_are_made_for_the_devices_that_are_there(spot: EpisodeData) -> None:
    counts = set()
    for decision in range(0, DECISIONS, 5):
        day, hour = divmod(decision, HOURS)
        there = np.flatnonzero(spot.task.available[decision])
        counts.add(len(there))
        options = spot.options(day)
        assert options.plans.shape == (HOURS, len(WINDOWS), 7)
        alone = spot.on(len(there)).plans(day)
        for found, expected in zip(options, alone, strict=True):
            assert np.array_equal(found[hour], expected[hour])
        for kind in range(len(WINDOWS)):
            plan = spot.plan(decision, kind)
            assert plan.devices.tolist() == there.tolist()
            assert plan.where.tolist() == there[options.plans[hour, kind]].tolist()
            assert np.isin(plan.where, there).all()
    assert counts >= {2, 3, 4}


def test_a_day_without_absences_has_the_plans_of_all_devices(drift_task: MakeDriftTask) -> None:
    data = EpisodeData(drift_task(), MODEL)
    assert data.options(3) is data.on(2).plans(3)


def test_a_plan_goes_on_while_its_devices_are_there(spot: EpisodeData) -> None:
    seen = set()
    for plan in random_plans(spot, np.random.default_rng(0), 12):
        for day in range(DAYS):
            found = spot.can_run(plan, day)
            for hour in range(HOURS):
                there = set(np.flatnonzero(spot.task.available[day * HOURS + hour]).tolist())
                assert found[hour] == (set(plan.devices.tolist()) <= there)
            seen |= set(found.tolist())
    assert seen == {False, True}


def test_a_plan_goes_on_while_its_tables_fit(drift_task: MakeDriftTask) -> None:
    task = drift_task(8, 2, level=QUICK)
    need = task.task.tables.memory_bytes * task.drift.rows.max(axis=0)
    caps = np.full(2, int(1.12 * max(need.sum() / 2, need.max())))
    task = replace(task, task=replace(task.task, topology=replace(task.task.topology, memory_cap_bytes=caps)))
    data, seen = EpisodeData(task, MODEL), set()
    assert data.can_run(data.first_plan, 0).all()
    for plan in [data.first_plan, *random_plans(data, np.random.default_rng(0), 6)]:
        for day in range(DAYS):
            rows = task.drift.rows[HISTORY_DAYS + day]
            tables = drifted_tables(task.task.tables, task.popularity, np.ones(8), rows)
            fits = bool((memory_used(plan.where, tables, 2) <= caps).all())
            assert data.can_run(plan, day).tolist() == [fits] * HOURS
            seen.add(fits)
    assert seen == {False, True}


def test_lookups_are_those_of_the_window_before_a_decision(spot: EpisodeData) -> None:
    lookups = spot.task.drift.lookups
    for decision in (0, 30, DECISIONS - 1):
        expected = window_means(lookups, HISTORY_DAYS * HOURS + decision, 1)[0]
        for window in range(len(WINDOWS)):
            assert spot.lookups_of(decision, window) == pytest.approx(expected[window], rel=1e-9)


# Costs


def test_a_plan_runs_on_as_many_devices_as_it_was_made_for(spot: EpisodeData) -> None:
    task = spot.task
    for plan in random_plans(spot, np.random.default_rng(1), 6):
        devices = len(plan.devices)
        topology = spot.on(devices).parts.topology
        assert topology.num_devices == devices
        first = (HISTORY_DAYS + 5) * INTERVALS_PER_DAY + 4 * 9
        tables = drifted_tables(task.task.tables, task.popularity, task.drift.lookups[first])
        expected = MODEL.estimate(plan.placement, tables, topology).total_ms
        assert spot.run(plan, 5).interval_ms[9, 0] == pytest.approx(expected, rel=2e-3)


def test_the_day_before_the_episode_has_the_costs_of_the_first_plan(spot: EpisodeData) -> None:
    found, task = spot.interval_ms(spot.first_plan, -1).ravel(), spot.task
    assert found.shape == (INTERVALS_PER_DAY,)
    for interval in (0, 50, 95):
        lookups = task.drift.lookups[2 * INTERVALS_PER_DAY + interval]
        tables = drifted_tables(task.task.tables, task.popularity, lookups)
        expected = MODEL.estimate(spot.first_plan.where, tables, task.task.topology).total_ms
        assert found[interval] == pytest.approx(expected, rel=2e-3)


def test_migrations_are_between_the_devices_themselves(drift_task: MakeDriftTask) -> None:
    data = EpisodeData(drift_task(6, 4, level=replace(QUICK, departures=4.0)), MODEL)
    task, moved = data.task, 0
    plans = random_plans(data, np.random.default_rng(0), 8)
    for before, after in itertools.pairwise(plans):
        assert data.migration_seconds(before, before, 2) == 0.0
        for day in (0, 9):
            rows = task.drift.rows[HISTORY_DAYS + day]
            sizes = drifted_tables(task.task.tables, task.popularity, np.ones(6), rows).memory_bytes
            expected = float(migration_seconds(before.where, after.where, sizes, task.task.topology))
            assert data.migration_seconds(before, after, day) == pytest.approx(expected, rel=1e-12)
            moved += expected > 0
    assert moved


@pytest.mark.parametrize("level", [STRONG, OFTEN], ids=["strong", "often"])
def test_a_new_plan_each_hour_costs_what_its_runs_cost(drift_task: MakeDriftTask, level: Any) -> None:
    data = EpisodeData(drift_task(6, 3, level=level), MODEL)
    for day in (0, 6, 13):
        expected = [
            data.run(data.plan(day * HOURS + hour, LAST_HOUR), day).interval_ms[hour].mean() for hour in range(HOURS)
        ]
        assert data.always_ms(day) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("level", [STRONG, OFTEN, QUICK], ids=["strong", "often", "quick"])
@pytest.mark.parametrize("splittable", [False, True])
def test_no_hour_takes_longer_than_the_highest(drift_task: MakeDriftTask, level: Any, splittable: bool) -> None:
    data, rng, worst = (
        EpisodeData(drift_task(5, 3, 4, level, splittable=splittable), MODEL),
        np.random.default_rng(0),
        0.0,
    )
    plans = random_plans(data, rng, 6)
    for devices in {len(plan.devices) for plan in plans}:  # the worst that there could be
        there = np.arange(3)[:devices]
        plans += [Plan(np.full(data.num_parts, device), there) for device in range(devices)]
    for before, after in zip(plans, [*plans[1:], plans[0]], strict=True):
        for day in range(0, DAYS, 3):
            iterations = data.run(after, day).interval_ms.mean(axis=1).max() * HOUR_SECONDS_PER_MS
            worst = max(worst, iterations + data.migration_seconds(before, after, day))
    assert 0.2 * data.highest_hour_seconds < worst <= data.highest_hour_seconds


# Sharing


def test_tasks_that_differ_in_their_pause_and_equal_models_share_their_data(drift_task: MakeDriftTask) -> None:
    task = drift_task(seed=11)
    data = episode_data(task, MODEL)
    assert episode_data(replace(task, pause_s=7.0, name="other"), MODEL) is data
    assert episode_data(task, make_sharding_cost_model("analytical")) is data


class Other(AnalyticalShardingModel):
    """A model of another class with the same fingerprint."""


def test_tasks_that_differ_in_more_and_other_models_share_nothing(drift_task: MakeDriftTask) -> None:
    task = drift_task(seed=11)
    data, law = episode_data(task, MODEL), task.popularity
    steeper = RowPopularity(law.q, law.s * 1.2)
    for other in (
        replace(task, seed=12),
        replace(task, level=GROWING),
        replace(task, popularity=steeper),
        replace(task, task=replace(task.task, name="other")),
    ):
        assert episode_data(other, MODEL) is not data
    found = episode_data(replace(task, popularity=steeper), MODEL)
    assert found.reference_ms != pytest.approx(data.reference_ms, rel=1e-6)
    for model in (AnalyticalShardingModel("fp16"), Other()):
        assert episode_data(task, model) is not data


def test_the_oldest_data_are_dropped(drift_task: MakeDriftTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "_kept", type(module._kept)())
    tasks = [drift_task(3, seed=seed) for seed in range(3)]
    first, second = (episode_data(task, MODEL) for task in tasks[:2])
    assert episode_data(tasks[0], MODEL) is first
    episode_data(tasks[2], MODEL)  # the second goes
    assert episode_data(tasks[0], MODEL) is first
    assert episode_data(tasks[1], MODEL) is not second


# Refusals


def test_tasks_without_room_and_models_without_shards_are_refused(drift_task: MakeDriftTask) -> None:
    task = drift_task(6, 2, level=replace(QUICK, pruned=0.0), cap=0.9)
    with pytest.raises(InvalidTaskError, match="no placement was found on 2 devices"):
        EpisodeData(task, MODEL)
    away = drift_task(12, 4, 1, OFTEN, cap=0.45)
    with pytest.raises(InvalidTaskError, match="no placement was found on 2 devices"):
        EpisodeData(away, MODEL)
    with pytest.raises(InvalidTaskError, match="knows no shards"):
        EpisodeData(drift_task(splittable=True), AnalyticalCostModel())


def test_kinds_of_plans_with_headroom_are_there_where_tables_grow(drift_task: MakeDriftTask) -> None:
    for level, kinds in ((STRONG, len(WINDOWS)), (QUICK, len(KINDS))):
        assert EpisodeData(drift_task(level=level), MODEL).options(0).plans.shape == (HOURS, kinds, 6)
