"""The contract tests walk over every registered environment, with every observation and every reward.

They run on every version of Gymnasium that is supported (`make check-gymnasium`).

The contract of the measured environments is tested with measurements that are made up: they differ from the estimates,
but not from one time to the next, so that two environments can be compared. tests/envs/real measures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import shard_gym
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.measured.measurement import Measurement
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.registration import ENVIRONMENTS
from shard_gym.tables import Tables
from shard_gym.topology import Topology

assert shard_gym.__version__  # importing it registers the environments


@pytest.fixture(autouse=True)
def made_up_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as long again as the estimate."""

    def estimate(model: MeasuredCostModel, placement: Any, tables: Tables, topology: Topology) -> Measurement:
        estimated = AnalyticalCostModel().estimate(placement, tables, topology)
        phases_ms = 1.5 * estimated.phases_ms
        return Measurement(phases_ms, 1.5 * estimated.total_ms, phases_ms[None], spread=0.01, seconds=0.0)

    monkeypatch.setattr(MeasuredCostModel, "estimate", estimate)


SUITES = ("dlrm-20x4", "generalize")


def _pairs() -> Iterator[tuple[str, str, str, str]]:
    """Environment, suite, observation and reward, so that all pairs of two of them occur; a covering array."""
    observations = list(OBSERVATIONS)
    for (a, env_id), (b, reward) in itertools.product(enumerate(ENVIRONMENTS), enumerate(REWARDS)):
        yield env_id, SUITES[(a + 2 * b) % 3 == 0], observations[(a + b) % len(observations)], reward


CHOSEN = list(_pairs())
VALUES = (list(ENVIRONMENTS), SUITES, list(OBSERVATIONS), list(REWARDS))
for one, other in itertools.combinations(range(4), 2):
    assert {(case[one], case[other]) for case in CHOSEN} == set(itertools.product(VALUES[one], VALUES[other]))

CASES = [
    pytest.param(
        (env_id, {"suite": suite, "observation": observation, "reward": reward}),
        id=f"{env_id}-{suite}-{observation}-{reward}",
    )
    for env_id, suite, observation, reward in CHOSEN
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
