"""Environments that step under random legal actions, and the suites that they play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from timing import Stopwatch

import shard_gym
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.tasks import TaskSampler

Run = Callable[[Stopwatch], int]
"""Steps for a while, times itself, and returns how many steps those were."""


def sampler(tables: int, devices: int, hbm_share: tuple[float, float] | None = None) -> TaskSampler:
    """Tasks of one size, one host, mixed dims; with `hbm_share` they have host memory."""
    pool, dims = shard_gym.load_pool("dlrm-2022").tables, (16, 32, 64, 128)
    return TaskSampler(pool, (tables, tables), (devices, devices), "a100-dgx", dims, hbm_share=hbm_share)


def fixed_suite(
    tables: int, devices: int, hbm_share: tuple[float, float] | None = None, count: int = 50
) -> shard_gym.TaskSuite:
    """`count` such tasks as a suite."""
    rng, source = np.random.default_rng(0), sampler(tables, devices, hbm_share)
    return shard_gym.TaskSuite(f"{tables}x{devices}", tuple(source.sample(rng) for _ in range(count)))


def prepare_tasks(env: Any, suite: shard_gym.TaskSuite) -> None:
    """Begin every task once, because a task is prepared when it comes for the first time."""
    for number in range(len(suite)):
        env.reset(options={"task": number})


def scalar_steps(env: Any, suite: shard_gym.TaskSuite) -> Run:
    """Steps of one environment; the time to choose actions is not counted."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    prepare_tasks(env, suite)

    def run(watch: Stopwatch) -> int:
        for _ in range(1000):
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            with watch:
                if env.step(action)[2]:
                    env.reset()
        return 1000

    return run


def vector_steps(envs: EmbeddingPlacementVectorEnv, suite: shard_gym.TaskSuite) -> Run:
    """Steps of a vector environment over whole episodes with resets; the time to choose actions is not counted."""
    prepare_tasks(envs, suite)
    seen, _ = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    noise = [rng.random(seen["action_mask"].shape) for _ in range(8)]

    def run(watch: Stopwatch) -> int:
        nonlocal seen
        steps = 2 * suite.max_tables + 2
        for number in range(steps):
            actions = (noise[number % 8] * seen["action_mask"]).argmax(axis=1)
            with watch:
                seen, *_ = envs.step(actions)
        return steps * envs.num_envs

    return run
