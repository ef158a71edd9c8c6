"""The contract tests walk over every registered environment, with every observation and every reward.

They run on every version of Gymnasium that is supported (`make check-gymnasium`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import shard_gym
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.placement.reward import REWARDS
from shard_gym.envs.registration import ENVIRONMENTS

assert shard_gym.__version__  # importing it registers the environments

CASES = [
    pytest.param(
        (env_id, {"suite": suite, "observation": observation, "reward": reward}),
        id=f"{env_id}-{suite}-{observation}-{reward}",
    )
    for env_id, suite, observation, reward in itertools.product(
        ENVIRONMENTS, ("dlrm-20x4", "generalize"), OBSERVATIONS, REWARDS
    )
]

# What one step gave: observation, reward, terminated, truncated, info; reward is None for a reset.
Result = tuple[Any, Any, bool, bool, dict[str, Any]]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """An environment's id and the arguments to make it with."""
    made: tuple[str, dict[str, Any]] = request.param
    return made


@pytest.fixture
def make(case: tuple[str, dict[str, Any]]) -> Callable[..., gymnasium.Env[Any, Any]]:
    """Makes the environment of this case, with further arguments."""
    env_id, arguments = case
    return lambda **more: gymnasium.make(env_id, **{**arguments, **more})


def _rollout(env: gymnasium.Env[Any, Any], actions: np.random.Generator, steps: int) -> list[Result]:
    """`steps` steps, seven in eight of them legal, with a reset (unseeded) after every end."""
    info: dict[str, Any] = {"action_mask": env.get_wrapper_attr("action_masks")().astype(np.int8)}
    results: list[Result] = []
    for _ in range(steps):
        legal = np.flatnonzero(info["action_mask"]) if actions.random() < 0.875 else np.arange(env.action_space.n)
        obs, reward, terminated, truncated, info = env.step(int(actions.choice(legal)))
        results.append((obs, reward, terminated, truncated, info))
        if terminated or truncated:
            obs, info = env.reset()
            results.append((obs, None, False, False, info))
    return results


@pytest.fixture(scope="session")
def rollout() -> Callable[..., list[Result]]:
    return _rollout


def _same(one: Any, other: Any) -> bool:
    """Equal in every element, in type and in dtype."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    # It must be able to say no.
    assert not _same({"a": np.zeros(2)}, {"a": np.array([0.0, 1e-12])})
    assert not _same(np.zeros(2, np.float32), np.zeros(2))
    assert not _same([1, 2], [1])
    assert _same({"a": (np.ones(3), "b")}, copy.deepcopy({"a": (np.ones(3), "b")}))
    return _same


def _arrays(value: Any) -> list[np.ndarray]:
    """Every array in nested dicts, lists and tuples."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for each in value.values() for array in _arrays(each)]
    if isinstance(value, (list, tuple)):
        return [array for each in value for array in _arrays(each)]
    return []


@pytest.fixture(scope="session")
def arrays_in() -> Callable[[Any], list[np.ndarray]]:
    return _arrays
