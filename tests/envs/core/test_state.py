"""`advance`, the one step: equal for one row and for many, and no change once a row is over."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.problem import Problem, prepare
from shard_gym.envs.core.state import UNPLACED, PlacementState, Status, action_mask, advance, begin, initial_state
from shard_gym.placement import memory_used

MODEL = make_cost_model("analytical")
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


def under_way(random_task: Any, seed: int, count: int, steps: int) -> tuple[Problem, PlacementState]:
    """`count` placements after `steps` steps, on several hosts; some of them over."""
    rng = np.random.default_rng(seed)
    tasks = [random_task(rng, 3 + row % 9, 2 + row % 7, devices_per_host=3) for row in range(count)]
    problem = Problem.stack([prepared(task) for task in tasks])
    state = initial_state(problem, MODEL)
    for _ in range(steps):
        advance(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
    return problem, state


def differing(one: PlacementState, other: PlacementState, rows: Any = slice(None)) -> list[str]:
    """The arrays that are not equal bit for bit, zeros of different sign included, or not of one dtype."""
    pairs = [(name, value, getattr(other, name)) for name, value in vars(one).items()]
    return [n for n, a, b in pairs if a.dtype != b.dtype or a[rows].tobytes() != b[rows].tobytes()]


# One step


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
        before = state.copy()
        advance(together, state, actions, MODEL)
        assert not differing(before, state, before.over)
        for i, (problem, row) in enumerate(zip(problems, alone, strict=True)):
            advance(problem, row, actions[i : i + 1], MODEL)
        for name, value in vars(state).items():
            expected = np.concatenate([getattr(row, name) for row in alone])
            assert value.dtype == expected.dtype
            assert np.array_equal(value, expected), name
    assert (state.status != Status.RUNNING).all()
    if count == 33:  # the comparison saw every way to end
        assert set(state.status.tolist()) == {Status.COMPLETE, Status.ILLEGAL_ACTION, Status.DEAD_END}


@given(seed=st.integers(0, 2**32 - 1))
def test_the_state_is_what_the_assignment_says(random_task: Any, seed: int) -> None:
    """Loads, memory, phases and cost of every row, recomputed from scratch after every step."""
    rng = np.random.default_rng(seed)
    tasks = mixed_tasks(random_task, rng, 3)
    problem = Problem.stack([prepared(task) for task in tasks])
    state = initial_state(problem, MODEL)
    for _ in range(MAX_TABLES):
        advance(problem, state, mostly_legal(action_mask(problem, state), rng), MODEL)
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


def test_a_step_writes_into_the_state_and_nothing_else(random_task: Any) -> None:
    problem, state = under_way(random_task, 5, 33, 2)
    assert problem.cluster.crosses_hosts.any()
    for record in (problem, problem.tables, problem.cluster):
        for value in vars(record).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
    arrays, before = dict(vars(state)), state.copy()
    advance(problem, state, action_mask(problem, state).argmax(axis=1), MODEL)
    assert differing(before, state)
    assert all(array is getattr(state, name) for name, array in arrays.items())


def test_an_illegal_action_places_nothing(random_task: Any) -> None:
    problem = prepared(random_task(np.random.default_rng(0), 4, 2))
    state = initial_state(problem, MODEL)
    advance(problem, state, np.array([0]), MODEL)
    before = state.copy()
    advance(problem, state, np.array([5]), MODEL)
    assert state.status[0] == Status.ILLEGAL_ACTION
    assert sorted(differing(before, state)) == ["fits", "status"]


# Where a state begins, and copies of it


def test_nothing_placed_costs_nothing(random_task: Any) -> None:
    problem = prepared(random_task(np.random.default_rng(0), 4, 3))
    state = initial_state(problem, MODEL)
    assert state.cost_ms.tolist() == [0.0]
    assert not state.phases_ms.any()
    assert (state.assignment == UNPLACED).all()
    assert action_mask(problem, state)[0].tolist() == [True] * 3 + [False] * 6


def test_to_begin_again_touches_only_the_rows_given(random_task: Any) -> None:
    problem, state = under_way(random_task, 9, 12, 4)
    assert len(set(state.status.tolist())) >= 2
    before, fresh = state.copy(), initial_state(problem, MODEL)
    again = np.array([11, 2, 3])
    begin(problem, state, again)
    assert not differing(state, fresh, again)
    assert not differing(state, before, np.setdiff1d(np.arange(12), again))
    assert differing(state, before, again)


@pytest.mark.parametrize(
    "copied",
    [lambda state: pickle.loads(pickle.dumps(state)), copy.deepcopy, PlacementState.copy],
    ids=["pickle", "deepcopy", "own copy"],
)
@pytest.mark.parametrize("count", [1, 5])
def test_a_copied_state_goes_on_as_the_original(
    random_task: Any, copied: Callable[[PlacementState], PlacementState], count: int
) -> None:
    """A step writes through views of the arrays, which another layout in memory would turn into copies."""
    problem, state = under_way(random_task, 11, count, 1)
    twin = copied(state)
    assert not any(np.shares_memory(value, getattr(twin, name)) for name, value in vars(state).items())
    for _ in range(3):
        actions = action_mask(problem, state).argmax(axis=1)
        advance(problem, state, actions, MODEL)
        advance(problem, twin, actions, MODEL)
        assert not differing(twin, state)
    assert state.memory_used.any()


def test_a_pickled_problem_costs_the_same(random_task: Any) -> None:
    problem, state = under_way(random_task, 12, 9, 0)
    twin, other = pickle.loads(pickle.dumps(problem)), state.copy()
    for _ in range(MAX_TABLES):
        actions = action_mask(problem, state).argmax(axis=1)
        advance(problem, state, actions, MODEL)
        advance(twin, other, actions, MODEL)
        assert not differing(state, other)
    assert state.cost_ms.all()


def test_a_table_that_fills_a_device_exactly_fits(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 2, 2)
    first = prepared(task).tables.memory[0, 0]
    caps = np.array([first, 2 * task.tables.memory_bytes.sum()])
    exact = prepared(replace(task, topology=replace(task.topology, memory_cap_bytes=caps)))
    state = initial_state(exact, MODEL)
    assert state.fits[0, :2].tolist() == [True, True]
    advance(exact, state, np.array([0]), MODEL)
    assert state.fits[0, :2].tolist() == [False, True]
