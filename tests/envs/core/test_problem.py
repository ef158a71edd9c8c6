"""A prepared task: in placement order, padded with zeros, and stacked without loss."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.problem import Problem, TableRows, prepare
from shard_gym.errors import InvalidTaskError
from shard_gym.evaluation import penalty_ms

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
    rows = problem.tables
    assert np.array_equal(rows.order[0], order)
    assert np.array_equal(rows.loads[0], loads[order])
    assert np.array_equal(rows.memory[0], task.tables.memory_bytes[order])
    assert np.array_equal(rows.features[0], task.tables.features()[order])
    assert rows.costs[0].sum(axis=1) == pytest.approx(alone[order], rel=1e-6)
    assert problem.num_envs == 1
    assert problem.num_tables.tolist() == [7]
    assert problem.row.tolist() == [0]


def test_padding_is_zero_and_changes_nothing_else(task: Any) -> None:
    tight, padded = prepare(task, MODEL, 7, 3), prepare(task, MODEL, 11, 5)
    for field in fields(TableRows):
        wide, narrow = getattr(padded.tables, field.name), getattr(tight.tables, field.name)
        assert wide.shape[:2] == (1, 11)
        assert np.array_equal(wide[:, :7], narrow), field.name
        assert not wide[:, 7:].any(), field.name
        assert wide.dtype == narrow.dtype
    assert padded.memory_cap.tolist() == [[*tight.memory_cap[0].tolist(), 0, 0]]
    assert padded.cluster.device_mask.tolist() == [[True, True, True, False, False]]
    for name in ("penalty_ms", "lower_bound_ms"):
        assert getattr(padded, name) == pytest.approx(getattr(tight, name), rel=1e-12)


def test_the_bounds_hold_for_every_placement(task: Any, valid_placements: Any) -> None:
    problem = prepare(task, MODEL, 7, 3)
    assert problem.penalty_ms.tolist() == [penalty_ms(task, MODEL)]
    costs = [MODEL.estimate(each, task.tables, task.topology).total_ms for each in valid_placements(task)]
    assert problem.lower_bound_ms[0] <= min(costs) <= max(costs) < problem.penalty_ms[0]


def test_the_current_table_is_found_in_the_flattened_rows(random_task: Any) -> None:
    rng = np.random.default_rng(4)
    problem = Problem.stack([prepare(random_task(rng, tables, 2), MODEL, 6, 4) for tables in (6, 3, 5)])
    problem.take(np.array([2]), copy.deepcopy(problem), np.array([0]))
    for step in ([0, 0, 0], [5, 2, 3]):
        memory = problem.tables.memory.reshape(-1)[problem.current(np.array(step))]
        assert memory.tolist() == [problem.tables.memory[row, at] for row, at in zip([0, 1, 0], step, strict=True)]
    # Past the end it is the last one of the padding, not the next task's first.
    assert problem.current(np.array([6, 6, 6])).tolist() == [5, 11, 5]


def test_an_assignment_is_given_back_in_the_tasks_own_order(task: Any, random_task: Any) -> None:
    problem = prepare(task, MODEL, 9, 3)
    placement = np.array([2, 0, 1, 1, 0, 2, 2])
    assignment = np.full((1, 9), -1)
    assignment[0, :7] = placement[problem.order[0, :7]]
    padded = [*placement.tolist(), -1, -1]
    assert problem.placements_of(assignment, np.array([0])).tolist() == [padded]
    other = prepare(random_task(np.random.default_rng(9), 4, 3), MODEL, 9, 3)
    both = Problem.stack([other, problem])
    given = np.vstack([np.zeros_like(assignment), assignment])
    assert both.placements_of(given, np.array([1])).tolist() == [padded]
    assert both.placements_of(given, np.array([1, 0])).tolist() == [padded, [0, 0, 0, 0, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize("padding", [(6, 3), (7, 2)])
def test_a_task_that_is_too_large_names_its_size(task: Any, padding: tuple[int, int]) -> None:
    with pytest.raises(InvalidTaskError, match=r"'random' has 7 tables and 3 devices.*Raise max_tables or max_devices"):
        prepare(task, MODEL, *padding)
