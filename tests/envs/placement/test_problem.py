"""A prepared task: in placement order, padded with zeros, and stacked without loss."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.placement.problem import Problem, prepare
from shard_gym.errors import InvalidTaskError
from shard_gym.evaluation import penalty_ms
from shard_gym.topology import Cluster

MODEL = make_cost_model("analytical")


@pytest.fixture
def task(random_task: Any) -> Any:
    return random_task(np.random.default_rng(8), 7, 3, slack=1.3)


def test_the_tables_stand_in_placement_order(task: Any) -> None:
    problem = prepare(task, MODEL, 7, 3)
    loads = MODEL.table_loads(task.tables, task.topology)
    alone = MODEL.single_table_costs(loads, task.topology)
    order = problem.order[0]
    assert sorted(order) == list(range(7))
    assert (np.diff(alone[order]) <= 0).all()
    assert np.array_equal(problem.table_loads[0], loads[order])
    assert np.array_equal(problem.table_memory[0], task.tables.memory_bytes[order])
    assert np.array_equal(problem.table_features[0], task.tables.features()[order])
    assert problem.table_costs[0].sum(axis=1) == pytest.approx(alone[order], rel=1e-6)
    assert problem.num_envs == 1
    assert problem.num_tables.tolist() == [7]


def test_padding_is_zero_and_changes_nothing_else(task: Any) -> None:
    tight, padded = prepare(task, MODEL, 7, 3), prepare(task, MODEL, 11, 5)
    for name in ("order", "table_loads", "table_memory", "table_features", "table_costs"):
        assert np.array_equal(getattr(padded, name)[:, :7], getattr(tight, name)), name
        assert not getattr(padded, name)[:, 7:].any(), name
        assert getattr(padded, name).dtype == getattr(tight, name).dtype
    assert padded.memory_cap.tolist() == [[*tight.memory_cap[0].tolist(), 0, 0]]
    assert padded.cluster.device_mask.tolist() == [[True, True, True, False, False]]
    for name in ("penalty_ms", "lower_bound_ms"):
        assert getattr(padded, name) == pytest.approx(getattr(tight, name), rel=1e-12)


def test_the_bounds_hold_for_every_placement(task: Any, valid_placements: Any) -> None:
    problem = prepare(task, MODEL, 7, 3)
    assert problem.penalty_ms.tolist() == [penalty_ms(task, MODEL)]
    costs = [MODEL.estimate(each, task.tables, task.topology).total_ms for each in valid_placements(task)]
    assert problem.lower_bound_ms[0] <= min(costs) <= max(costs) < problem.penalty_ms[0]


def test_stacking_keeps_every_array(random_task: Any) -> None:
    rng = np.random.default_rng(1)
    problems = [prepare(random_task(rng, 2 + i, 1 + i), MODEL, 6, 4) for i in range(4)]
    stacked = Problem.stack([Problem.stack(problems[:2]), Problem.stack(problems[2:])])
    assert stacked.num_envs == 4
    for row, problem in enumerate(problems):
        for field in fields(Problem):
            if field.name != "cluster":
                assert np.array_equal(getattr(stacked, field.name)[row], getattr(problem, field.name)[0]), field.name
        for field in fields(Cluster):
            assert np.array_equal(getattr(stacked.cluster, field.name)[row], getattr(problem.cluster, field.name)[0])


def test_an_assignment_is_given_back_in_the_tasks_own_order(task: Any) -> None:
    problem = prepare(task, MODEL, 9, 3)
    placement = np.array([2, 0, 1, 1, 0, 2, 2])
    assignment = np.full((1, 9), -1)
    assignment[0, :7] = placement[problem.order[0, :7]]
    assert problem.placement_of(assignment).tolist() == placement.tolist()


@pytest.mark.parametrize("padding", [(6, 3), (7, 2)])
def test_a_task_that_is_too_large_names_its_size(task: Any, padding: tuple[int, int]) -> None:
    with pytest.raises(InvalidTaskError, match=r"'random' has 7 tables and 3 devices.*Raise max_tables or max_devices"):
        prepare(task, MODEL, *padding)
