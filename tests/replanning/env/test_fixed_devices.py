"""The plans of days on m devices, their costs, and the planner of many windows that makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.base import placement_order
from shard_gym.plans.placement import memory_used
from shard_gym.plans.plan import ROW_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.replanning import DriftTask
from shard_gym.replanning.drift.levels import GROWING, STRONG, DriftLevel
from shard_gym.replanning.drift.load_grid import drifted_tables
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.drift.tasks import DAYS, HISTORY_DAYS
from shard_gym.replanning.env import fixed_devices
from shard_gym.replanning.env.fixed_devices import FixedDevices
from shard_gym.replanning.env.parts import Parts
from shard_gym.replanning.env.planner import NO_PLACEMENT, Planner
from shard_gym.replanning.env.windows import HOURS, KINDS, WINDOWS, window_means
from shard_gym.tables import Tables
from shard_gym.tasks import Task
from shard_gym.tasks.forms import whole

MakeDriftTask = Callable[..., DriftTask]
MODEL = make_cost_model(additive=True, splits=True)
QUICK = replace(GROWING, age_days=(3.0, 6.0), pruned=0.02)


def on(task: DriftTask, devices: int | None = None) -> FixedDevices:
    return FixedDevices(Parts(task, whole(task.task), MODEL, devices or task.task.num_devices))


def tables_on(task: DriftTask, day: int, lookups: np.ndarray, rows: np.ndarray | None = None) -> Tables:
    """The tables on a day of the episode."""
    drift = task.drift
    grown = drift.rows[HISTORY_DAYS + day] if rows is None else rows
    return drifted_tables(task.task.tables, task.popularity, lookups, grown, drift.exponent[HISTORY_DAYS + day])


def windows_of(task: DriftTask, decision: int) -> np.ndarray:
    return np.asarray(window_means(task.drift.lookups, HISTORY_DAYS * HOURS + decision, 1)[0])


def candidates(fixed: FixedDevices, decision: int, kind: int, first_day: int) -> np.ndarray:
    """The greedy placements for a kind of plan at this decision and at the 23 before, but none before a day."""
    decisions = range(max(decision - HOURS + 1, first_day * HOURS), decision + 1)
    return np.stack([greedy_at(fixed, each, kind) for each in decisions])


@lru_cache
def greedy_at(fixed: FixedDevices, decision: int, kind: int) -> np.ndarray:
    (window, headroom), parts, today = KINDS[kind], fixed.parts, HISTORY_DAYS + decision // HOURS
    loads, everywhere = parts.loads(today, windows_of(parts.task, decision)[window])
    memory = parts.bytes_ahead(today) if headroom else (parts.bytes_of(today), parts.free(today))
    return np.asarray(fixed.planner.greedy(loads[None], everywhere[None], *memory)[0])


@pytest.mark.parametrize("level", [STRONG, QUICK], ids=["strong", "quick"])
def test_a_plan_is_the_cheapest_candidate_with_room(
    drift_task: MakeDriftTask, short: Callable[..., DriftTask], level: DriftLevel
) -> None:
    task = drift_task(9, 3, 6, level)
    fixed = on(short(task, 1.12) if level.growth else task)
    kinds, caps = len(KINDS) if level.growth else len(WINDOWS), fixed.parts.topology.memory_cap_bytes
    old, impossible = 0, 0
    for decision in (0, 11, 23, 46, 24 * 13 + 20):
        day, hour = divmod(decision, HOURS)
        plans = fixed.plans(day)
        assert plans.plans.shape == (HOURS, kinds, 9)
        assert plans.replayed_ms.shape == (HOURS, kinds, len(WINDOWS))
        windows = windows_of(fixed.parts.task, decision)
        for kind in range(kinds):
            tried = candidates(fixed, decision, kind, max(day - 1, 0))
            today = HISTORY_DAYS + day
            bytes_of = fixed.parts.bytes_ahead(today)[0] if KINDS[kind].headroom else fixed.parts.bytes_of(today)
            fits = [plan[0] != NO_PLACEMENT and (np.bincount(plan, bytes_of, 3) <= caps).all() for plan in tried]
            assert plans.possible[hour, kind] == any(fits)
            if not any(fits):
                impossible += 1
                continue
            loads, everywhere = fixed.parts.loads(today, windows[KINDS[kind].window])
            costs = np.where(fits, fixed.planner.costs(loads, everywhere, np.maximum(tried, 0)), np.inf)
            own = fixed.planner.costs(loads, everywhere, plans.plans[hour, kind])
            assert own == pytest.approx(costs.min(), rel=1e-9)
            assert any(np.array_equal(plans.plans[hour, kind], each) for each in tried)
            old += bool(costs.min() < costs[-1] * (1 - 1e-9))
    assert old
    assert bool(impossible) == bool(level.growth)


def test_a_plan_with_headroom_has_room_for_ten_days_of_growth(
    drift_task: MakeDriftTask, short: Callable[..., DriftTask]
) -> None:
    task = short(drift_task(8, 2, level=QUICK), 1.3)
    fixed, possible, outgrown = on(task), 0, 0
    caps, rows = task.task.topology.memory_cap_bytes, task.drift.rows
    for day in range(DAYS):
        plans, today = fixed.plans(day), HISTORY_DAYS + day
        ahead = rows[today] + np.maximum(rows[today] - rows[today - 3], 0.0) * 10 / 3
        tables, now = (tables_on(task, day, np.ones(8), each) for each in (ahead, rows[today]))
        for hour in range(0, HOURS, 6):
            for kind in range(len(KINDS)):
                fits = (memory_used(plans.plans[hour, kind], tables, 2) <= caps).all()
                if not KINDS[kind].headroom:
                    assert (memory_used(plans.plans[hour, kind], now, 2) <= caps).all()
                    outgrown += not fits
                elif plans.possible[hour, kind]:
                    assert fits
                    possible += 1
        assert plans.possible[:, : len(WINDOWS)].all()
    assert possible
    assert outgrown


def test_without_room_for_greedy_placements_plans_are_the_known_one_and_none_has_headroom(
    drift_task: MakeDriftTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(planner: Planner, loads: np.ndarray, *rest: Any) -> np.ndarray:
        return np.full(loads.shape[:2], NO_PLACEMENT)

    monkeypatch.setattr(Planner, "greedy", nothing)
    fixed = on(drift_task(level=QUICK))
    plans = fixed.plans(1)
    assert (plans.plans[:, : len(WINDOWS)] == fixed.parts.known).all()
    assert plans.possible.tolist() == [[not kind.headroom for kind in KINDS]] * HOURS


def test_the_order_of_questions_changes_nothing(drift_task: MakeDriftTask) -> None:
    one, other = (on(drift_task(seed=3, level=GROWING)) for _ in range(2))
    last = one.plans(4)
    for day in range(4):
        other.plans(day)
    for before, after in zip(last, other.plans(4), strict=True):
        assert np.array_equal(before, after)


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("level", [STRONG, GROWING], ids=["strong", "growing"])
def test_a_running_plan_costs_what_the_cost_model_says(
    drift_task: MakeDriftTask, level: DriftLevel, devices: int
) -> None:
    task, rng = drift_task(7, 3, level=level), np.random.default_rng(0)
    fixed = on(task, devices)
    topology = fixed.parts.topology
    for day in (-1, 0, 3, 13):
        plan, hour = rng.integers(devices, size=7), int(rng.integers(HOURS))
        first = (HISTORY_DAYS + day) * INTERVALS_PER_DAY + 4 * hour
        expected = [
            MODEL.estimate(plan, tables_on(task, day, task.drift.lookups[first + part]), topology).total_ms
            for part in range(4)
        ]
        assert fixed.interval_ms(plan, day)[hour] == pytest.approx(expected, rel=2e-3)
        if day < 0:
            continue
        run = fixed.run(plan, day)
        assert np.array_equal(run.interval_ms, fixed.interval_ms(plan, day))
        windows = windows_of(task, HOURS * day + hour)
        estimates = [MODEL.estimate(plan, tables_on(task, day, each), topology) for each in windows]
        assert run.replayed_ms[hour] == pytest.approx([each.total_ms for each in estimates], rel=2e-3)
        assert run.phases_ms[hour] == pytest.approx(estimates[0].phases_ms, rel=0.01)
        assert run.phases_ms[hour].max(axis=0).sum() == pytest.approx(run.replayed_ms[hour, 0], rel=1e-9)
        used = memory_used(plan, tables_on(task, day, windows[0]), devices)
        assert run.memory == pytest.approx(used / topology.memory_cap_bytes, rel=1e-12)


def test_several_plans_at_once_cost_what_they_cost_alone(drift_task: MakeDriftTask) -> None:
    fixed, plans = on(drift_task(7, 3, level=GROWING)), np.random.default_rng(0).integers(3, size=(5, 7))
    runs = [fixed.run(plan, 4) for plan in plans]
    assert fixed.hourly_ms(plans, 4) == pytest.approx(np.stack([r.interval_ms.mean(axis=1) for r in runs]), rel=1e-9)
    assert fixed.replayed_ms(plans, 4) == pytest.approx(np.stack([run.replayed_ms for run in runs]), rel=1e-9)
    some = np.array([3, 20])
    expected = np.stack([run.interval_ms[hour] for run, hour in zip(runs, some, strict=False)])
    assert fixed.interval_ms(plans[:2], 4, some) == pytest.approx(expected, rel=1e-12)


def test_runs_are_kept_up_to_a_number(drift_task: MakeDriftTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_devices, "KEPT_RUNS", 2)
    fixed, plan = on(drift_task()), np.zeros(6, np.int64)
    first = fixed.run(plan, 0)
    fixed.run(plan, 1)
    assert fixed.run(plan.copy(), 0) is first
    fixed.run(plan, 2)  # 1 goes
    assert fixed.run(plan, 0) is first
    fixed.run(plan, 3)
    fixed.run(plan, 4)
    again = fixed.run(plan, 0)
    assert again is not first
    assert np.array_equal(again.interval_ms, first.interval_ms)


MakeTask = Callable[..., Task]


def some_windows(task: Task, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads that differ from window to window, the first those of the task itself; and none on every device."""
    loads = MODEL.loads(task.tables, task.topology)
    factor = np.exp(np.random.default_rng(0).normal(0.0, 0.5, (count, len(loads), 1)))
    factor[0] = 1.0
    many = np.where(np.arange(MODEL.num_loads) < MODEL.num_sum_loads - 1, loads * factor, loads)
    return many, np.zeros((count, MODEL.num_loads))


def row_wise_loads(task: Task) -> np.ndarray:
    """(K,) loads on every device when the first table is row-wise."""
    shards = shard_tables(task.tables.select([0]), ROW_WISE, task.topology)
    return np.asarray(MODEL.loads(shards, task.topology, ROW_WISE)[0])


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("tables", "devices", "hosts"), [(9, 3, 8), (12, 4, 2), (1, 2, 8)])
def test_each_part_goes_where_the_cost_grows_least(
    random_task: MakeTask, tables: int, devices: int, hosts: int, spread: bool
) -> None:
    task = random_task(np.random.default_rng(1), tables, devices, devices_per_host=hosts)
    loads, everywhere = some_windows(task, 1)
    if spread:
        everywhere[0] = row_wise_loads(task)
    memory = task.tables.memory_bytes, task.topology.memory_cap_bytes
    placement = Planner(MODEL, task.topology).greedy(loads, everywhere, *memory)[0]
    placed: list[int] = []
    for part in placement_order(loads[0], task.topology, MODEL).tolist():
        costs = []
        placed.append(part)
        for device in range(devices):
            tried = np.append(placement[placed[:-1]], device)
            held = MODEL.add(MODEL.reduce(loads[0, placed], tried, devices), everywhere)
            costs.append(float(MODEL.costs(held, task.topology.cluster())[1]))
        assert costs[placement[part]] <= min(costs) * (1 + 1e-12)


