"""`advance`, the one step: equal for one row and for many, and no change once a row is over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel, PlainCosts, make_cost_model
from shard_gym.envs.core.problem import Problem, prepare
from shard_gym.envs.core.state import (
    MAX_PLAIN_DEVICES,
    PlacementState,
    Status,
    action_mask,
    advance,
    initial_state,
)
from shard_gym.envs.placement.observation import OBSERVATIONS, make_observation

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


def differing(one: PlacementState, other: PlacementState, rows: Any = slice(None)) -> list[str]:
    """The arrays that are not equal bit for bit, or not of one dtype."""
    pairs = [(name, value, getattr(other, name)) for name, value in vars(one).items()]
    return [n for n, a, b in pairs if a.dtype != b.dtype or a[rows].tobytes() != b[rows].tobytes()]


@pytest.mark.parametrize("count", [4, 33])
@pytest.mark.parametrize("hosts", ["one or several", "one"])
def test_many_rows_step_exactly_as_each_would_alone(random_task: Any, together: Any, count: int, hosts: str) -> None:
    """The single ones on plain numbers, the many on arrays: state and observations bit by bit, after every step."""
    rng = np.random.default_rng(count)
    tasks = mixed_tasks(random_task, rng, count, 9 if hosts == "one" else 8)
    problems, many = [prepared(task) for task in tasks], together(tasks, MAX_TABLES, MAX_DEVICES)
    assert many.cluster.crosses_hosts.any() == (hosts != "one")
    state, alone = initial_state(many, MODEL), [initial_state(problem, MODEL) for problem in problems]
    for _ in range(MAX_TABLES + 2):  # goes on after the last row is over
        actions = mostly_legal(action_mask(many, state), rng)
        before = state.copy()
        advance(many, state, actions, MODEL)
        assert not differing(before, state, before.over)
        for i, (problem, row) in enumerate(zip(problems, alone, strict=True)):
            advance(problem, row, actions[i : i + 1], MODEL)
            assert not differing(row, PlacementState(**{name: value[i, None] for name, value in vars(state).items()}))
        for observation in OBSERVATIONS:
            observe = make_observation(observation)
            seen, own = observe(many, state), [observe(*each) for each in zip(problems, alone, strict=True)]
            for name, value in seen.items():
                expected = np.concatenate([each[name] for each in own])
                assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes()), name
    assert (state.status != Status.RUNNING).all()
    if count == 33:  # the comparison saw every way to end
        assert set(state.status.tolist()) == {Status.COMPLETE, Status.ILLEGAL_ACTION, Status.DEAD_END}


class Watched(AnalyticalCostModel):
    """Counts the steps on plain numbers and those on arrays."""

    def __init__(self) -> None:
        self.plain = self.arrays = 0

    def fill_communication(self, *arguments: Any) -> None:
        self.arrays += 1
        super().fill_communication(*arguments)

    @property
    def plain_costs(self) -> PlainCosts:
        self.plain += 1
        return super().plain_costs


@pytest.mark.parametrize(("devices", "steps"), [(MAX_PLAIN_DEVICES, (1, 0)), (MAX_PLAIN_DEVICES + 1, (0, 1))])
def test_one_environment_steps_on_plain_numbers_unless_it_has_many_devices(
    random_task: Any, devices: int, steps: tuple[int, int]
) -> None:
    model = Watched()
    problem = prepare(random_task(np.random.default_rng(0), 3, 2), model, 3, devices)
    state = initial_state(problem, model)
    model.arrays = 0
    advance(problem, state, np.array([1]), model)
    assert (model.plain, model.arrays) == steps
