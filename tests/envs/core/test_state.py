"""The one step: pure, equal for one row and for many, and still once a row is over."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.problem import Problem, prepare
from shard_gym.envs.core.state import (
    UNPLACED,
    PlacementState,
    Status,
    action_mask,
    advance,
    begin,
    initial_state,
    step,
)
from shard_gym.placement import memory_used

MODEL = make_cost_model("analytical")
SEEDS = st.integers(0, 2**32 - 1)
MAX_TABLES, MAX_DEVICES = 12, 9


def mixed_tasks(random_task: Any, rng: np.random.Generator, count: int, most_per_host: int = 8) -> list[Any]:
    """Tasks of all sizes, half of them with little memory."""
    return [
        random_task(
            rng,
            int(rng.integers(1, MAX_TABLES + 1)),
            int(rng.integers(1, MAX_DEVICES + 1)),
            slack=None if row % 2 else 1.1,
            devices_per_host=int(rng.integers(1, most_per_host + 1)) if most_per_host < 9 else MAX_DEVICES,
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
@pytest.mark.parametrize("hosts", ["one or several", "one"])
def test_many_rows_step_exactly_as_each_would_alone(random_task: Any, count: int, seed: int, hosts: str) -> None:
    rng = np.random.default_rng([seed, count])
    problems = [prepared(task) for task in mixed_tasks(random_task, rng, count, 9 if hosts == "one" else 8)]
    together = Problem.stack(problems)
    if hosts == "one" or count > 1:
        assert together.cluster.crosses_hosts.any() == (hosts != "one")
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
    for record in (state, problem, problem.tables, problem.cluster):
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


# In place


def under_way(random_task: Any, seed: int, count: int, steps: int, per_host: int = 3) -> tuple[Problem, PlacementState]:
    """`count` placements after `steps` steps, on several hosts where `per_host` is small; some of them over."""
    rng = np.random.default_rng(seed)
    tasks = [random_task(rng, 3 + row % 9, 2 + row % 7, devices_per_host=per_host) for row in range(count)]
    problem = Problem.stack([prepared(task) for task in tasks])
    state = initial_state(problem, MODEL)
    for _ in range(steps):
        state = step(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
    return problem, state


def differing(one: PlacementState, other: PlacementState, rows: Any = slice(None)) -> list[str]:
    """The arrays that are not equal bit for bit, zeros of different sign included, or not of one dtype."""
    pairs = [(name, value, getattr(other, name)) for name, value in vars(one).items()]
    return [n for n, a, b in pairs if a.dtype != b.dtype or a[rows].tobytes() != b[rows].tobytes()]


@pytest.mark.parametrize("per_host", [3, 16], ids=["several hosts", "one host"])
def test_advancing_gives_what_a_step_gives(random_task: Any, per_host: int) -> None:
    problem, state = under_way(random_task, 5, 33, 2, per_host)
    assert problem.cluster.crosses_hosts.any() == (per_host == 3)
    rng = np.random.default_rng(6)
    arrays = dict(vars(state))
    for _ in range(MAX_TABLES):
        actions = mostly_legal(action_mask(problem, state), rng)
        before, after = state.copy(), step(problem, state, actions, MODEL)
        assert not differing(before, state)
        advance(problem, state, actions, MODEL)
        assert not differing(after, state)
        was_over = before.status != Status.RUNNING
        assert not differing(before, state, was_over)
        assert differing(before, state) or was_over.all()
        assert all(array is getattr(state, name) for name, array in arrays.items())
    assert (state.status != Status.RUNNING).all()


def test_to_begin_again_touches_only_the_rows_given(random_task: Any) -> None:
    problem, state = under_way(random_task, 9, 12, 4)
    assert len(set(state.status.tolist())) >= 2
    before, fresh = state.copy(), initial_state(problem, MODEL)
    again = np.array([11, 2, 3])
    begin(problem, state, again)
    rest = np.setdiff1d(np.arange(12), again)
    assert not differing(state, fresh, again)
    assert not differing(state, before, rest)
    assert differing(state, before, again)


def test_one_row_is_taken_out_and_put_back(random_task: Any) -> None:
    problem, state = under_way(random_task, 10, 6, 3)
    before, row = state.copy(), state.row(4)
    assert row.step.shape == (1,)
    advance(problem, state, action_mask(problem, state).argmax(axis=1), MODEL)
    assert not differing(before.row(4), row)  # a copy
    advanced = state.copy()
    state.put(4, row)
    assert not differing(state, before, [4])
    assert not differing(state, advanced, [0, 1, 2, 3, 5])


@pytest.mark.parametrize(
    "copied",
    [lambda state: pickle.loads(pickle.dumps(state)), copy.deepcopy, copy.copy, PlacementState.copy],
    ids=["pickle", "deepcopy", "copy", "own copy"],
)
@pytest.mark.parametrize("count", [1, 5])
def test_a_state_that_was_copied_goes_on_as_the_original(
    random_task: Any, copied: Callable[[PlacementState], PlacementState], count: int
) -> None:
    """A step writes through views of the arrays, which a change of their layout in memory would turn into copies."""
    problem, state = under_way(random_task, 11, count, 1)
    twin = copied(state.copy())
    assert not differing(twin, state)
    for _ in range(3):
        actions = action_mask(problem, state).argmax(axis=1)
        advance(problem, state, actions, MODEL)
        advance(problem, twin, actions, MODEL)
        assert not differing(twin, state)
    assert state.memory_used.any()


def test_a_problem_that_was_pickled_costs_the_same(random_task: Any) -> None:
    problem, state = under_way(random_task, 12, 9, 0)
    twin, other = pickle.loads(pickle.dumps(problem)), state.copy()
    for _ in range(MAX_TABLES):
        actions = action_mask(problem, state).argmax(axis=1)
        advance(problem, state, actions, MODEL)
        advance(twin, other, actions, MODEL)
        assert not differing(state, other)
    assert state.cost_ms.all()