def test_how_many_windows_are_placed_at_once_changes_nothing(
    random_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = random_task(np.random.default_rng(2), 15, 4)
    arguments = *some_windows(task, 7), task.tables.memory_bytes, task.topology.memory_cap_bytes
    planner = Planner(MODEL, task.topology)
    together = planner.greedy(*arguments)
    monkeypatch.setattr("shard_gym.replanning.env.planner.MAX_NUMBERS", 1)
    assert np.array_equal(planner.greedy(*arguments), together)
    assert len(np.unique(together, axis=0)) > 1


def test_costs_are_those_of_the_cost_model(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(3), 10, 3)
    loads, everywhere = some_windows(task, 5)
    everywhere[1:3] = row_wise_loads(task)
    planner = Planner(MODEL, task.topology)
    placements = planner.greedy(loads, everywhere, task.tables.memory_bytes, task.topology.memory_cap_bytes)
    for window, placement in enumerate(placements):
        held = MODEL.add(MODEL.reduce(loads[window], placement, 3), everywhere[window])
        assert planner.device_loads(loads, everywhere, placements)[window] == pytest.approx(held, rel=1e-12)
        expected = MODEL.costs(held, task.topology.cluster())[1]
        assert planner.costs(loads, everywhere, placements)[window] == pytest.approx(expected, rel=1e-12)
    every = planner.costs(loads[:, None], everywhere[:, None], placements[None])
    assert every.shape == (5, 5)
    own = planner.costs(loads, everywhere, placements)
    assert every[np.arange(5), np.arange(5)] == pytest.approx(own, rel=1e-12)


def test_costs_of_all_pairs_are_those_of_each(random_task: MakeTask) -> None:
    """Also where the maxima differ from window to window."""
    rng = np.random.default_rng(4)
    task = random_task(rng, 10, 3, devices_per_host=2)
    loads, everywhere = some_windows(task, 5)
    everywhere[::2] = row_wise_loads(task)
    loads[..., MODEL.num_sum_loads :] *= rng.uniform(0.5, 2.0, (5, 10, 1))
    planner, placements = Planner(MODEL, task.topology), rng.integers(3, size=(4, 10))
    expected = planner.costs(loads, everywhere, placements[:, None])
    assert planner.many_costs(loads, everywhere, placements) == pytest.approx(expected, rel=1e-12)


def test_memory_is_kept_and_a_part_without_room_is_told(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(3), 1, 2)
    tables = task.tables.select([0, 0, 0])
    size = int(tables.memory_bytes[0])
    three = Task("three", tables, replace(task.topology, memory_cap_bytes=np.array([2 * size, size])))
    planner, windows = Planner(MODEL, three.topology), some_windows(three, 2)
    for placement in planner.greedy(*windows, tables.memory_bytes, three.topology.memory_cap_bytes):
        assert np.bincount(placement).tolist() == [2, 1]
    for grown, free in ((2 * tables.memory_bytes, [2 * size, size]), (tables.memory_bytes, [2 * size - 1, size])):
        assert (planner.greedy(*windows, grown, np.array(free)) == NO_PLACEMENT).all()
