"""An episode whatever the agent does: the plans of each decision on the devices that are there, and what they cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTaskError
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.hardware import LinkSpec, hardware_profile
from shard_gym.plans.migration import migration_seconds
from shard_gym.plans.placement import memory_used
from shard_gym.replanning import DriftTask
from shard_gym.replanning.drift.levels import GROWING, SPOT, STRONG
from shard_gym.replanning.drift.load_grid import drifted_tables
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.drift.tasks import DAYS, HISTORY_DAYS
from shard_gym.replanning.env import episode_data as module
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, Plan, episode_data
from shard_gym.replanning.env.windows import HOURS, LAST_DAYS, WINDOWS
from shard_gym.tables import RowPopularity

MakeDriftTask = Callable[..., DriftTask]
MODEL = make_cost_model(additive=True, splits=True)
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


@pytest.mark.parametrize("name", ["spot", "growing"])
def test_a_plan_goes_on_while_its_devices_are_there_and_its_tables_fit(
    kinds_of_tasks: dict[str, DriftTask], name: str
) -> None:
    data, seen = EpisodeData(kinds_of_tasks[name], MODEL), set()
    task, caps = data.task, data.task.task.topology.memory_cap_bytes
    assert data.can_run(data.first_plan, 0)[0]
    for plan in [data.first_plan, *random_plans(data, np.random.default_rng(0), 8)]:
        for day in range(DAYS):
            rows = task.drift.rows[HISTORY_DAYS + day]
            tables = drifted_tables(task.task.tables, task.popularity, np.ones(len(rows)), rows)
            fits = bool((memory_used(plan.where, tables, task.task.num_devices) <= caps).all())
            there = task.available[day * HOURS : (day + 1) * HOURS][:, plan.devices].all(axis=1)
            found = data.can_run(plan, day).tolist()
            assert found == (there & fits).tolist()
            seen |= set(found)
    assert seen == {False, True}


def test_a_plan_runs_on_as_many_devices_as_it_was_made_for(spot: EpisodeData) -> None:
    task = spot.task
    for plan in random_plans(spot, np.random.default_rng(1), 6):
        devices = len(plan.devices)
        topology = spot.on(devices).parts.topology
        assert topology.num_devices == devices
        for day in (-1, 5):  # the day before the episode is measured, too
            first = (HISTORY_DAYS + day) * INTERVALS_PER_DAY + 4 * 9
            tables = drifted_tables(task.task.tables, task.popularity, task.drift.lookups[first])
            expected = MODEL.estimate(plan.placement, tables, topology).total_ms
            assert spot.interval_ms(plan, day)[9, 0] == pytest.approx(expected, rel=2e-3)
        assert np.array_equal(spot.run(plan, 5).interval_ms, spot.interval_ms(plan, 5))


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
            compressing = replace(task.task.topology, cross_host_ratio=0.1)  # activations, not rows
            assert migration_seconds(before.where, after.where, sizes, compressing) == pytest.approx(
                expected, rel=1e-12
            )
            moved += expected > 0
    assert moved


@pytest.mark.parametrize(("level", "splittable"), [(STRONG, True), (OFTEN, False), (QUICK, False), (QUICK, True)])
def test_no_hour_takes_longer_than_the_highest(drift_task: MakeDriftTask, level: Any, splittable: bool) -> None:
    data = EpisodeData(drift_task(5, 3, 4, level, splittable=splittable), MODEL)
    rng, worst = np.random.default_rng(0), 0.0
    plans = random_plans(data, rng, 6)
    for devices in {len(plan.devices) for plan in plans}:  # the worst that there could be
        there = np.arange(3)[:devices]
        plans += [Plan(np.full(data.num_parts, device), there) for device in range(devices)]
    for before, after in zip(plans, [*plans[1:], plans[0]], strict=True):
        for day in range(0, DAYS, 3):
            iterations = data.run(after, day).interval_ms.mean(axis=1).max() * HOUR_SECONDS_PER_MS
            worst = max(worst, iterations + data.migration_seconds(before, after, day))
    assert 0.2 * data.highest_hour_seconds < worst <= data.highest_hour_seconds


def test_tasks_that_differ_in_their_pause_and_equal_models_share_their_data(drift_task: MakeDriftTask) -> None:
    task = drift_task(seed=11)
    data = episode_data(task, MODEL)
    assert episode_data(replace(task, pause_s=7.0, name="other"), MODEL) is data
    assert episode_data(task, make_cost_model(additive=True, splits=True)) is data


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


def test_a_task_without_room_where_devices_leave_is_rejected(drift_task: MakeDriftTask) -> None:
    with pytest.raises(InvalidTaskError, match="no placement was found on 2 devices"):
        EpisodeData(drift_task(12, 4, 1, OFTEN, cap=0.45), MODEL)


GB = 10**9


def test_a_written_out_case() -> None:
    """Two hosts of two devices, 100 GB/s inside a host and 10 GB/s between.

    Inside host 0 device 0 sends 3 GB to device 1: 0.03 s. Device 1 sends 1 GB to device 2 and 1 GB to device 3, so 2 GB
    between hosts: 0.2 s. Device 3 receives 1 + 4 GB from host 0 (4 from device 0): 0.5 s, the longest.
    """
    links = LinkSpec(100.0, 10.0, 1.0, 1.0)
    topology = replace(hardware_profile("a100-dgx").topology(4, devices_per_host=2), links=links)
    before = np.array([0, 1, 1, 0, 2])
    after = np.array([1, 2, 3, 3, 2])
    sizes = np.array([3, 1, 1, 4, 50]) * GB
    assert migration_seconds(before, after, sizes, topology) == pytest.approx(0.5)
    assert migration_seconds(before[:3], after[:3], sizes[:3], topology) == pytest.approx(0.2)
    assert migration_seconds(before[:1], after[:1], sizes[:1], topology) == pytest.approx(0.03)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_way_back_takes_as_long_and_nothing_takes_no_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = hardware_profile("a100-dgx").topology(int(rng.integers(1, 17)))
    before, after = rng.integers(topology.num_devices, size=(2, 9))
    sizes = rng.integers(1, 10**10, 9)
    there = migration_seconds(before, after, sizes, topology)
    assert there == pytest.approx(migration_seconds(after, before, sizes, topology))
    assert migration_seconds(before, before, sizes, topology) == 0.0
    assert (there > 0) == (before != after).any()


def test_many_plans_at_once_take_as_long_as_each() -> None:
    rng = np.random.default_rng(0)
    topology = hardware_profile("a100-dgx").topology(6, devices_per_host=4)
    before, after, sizes = rng.integers(6, size=(3, 4, 9)), rng.integers(6, size=9), rng.integers(1, 10**10, 9)
    before[0, 0] = after
    found = migration_seconds(before, after, sizes, topology)
    assert found.shape == (3, 4)
    assert found.ravel().tolist() == [
        pytest.approx(float(migration_seconds(each, after, sizes, topology))) for each in before.reshape(12, 9)
    ]
    assert found[0, 0] == 0.0
    assert np.count_nonzero(found) == 11
