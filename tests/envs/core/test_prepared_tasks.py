"""Prepared tasks: those of a suite once and in placement order, others in the place of their environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidTaskError
from shard_gym.cost_models import AnalyticalCostModel, make_cost_model
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import TableRows, prepare
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.hardware import Cluster, Topology
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

MODEL = make_cost_model("analytical")
MAX_TABLES, MAX_DEVICES = 8, 6


class Noting(AnalyticalCostModel):
    """Notes how many tables each task has that it is asked to prepare."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = "table_wise") -> np.ndarray:
        self.asked.append(len(shards))
        return super().loads(shards, topology, sharding_type)


def envs(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.fixture(scope="module")
def tasks(random_task: Any) -> list[Task]:
    """Six tasks; the i-th has i + 2 tables and i % 4 + 1 devices, on one host or on several."""
    rng = np.random.default_rng(0)
    return [random_task(rng, 2 + i, 1 + i % 4, devices_per_host=1 + i, name=f"task {i}") for i in range(6)]


@pytest.fixture
def prepare_for() -> Callable[..., PreparedTasks]:
    def make(tasks: list[Task], num_envs: int, model: Any = MODEL) -> PreparedTasks:
        return PreparedTasks(TaskSuite("own", tuple(tasks)), model, MAX_TABLES, MAX_DEVICES, num_envs)

    return make


def shows(prepared: PreparedTasks, *expected: Task) -> bool:
    """Whether the arrays of the first environments are those of these tasks, all of them."""
    problem, equal = prepared.problem, True
    for env, task in enumerate(expected):
        alone, row = prepare(task, MODEL, MAX_TABLES, MAX_DEVICES), problem.row[env]
        pairs = [(getattr(problem.tables, f.name)[row], getattr(alone.tables, f.name)[0]) for f in fields(TableRows)]
        pairs += [(getattr(problem.cluster, f.name)[env], getattr(alone.cluster, f.name)[0]) for f in fields(Cluster)]
        for name in ("num_tables", "memory_cap", "penalty_ms", "lower_bound_ms"):
            pairs.append((getattr(problem, name)[env], getattr(alone, name)[0]))
        equal &= all(np.array_equal(have, wanted) for have, wanted in pairs)
    return equal


def test_the_tables_stand_in_placement_order(random_task: Any) -> None:
    task = random_task(np.random.default_rng(8), 7, 3, slack=1.3)
    problem = prepare(task, MODEL, 7, 3)
    loads = MODEL.loads(task.tables, task.topology)
    alone = MODEL.single_table_costs(loads, task.topology)
    order = problem.order[0]
    assert sorted(order) == list(range(7))
    assert (np.diff(alone[order]) <= 0).all()
    rows = problem.tables
    assert np.array_equal(rows.order[0], order)
    assert np.array_equal(rows.loads[0], loads[order])
    assert np.array_equal(rows.memory[0], task.tables.memory_bytes[order])
    assert np.array_equal(rows.features[0], task.tables.features()[order])
    assert rows.costs[0].sum(axis=1) == pytest.approx(alone[order], rel=1e-6)


def test_a_task_of_the_suite_is_prepared_once_and_when_it_is_needed(tasks: list[Task], prepare_for: Any) -> None:
    model = Noting()
    prepared = prepare_for(tasks, 3, model)
    assert model.asked == []
    prepared.begin(envs(0, 1, 2), [tasks[1], tasks[4], tasks[1]])
    asked = len(model.asked)
    assert set(model.asked) == {3, 6}
    for _ in range(3):
        prepared.begin(envs(2, 1, 0), [tasks[4], tasks[1], tasks[4]])
    assert len(model.asked) == asked
    prepared.begin(envs(0), [tasks[0]])
    assert set(model.asked[asked:]) == {2}


def test_a_task_from_elsewhere_takes_its_environments_own_place(
    tasks: list[Task], prepare_for: Any, random_task: Any
) -> None:
    rng = np.random.default_rng(9)
    foreign = [random_task(rng, size, 2, name="foreign") for size in (8, 3, 5)]
    prepared = prepare_for(tasks[:2], 3)
    prepared.begin(envs(0, 1, 2), [foreign[0], tasks[1], foreign[1]])
    assert shows(prepared, foreign[0], tasks[1], foreign[1])
    prepared.begin(envs(2, 1), [foreign[2], foreign[1]])  # fewer and more tables than before
    assert shows(prepared, *foreign)
    prepared.begin(envs(0, 1, 2), [tasks[0], tasks[1], tasks[0]])
    assert shows(prepared, tasks[0], tasks[1], tasks[0])


def test_a_task_of_the_same_name_is_not_mistaken_for_the_suites(
    tasks: list[Task], prepare_for: Any, random_task: Any
) -> None:
    impostor = random_task(np.random.default_rng(3), 4, 2, name=tasks[0].name)
    prepared = prepare_for(tasks, 2)
    for _ in range(2):
        prepared.begin(envs(0, 1), [impostor, tasks[0]])
        assert shows(prepared, impostor, tasks[0])
    prepared.begin(envs(0), [replace(tasks[0])])  # equal, and yet another object
    assert shows(prepared, tasks[0], tasks[0])


def test_a_copy_is_independent(tasks: list[Task], prepare_for: Any, random_task: Any) -> None:
    foreign = random_task(np.random.default_rng(3), 4, 2, name="foreign")
    prepared = prepare_for(tasks, 3)
    prepared.begin(envs(0, 1, 2), [tasks[5], foreign, tasks[0]])
    twin = prepared.copy()
    twin.begin(envs(0, 1), [random_task(np.random.default_rng(4), 7, 3), tasks[1]])
    assert shows(prepared, tasks[5], foreign, tasks[0])
    prepared.begin(envs(0, 1, 2), [tasks[3], tasks[3], foreign])
    assert not shows(twin, tasks[3])
    twin.begin(envs(0), [tasks[3]])  # what it writes is what its problem shows
    assert shows(twin, tasks[3], tasks[1], tasks[0])


def test_a_refused_task_changes_no_other(tasks: list[Task], prepare_for: Any, random_task: Any) -> None:
    """All tasks are prepared before any takes its environment's place."""
    foreign, new, wide = (random_task(np.random.default_rng(seed), size, 3) for seed, size in enumerate((4, 4, 9)))
    prepared = prepare_for(tasks, 2)
    prepared.begin(envs(0, 1), [foreign, tasks[1]])
    with pytest.raises(InvalidTaskError):
        prepared.begin(envs(0, 1), [new, wide])
    assert shows(prepared, foreign, tasks[1])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_many_environments_of_a_suite_take_little_memory() -> None:
    """The places for tasks from elsewhere are set aside, but take no memory before they are used."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    env = EmbeddingPlacementVectorEnv(4096, "dlrm-200x8", observation="compact")
    env.reset(seed=0)
    env.step(env.action_masks().argmax(axis=1))
    set_aside = sum(value.nbytes for value in vars(env.episodes.problem.tables).values())
    assert set_aside > 100e6
    assert resident() - before < set_aside / 2
