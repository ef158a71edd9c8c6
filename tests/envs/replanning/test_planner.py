"""The planner of many windows: greedy placements as one by one, within memory, and costs as the cost model's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.cost_models.base import placement_order
from shard_gym.envs.replanning.planner import NO_PLACEMENT, Planner
from shard_gym.sharding.plan import ROW_WISE
from shard_gym.sharding.statistics import shard_tables
from shard_gym.tasks import Task

MakeTask = Callable[..., Task]
MODEL = make_sharding_cost_model("analytical")


def windows_of(task: Task, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads that differ from window to window, the first those of the task itself; and none on every device."""
    loads = MODEL.table_loads(task.tables, task.topology)
    factor = np.exp(np.random.default_rng(0).normal(0.0, 0.5, (count, len(loads), 1)))
    factor[0] = 1.0
    many = np.where(np.arange(MODEL.num_loads) < MODEL.num_sum_loads - 1, loads * factor, loads)
    return many, np.zeros((count, MODEL.num_loads))


def row_wise_loads(task: Task) -> np.ndarray:
    """(K,) loads on every device when the first table is row-wise."""
    shards = shard_tables(task.tables.select([0]), ROW_WISE, task.topology)
    return np.asarray(MODEL.shard_loads(shards, ROW_WISE, task.topology)[0])


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("tables", "devices", "hosts"), [(9, 3, 8), (12, 4, 2), (1, 2, 8)])
def test_each_part_goes_where_the_cost_grows_least(
    random_task: MakeTask, tables: int, devices: int, hosts: int, spread: bool
) -> None:
    task = random_task(np.random.default_rng(1), tables, devices, devices_per_host=hosts)
    loads, everywhere = windows_of(task, 1)
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
    arguments = *windows_of(task, 7), task.tables.memory_bytes, task.topology.memory_cap_bytes
    planner = Planner(MODEL, task.topology)
    together = planner.greedy(*arguments)
    monkeypatch.setattr("shard_gym.envs.replanning.planner.MAX_NUMBERS", 1)
    assert np.array_equal(planner.greedy(*arguments), together)
    assert len(np.unique(together, axis=0)) > 1


def test_costs_are_those_of_the_cost_model(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(3), 10, 3)
    loads, everywhere = windows_of(task, 5)
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
    loads, everywhere = windows_of(task, 5)
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
    planner, windows = Planner(MODEL, three.topology), windows_of(three, 2)
    for placement in planner.greedy(*windows, tables.memory_bytes, three.topology.memory_cap_bytes):
        assert np.bincount(placement).tolist() == [2, 1]
    for grown, free in ((2 * tables.memory_bytes, [2 * size, size]), (tables.memory_bytes, [2 * size - 1, size])):
        assert (planner.greedy(*windows, grown, np.array(free)) == NO_PLACEMENT).all()
