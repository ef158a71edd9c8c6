"""Tasks and levels of drift: what they refuse, and that all of a task follows from its seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError, InvalidTaskError
from shard_gym.hardware import HostMemory
from shard_gym.plans.constraints import Constraints
from shard_gym.replanning import DriftTask
from shard_gym.replanning.drift import levels
from shard_gym.replanning.drift.levels import GROWING, MEDIUM, SPOT, DriftLevel
from shard_gym.replanning.drift.processes import HIGHEST, INTERVALS_PER_DAY, draw_available, draw_drift
from shard_gym.replanning.drift.tasks import DAYS, HISTORY_DAYS, NOISE
from shard_gym.tables import RowPopularity, Workload

MakeDriftTask = Callable[..., DriftTask]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"daily": -0.1}, "daily of a DriftLevel must be a number from 0 to 10, not -0.1"),
        ({"shift": "x"}, "shift of a DriftLevel must be a number from 0 to 10, not 'x'"),
        ({"age_days": (1.0, float("nan"))}, "age_days of a DriftLevel must be a number"),
        ({"age_days": (0.0, 1.0)}, r"age_days of a DriftLevel must be a number from 0.1 to 100000, not 0\.0"),
        ({"age_days": [1.0, 2.0]}, "age_days of a DriftLevel must be a number"),
        ({"away_hours": 5.0}, "away_hours of a DriftLevel must be a tuple of the least and the most, not 5"),
        ({"age_days": (60.0, 10.0)}, r"age_days of a DriftLevel must be a tuple of the least and the most, not \(60"),
        ({"away_hours": (1.0, 2.0, 3.0)}, "away_hours of a DriftLevel must be a tuple of the least and the most"),
        ({"leaving": (1.0, 2.5)}, r"leaving of a DriftLevel must be two integers, not \(1.0, 2.5\)"),
        ({"arrivals": 2}, "arrivals of a DriftLevel must be a number from 0 to 1, not 2"),
        ({"pruned": 1.1}, "pruned of a DriftLevel must be a number from 0 to 1, not 1.1"),
        ({"growth": 1e300}, r"growth of a DriftLevel must be a number from 0 to 2, not 1e\+300"),
        ({"away_hours": (1.0, 1e300)}, r"away_hours of a DriftLevel must be a number from 0 to 100000, not 1e\+300"),
        ({"leaving": (1, 10**9)}, "leaving of a DriftLevel must be a number from 0 to 4096, not 1000000000"),
        ({"walk": True}, "walk of a DriftLevel must be a number from 0 to 10, not True"),
        ({"skew": float("inf")}, "skew of a DriftLevel must be a number from 0 to 10, not inf"),
    ],
)
def test_impossible_levels_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        DriftLevel(**wrong)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"name": " "}, InvalidTaskError, "name of a task"),
        ({"popularity": RowPopularity.zipf([1.0] * 5)}, InvalidTaskError, "6 tables, but row popularities of 5"),
        ({"seed": -1}, InvalidOptionError, "A seed is an integer of at least 0, not -1"),
        ({"pause_s": 0.0}, InvalidOptionError, "pause_s must be a positive number, not 0"),
        ({"pause_s": 1e300}, InvalidOptionError, r"pause_s of task 'drift 0' must be at most 1e\+09 s, not 1e\+300"),
        *(
            ({field: "medium"}, InvalidTaskError, f"{field} of task 'drift 0' must be a {kind}, not 'medium'")
            for field, kind in (("task", "Task"), ("popularity", "RowPopularity"), ("level", "DriftLevel"))
        ),
    ],
)
def test_impossible_tasks_are_refused(
    drift_task: Callable[..., DriftTask], changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    task = drift_task()
    with pytest.raises(error, match=message):
        replace(task, **changes)


LIMITS = levels._LIMITS


@pytest.mark.parametrize("name", LIMITS)
def test_the_strongest_drift_of_each_kind_is_finite(name: str) -> None:
    least, most = LIMITS[name]
    most = int(most) if name == "leaving" else most
    level = DriftLevel(**{name: (least, most) if name in levels._RANGES else most})  # type: ignore[arg-type]
    steep = replace(level, growth=2.0, shift=10.0, incident=10.0, departures=24.0, daily=10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (level, steep):
            drift = draw_drift(each, 5, HISTORY_DAYS + DAYS, np.random.default_rng(0))
            there = draw_available(each, 8, 24 * DAYS, np.random.default_rng(0))
            assert all(np.isfinite(numbers).all() for numbers in (drift.lookups, drift.rows, drift.exponent))
            assert drift.exponent.max() <= HIGHEST
            assert drift.rows.max() <= each.most_growth(HISTORY_DAYS + DAYS)
            assert there.sum(axis=1).min() >= 4


def test_tables_that_would_outgrow_all_numbers_are_refused(drift_task: MakeDriftTask) -> None:
    task = drift_task()
    most = replace(task.task.tables, embedding_dim=np.full(6, 2**16), num_embeddings=np.full(6, 2**40))
    topology = replace(task.topology, memory_cap_bytes=np.full(task.num_devices, 2**62))
    level = DriftLevel(growth=2.0, age_days=(0.1, 1.0))
    with pytest.raises(InvalidTaskError, match=r"'drift 0' may grow to .* bytes; the limit is 4.61e\+18\. Lower the"):
        replace(task, task=replace(task.task, tables=most, topology=topology, known_placement=None), level=level)


def test_devices_leave_only_where_all_are_on_one_host(drift_task: Callable[..., DriftTask]) -> None:
    with pytest.raises(InvalidTaskError, match=r"4 devices are on hosts of 2\. Set the departures of its level to 0"):
        drift_task(devices=4, devices_per_host=2, level=SPOT)
    assert drift_task(devices=4, devices_per_host=4, level=SPOT).available.shape == (24 * DAYS, 4)
    assert drift_task(devices=4, devices_per_host=2, level=MEDIUM).available.all()


def test_the_seed_says_all_and_the_pause_nothing(drift_task: Callable[..., DriftTask]) -> None:
    one, same, other = (drift_task(level=replace(GROWING, departures=2.0)) for _ in range(3))
    same, other = replace(same, pause_s=9.0), replace(other, seed=1)
    for name in ("available", "noise"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    for name in ("lookups", "rows", "exponent"):
        assert np.array_equal(getattr(one.drift, name), getattr(same.drift, name))
        assert not np.array_equal(getattr(one.drift, name), getattr(other.drift, name))
    assert one.drift.lookups.shape == ((HISTORY_DAYS + DAYS) * INTERVALS_PER_DAY, 6)
    assert one.grows
    assert not drift_task(level=replace(SPOT, pruned=0.1)).grows


def test_measured_costs_are_wrong_by_two_percent_from_the_day_before_the_episode_on(
    drift_task: Callable[..., DriftTask],
) -> None:
    noise = np.stack([drift_task(seed=seed).noise for seed in range(8)])
    assert noise.shape == (8, (1 + DAYS) * INTERVALS_PER_DAY)
    assert noise.std(axis=1) == pytest.approx(np.full(8, NOISE), rel=0.1)
    assert abs(noise.mean()) < 5 * NOISE / np.sqrt(noise.size)
    assert np.abs(np.corrcoef(noise) - np.eye(8)).max() < 0.15


def test_it_is_written_in_one_short_line(drift_task: Callable[..., DriftTask]) -> None:
    assert repr(drift_task(3, 2, 0)).startswith("DriftTask('drift 0', 3 tables, 2 devices, ")


def test_tables_of_several_workloads_are_refused(drift_task: MakeDriftTask) -> None:
    task = drift_task(6, 2)
    tables = task.task.tables
    own = [tables.workload, replace(tables.workload, weight_dtype="fp32")]
    mixed = replace(tables, workload=Workload.mixed(own, np.arange(6) % 2))
    caps = 4 * task.task.topology.memory_cap_bytes
    roomy = replace(task.task.topology, memory_cap_bytes=caps)
    with pytest.raises(InvalidTaskError, match="does not support tables of several workloads"):
        replace(task, task=replace(task.task, tables=mixed, topology=roomy))


def test_host_memory_is_refused(drift_task: MakeDriftTask) -> None:
    task = drift_task(6, 2)
    host = HostMemory(2**30, 16.0, 20.0)
    tiered = replace(task.task, topology=replace(task.task.topology, host=host))
    with pytest.raises(InvalidTaskError, match="does not support rows in host memory"):
        replace(task, task=tiered)


def test_constraints_are_refused(drift_task: MakeDriftTask) -> None:
    task = drift_task()
    limits = Constraints.none(task.num_tables, task.num_devices)
    with pytest.raises(InvalidTaskError, match="keeps to no constraints; leave them out"):
        replace(task, task=replace(task.task, constraints=limits))
