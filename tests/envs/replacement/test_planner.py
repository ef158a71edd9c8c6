"""The planner of many windows: greedy placements as one by one, within memory, and costs as the cost model's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_additive_cost_model
from shard_gym.cost_models.base import placement_order
from shard_gym.envs.replacement.planner import NO_PLACEMENT, Planner
from shard_gym.tasks import Task

MakeTask = Callable[..., Task]
MODEL = make_additive_cost_model("analytical")


def windows_of(task: Task, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads that differ from window to window, the first those of the task itself, and the memory."""
    loads = MODEL.table_loads(task.tables, task.topology)
    factor = np.exp(np.random.default_rng(0).normal(0.0, 0.5, (count, len(loads), 1)))
    factor[0] = 1.0
    many = np.where(np.arange(MODEL.num_loads) < MODEL.num_sum_loads - 1, loads * factor, loads)
    return many, np.tile(task.tables.memory_bytes, (count, 1))


@pytest.mark.parametrize(("tables", "devices", "hosts"), [(9, 3, 8), (12, 4, 2), (1, 2, 8)])
def test_each_part_goes_where_the_cost_grows_least(
    random_task: MakeTask, tables: int, devices: int, hosts: int
) -> None:
    task = random_task(np.random.default_rng(1), tables, devices, devices_per_host=hosts)
    loads, memory = windows_of(task, 1)
    placement = Planner(MODEL, task.topology).greedy(loads, memory)[0]
    placed: list[int] = []
    for part in placement_order(loads[0], task.topology, MODEL).tolist():
        costs = []
        placed.append(part)
        for device in range(devices):
            tried = np.append(placement[placed[:-1]], device)
            held = MODEL.reduce(loads[0, placed], tried, devices)
            costs.append(float(MODEL.costs(held, task.topology.cluster())[1]))
        assert costs[placement[part]] <= min(costs) * (1 + 1e-12)


def test_how_many_windows_are_placed_at_once_changes_nothing(
    random_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = random_task(np.random.default_rng(2), 15, 4)
    loads, memory = windows_of(task, 7)
    planner = Planner(MODEL, task.topology)
    together = planner.greedy(loads, memory)
    monkeypatch.setattr("shard_gym.envs.replacement.planner.MOST_NUMBERS", 1)
    assert np.array_equal(planner.greedy(loads, memory), together)
    assert len(np.unique(together, axis=0)) > 1


def test_costs_are_those_of_the_cost_model(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(3), 10, 3)
    loads, memory = windows_of(task, 5)
    planner = Planner(MODEL, task.topology)
    placements = planner.greedy(loads, memory)
    for window, placement in enumerate(placements):
        held = MODEL.reduce(loads[window], placement, 3)
        assert planner.device_loads(loads, placements)[window] == pytest.approx(held, rel=1e-12)
        expected = MODEL.costs(held, task.topology.cluster())[1]
        assert planner.costs(loads, placements)[window] == pytest.approx(expected, rel=1e-12)
    every = planner.costs(loads[:, None], placements[None])
    assert every.shape == (5, 5)
    assert every[np.arange(5), np.arange(5)] == pytest.approx(planner.costs(loads, placements), rel=1e-12)


def test_memory_is_kept_and_a_part_without_room_is_told(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(3), 1, 2)
    tables = task.tables.select([0, 0, 0])
    size = int(tables.memory_bytes[0])
    three = Task("three", tables, replace(task.topology, memory_cap_bytes=np.array([2 * size, size])))
    loads, memory = windows_of(three, 2)
    memory[1] *= 2  # grown, two of them fit no more
    found: Any = Planner(MODEL, three.topology).greedy(loads, memory)
    assert np.bincount(found[0]).tolist() == [2, 1]
    assert found[1].tolist() == [NO_PLACEMENT] * 3
