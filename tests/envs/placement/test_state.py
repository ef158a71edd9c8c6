"""The one step: pure, equal for one row and for many, and still once a row is over."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.placement.problem import Problem, prepare
from shard_gym.envs.placement.state import UNPLACED, PlacementState, Status, action_mask, initial_state, step
from shard_gym.placement import memory_used

MODEL = make_cost_model("analytical")
SEEDS = st.integers(0, 2**32 - 1)
MAX_TABLES, MAX_DEVICES = 12, 9


def mixed_tasks(random_task: Any, rng: np.random.Generator, count: int) -> list[Any]:
    """Tasks of all sizes, half of them with little memory."""
    return [
        random_task(
            rng,
            int(rng.integers(1, MAX_TABLES + 1)),
            int(rng.integers(1, MAX_DEVICES + 1)),
            slack=None if row % 2 else 1.1,
            devices_per_host=int(rng.integers(1, 9)),
        )
        for row in range(count)
    ]


def prepared(task: Any) -> Problem:
    return prepare(task, MODEL, MAX_TABLES, MAX_DEVICES)


def mostly_legal(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N,) actions, one in ten of them any device."""
    picks = np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)
    return np.where(rng.random(len(picks)) < 0.1, rng.integers(mask.shape[1], size=len(picks)), picks)


@pytest.mark.parametrize("count", [1, 4, 33])
@pytest.mark.parametrize("seed", range(3))
def test_many_rows_step_exactly_as_each_would_alone(random_task: Any, count: int, seed: int) -> None:
    rng = np.random.default_rng([seed, count])
    problems = [prepared(task) for task in mixed_tasks(random_task, rng, count)]
    together = Problem.stack(problems)
    state, alone = initial_state(together, MODEL), [initial_state(problem, MODEL) for problem in problems]
    for _ in range(MAX_TABLES + 2):  # goes on after the last row is over
        actions = mostly_legal(action_mask(together, state), rng)
        state = step(together, state, actions, MODEL)
        alone = [
            step(problem, row, actions[i : i + 1], MODEL)
            for i, (problem, row) in enumerate(zip(problems, alone, strict=True))
        ]
        for name, value in asdict(state).items():
            expected = np.concatenate([getattr(row, name) for row in alone])
            assert value.dtype == expected.dtype
            assert np.array_equal(value, expected), name
    assert (state.status != Status.RUNNING).all()


def test_the_batch_met_every_way_to_end(random_task: Any) -> None:
    """The parity test above would be weak if it only saw complete placements."""
    rng = np.random.default_rng([0, 33])
    problem = Problem.stack([prepared(task) for task in mixed_tasks(random_task, rng, 33)])
    state = initial_state(problem, MODEL)
    for _ in range(MAX_TABLES):
        state = step(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
    assert set(state.status.tolist()) == {Status.COMPLETE, Status.ILLEGAL_ACTION, Status.DEAD_END}


@given(seed=SEEDS)
def test_the_state_is_what_the_assignment_says(random_task: Any, seed: int) -> None:
    """Loads, memory, phases and cost of every row, recomputed from scratch after every step."""
    rng = np.random.default_rng(seed)
    tasks = mixed_tasks(random_task, rng, 3)
    problem = Problem.stack([prepared(task) for task in tasks])
    state = initial_state(problem, MODEL)
    for _ in range(MAX_TABLES):
        state = step(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
        for row, task in enumerate(tasks):
            done = int(state.step[row])
            assert (state.assignment[row, :done] >= 0).all()
            assert (state.assignment[row, done:] == UNPLACED).all()
            chosen = problem.order[row, :done]
            if not done:
                assert not state.memory_used[row].any()
                continue
            placing, tables = state.assignment[row, :done], task.tables.select(chosen)
            estimate = MODEL.estimate(placing, tables, task.topology)
            assert state.cost_ms[row] == pytest.approx(estimate.total_ms, rel=1e-9)
            assert state.phases_ms[row, : task.num_devices] == pytest.approx(estimate.phases_ms, rel=1e-9)
            used = memory_used(placing, tables, task.num_devices)
            assert state.memory_used[row, : task.num_devices].tolist() == used.tolist()
            assert (used <= task.topology.memory_cap_bytes).all()
            assert not state.phases_ms[row, task.num_devices :].any()
            assert not state.memory_used[row, task.num_devices :].any()


def frozen(state: PlacementState, problem: Problem) -> None:
    """Writing to any array of these raises."""
    for record in (state, problem):
        for value in vars(record).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)


@pytest.mark.parametrize("actions", [[0, 0], [8, 0], [8, 8]])
def test_a_step_leaves_its_input_alone(random_task: Any, actions: list[int]) -> None:
    rng = np.random.default_rng(0)
    problem = Problem.stack([prepared(random_task(rng, 5, 3)), prepared(random_task(rng, 2, 2))])
    state = step(problem, initial_state(problem, MODEL), np.array([1, 1]), MODEL)
    frozen(state, problem)
    before = state.copy()
    after = step(problem, state, np.array(actions), MODEL)
    for name, value in asdict(before).items():
        assert np.array_equal(value, getattr(state, name))
        assert not np.shares_memory(getattr(after, name), getattr(state, name))
    assert (after.status != state.status).any()


def test_a_row_that_is_over_stays_as_it_is(random_task: Any) -> None:
    rng = np.random.default_rng(0)
    short, long = random_task(rng, 1, 2), random_task(rng, 6, 2)
    problem = Problem.stack([prepared(short), prepared(long), prepared(long)])
    state = step(problem, initial_state(problem, MODEL), np.array([1, 1, 8]), MODEL)
    assert state.status.tolist() == [Status.COMPLETE, Status.RUNNING, Status.ILLEGAL_ACTION]
    later = state
    for _ in range(5):
        later = step(problem, later, np.array([0, 0, 0]), MODEL)
    assert later.status.tolist() == [Status.COMPLETE, Status.COMPLETE, Status.ILLEGAL_ACTION]
    for name, value in asdict(state).items():
        assert np.array_equal(value[[0, 2]], getattr(later, name)[[0, 2]]), name
    assert later.step.tolist() == [1, 6, 0]


def test_an_illegal_action_places_nothing(random_task: Any) -> None:
    problem = prepared(random_task(np.random.default_rng(0), 4, 2))
    before = step(problem, initial_state(problem, MODEL), np.array([0]), MODEL)
    after = step(problem, before, np.array([5]), MODEL)
    assert after.status[0] == Status.ILLEGAL_ACTION
    for name in ("step", "assignment", "device_loads", "memory_used", "phases_ms", "cost_ms"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name


def test_nothing_placed_costs_nothing(random_task: Any) -> None:
    problem = prepared(random_task(np.random.default_rng(0), 4, 3))
    state = initial_state(problem, MODEL)
    assert state.cost_ms.tolist() == [0.0]
    assert not state.phases_ms.any()
    assert (state.assignment == UNPLACED).all()
    assert action_mask(problem, state)[0].tolist() == [True] * 3 + [False] * 6


def test_a_copy_shares_no_memory(random_task: Any) -> None:
    problem = prepared(random_task(np.random.default_rng(0), 4, 3))
    state = initial_state(problem, MODEL)
    twin = state.copy()
    for name, value in vars(state).items():
        assert np.array_equal(value, getattr(twin, name))
        assert not np.shares_memory(value, getattr(twin, name)), name
