"""One environment alone, stepped and observed on plain numbers: bit for bit what the arrays of many give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import AnalyticalCostModel, PlainCosts
from shard_gym.envs.core.problem import prepare
from shard_gym.envs.core.state import (
    MAX_PLAIN_DEVICES,
    PlacementState,
    Status,
    action_mask,
    advance,
    initial_state,
)
from shard_gym.envs.placement.observation import OBSERVATIONS, make_observation

PADDING = (12, 17)
"""Tables and devices."""


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


def same_bits(one: Any, many: Any) -> None:
    """`one` (N = 1) is row 0 of `many`, zeros of different sign and dtypes included."""
    assert one.keys() == many.keys()
    for key, value in one.items():
        assert (value.dtype, value.shape[1:]) == (many[key].dtype, many[key].shape[1:]), key
        assert value.tobytes() == many[key][:1].tobytes(), key


def an_episode(task: Any, together: Any, rng: np.random.Generator) -> int:
    """Play `task` alone and as two environments of one batch; the status at the end."""
    model, arrays = Watched(), Watched()
    alone = prepare(task, model, *PADDING)
    twice = together([task, task], *PADDING)
    state, states = initial_state(alone, model), initial_state(twice, model)
    model.arrays = model.plain = legal = 0
    for _ in range(task.num_tables + 1):  # and once more after the end
        for name in OBSERVATIONS:
            observe = make_observation(name)
            same_bits(observe(alone, state), observe(twice, states))
        mask = action_mask(alone, state)
        assert mask.tobytes() == action_mask(twice, states)[:1].tobytes()
        action = rng.integers(PADDING[1]) if rng.random() < 0.04 else rng.choice(np.flatnonzero(mask[0]))
        legal += bool(state.fits[0, action])
        advance(alone, state, np.array([action]), model)
        advance(twice, states, np.array([action, action]), arrays)
        same_bits(vars(state), vars(states))
        assert legal == model.plain - model.arrays  # an illegal action asks, and goes on with the arrays
    return int(state.status[0])


@given(seed=st.integers(0, 2**32 - 1))
def test_alone_is_as_among_others(random_task: Any, together: Any, seed: int) -> None:
    """Tasks of all sizes on one host or several, tables of mixed widths, ample and tight memory."""
    rng = np.random.default_rng(seed)
    slack = rng.choice([None, 1.02, 1.3])
    tables, devices = int(rng.integers(1, PADDING[0] + 1)), int(rng.integers(1, PADDING[1] + 1))
    task = random_task(rng, tables, devices, slack=slack, devices_per_host=int(rng.integers(1, 18)))
    an_episode(task, together, rng)


def test_episodes_end_in_every_way(random_task: Any, together: Any) -> None:
    """Or the comparison above would not see all of them."""
    rng = np.random.default_rng(0)
    ends = [an_episode(random_task(rng, 9, 3, slack=1.05), together, rng) for _ in range(30)]
    assert set(ends) == {Status.COMPLETE, Status.ILLEGAL_ACTION, Status.DEAD_END}


@pytest.mark.parametrize("devices", [MAX_PLAIN_DEVICES, MAX_PLAIN_DEVICES + 1])
def test_with_many_devices_arrays_take_over(random_task: Any, devices: int) -> None:
    model = Watched()
    problem = prepare(random_task(np.random.default_rng(0), 3, 2), model, 3, devices)
    state: PlacementState = initial_state(problem, model)
    model.arrays = 0
    advance(problem, state, np.array([1]), model)
    assert (model.plain, model.arrays) == ((1, 0) if devices == MAX_PLAIN_DEVICES else (0, 1))
