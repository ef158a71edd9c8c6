"""Observations for the networks and policies; all randomness comes from the seeds given here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.agents.sb3.network import INPUTS, MAX_SHARDS, SPLIT_TYPES
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.tasks import Task, TaskSuite

Observations = dict[str, torch.Tensor]


@pytest.fixture(scope="session", params=INPUTS)
def observed(random_task: Callable[..., Task], request: pytest.FixtureRequest) -> Observations:
    """Observations from the middle of 16 episodes on two to five devices, where some tables do not fit any more."""
    rng = np.random.default_rng(1)
    tasks = [random_task(rng, 14, 2 + number % 4, slack=1.1, name=f"task/{number}") for number in range(16)]
    suite = TaskSuite("some", tuple(tasks))
    envs: EmbeddingPlacementVectorEnv
    if request.param == "splits":
        splits = {"sharding_types": SPLIT_TYPES, "max_shards": MAX_SHARDS}
        envs = EmbeddingShardingVectorEnv(16, suite, observation="compact", **splits)
    else:
        envs = EmbeddingPlacementVectorEnv(16, suite, observation=request.param)
    observation, _ = envs.reset(seed=0, options={"tasks": list(range(16))})
    for _ in range(9):
        legal = envs.action_masks()
        observation, *_ = envs.step(np.where(legal, rng.random(legal.shape), -1).argmax(axis=1))
    real = observation["device_mask"] > 0
    fits = observation["action_mask"][:, : real.shape[1]] > 0
    assert (real & ~fits).any()
    assert (~real).any()
    return {key: torch.from_numpy(array) for key, array in observation.items()}


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield
