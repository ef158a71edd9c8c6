"""A prepared task: in placement order, padded with zeros, and stacked without loss."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.problem import TableRows, prepare
from shard_gym.errors import InvalidTaskError

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


def test_an_assignment_is_given_back_in_the_tasks_own_order(task: Any, random_task: Any, together: Any) -> None:
    problem = together([random_task(np.random.default_rng(9), 4, 3), task], 9, 3)
    placement = np.array([2, 0, 1, 1, 0, 2, 2])
    assignment = np.array([[0] * 9, [-1] * 9])
    assignment[1, :7] = placement[problem.order[1, :7]]
    padded = [*placement.tolist(), -1, -1]
    assert problem.placements_of(assignment, np.array([1])).tolist() == [padded]
    assert problem.placements_of(assignment, np.array([1, 0])).tolist() == [padded, [0] * 4 + [-1] * 5]


@pytest.mark.parametrize("padding", [(6, 3), (7, 2)])
def test_a_task_that_is_too_large_names_its_size(task: Any, padding: tuple[int, int]) -> None:
    with pytest.raises(InvalidTaskError, match=r"'random' has 7 tables and 3 devices.*Raise max_tables or max_devices"):
        prepare(task, MODEL, *padding)
