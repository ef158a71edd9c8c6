"""Tables at the limits of what `Tables` takes: every observation is in its space, or the task is refused in words."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTaskError, ShardGymError
from shard_gym.envs.core.problem import MAX_MS
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.hardware import HostMemory, Topology, hardware_profile
from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.levels import GROWING, SPOT, STRONG
from shard_gym.tables import NUM_BINS, RowPopularity, Tables, Workload
from shard_gym.tables.row_popularity import assumed_popularity
from shard_gym.tables.tables import LIMITS, MAX_SEQUENCE
from shard_gym.tables.workload import MAX_BATCH_SIZE
from shard_gym.tasks import Task, TaskSuite

SEEDS = st.integers(0, 2**32 - 1)


def between(rng: np.random.Generator, name: str, count: int) -> np.ndarray:
    """The least, the most, or a number between, by its logarithm."""
    dtype, least, most = LIMITS[name]
    found = np.exp(rng.uniform(np.log(max(least, 1e-9)), np.log(most), count))
    found = rng.choice([np.full(count, least), np.full(count, most), found, found])
    return found.astype(dtype)


def extreme_task(rng: np.random.Generator, *, host: bool) -> Task:
    """A task of tables at the limits; half of their numbers are of ordinary size, so that some tasks are none."""
    count, batch = int(rng.integers(1, 5)), int(rng.choice([1, 1024, 2**16, MAX_BATCH_SIZE]))
    pooled = rng.random(count) < 0.8
    rows, dims = between(rng, "num_embeddings", count), np.maximum(between(rng, "embedding_dim", count) // 4 * 4, 4)
    if rng.integers(2):
        rows, dims = np.minimum(rows, 10**7), np.minimum(dims, 512)
    pooling = between(rng, "pooling_factor", count)
    pooling = np.where(pooled, pooling, np.minimum(pooling, MAX_SEQUENCE))
    lookups = pooling * batch
    shares = np.eye(NUM_BINS)[rng.integers(NUM_BINS, size=count)] * (lookups > 0)[:, None]
    tables = Tables(
        num_embeddings=rows,
        embedding_dim=dims,
        pooling_factor=pooling,
        distinct_rows=np.minimum(rows, lookups) * rng.choice([0.0, 1e-9, 0.5, 1.0], count),
        reuse_histogram=shares,
        access_histogram=shares,
        workload=Workload(
            batch, str(rng.choice(["fp16", "fp32"])), str(rng.choice(["adam", "sgd", "rowwise_adagrad"]))
        ),
        num_features=between(rng, "num_features", count),
        pooled=pooled,
    )
    caps = int(rng.choice([2**20, 2**36, 2**62]))
    topology: Topology = hardware_profile("a100-dgx").topology(
        int(rng.choice([1, 2, 3, 9])), devices_per_host=int(rng.choice([1, 2, 8])), memory_cap_bytes=caps
    )
    if host:
        topology = Topology(**{**vars(topology), "host": HostMemory(int(rng.choice([1, 2**20, 2**62])), 1e-3, 1e3)})
    return Task("extreme", tables, topology, splittable=bool(rng.integers(2)))


def require_in_space(env: Any, rng: np.random.Generator, most: int = 40) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        obs, _ = env.reset(seed=0)
        over = False
        for _ in range(most):
            wrong = {key: obs[key] for key, space in env.observation_space.items() if not space.contains(obs[key])}
            assert not wrong
            if over:
                return
            obs, reward, over, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
            assert np.isfinite(reward)


@settings(max_examples=80)
@given(seed=SEEDS)
@pytest.mark.parametrize("kind", [EmbeddingPlacementEnv, EmbeddingShardingEnv])
def test_every_observation_of_extreme_tables_is_in_its_space(kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with suppress(ShardGymError):
        task = extreme_task(rng, host=bool(rng.integers(4) == 0))
        env = kind(TaskSuite("extremes", [task]), observation=str(rng.choice(list(OBSERVATIONS))))
        require_in_space(env, rng)


@settings(max_examples=15)
@given(seed=SEEDS)
def test_every_observation_of_extreme_tables_that_drift_is_in_its_space(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with suppress(ShardGymError):
        task = extreme_task(rng, host=False)
        laws = RowPopularity(rng.choice([0.0, 1000.0], task.num_tables), rng.choice([0.0, 1.0, 3.0], task.num_tables))
        level = (STRONG, GROWING, SPOT)[rng.integers(3)]
        drifts = DriftTask("drifts", task, laws, level, int(rng.integers(100)), float(rng.choice([1e-6, 60.0, 1e9])))
        require_in_space(EmbeddingReplanningEnv(DriftSuite("extremes", [drifts])), rng)


@pytest.mark.parametrize("kind", [EmbeddingPlacementEnv, EmbeddingShardingEnv])
def test_a_task_whose_costs_leave_the_space_is_refused(kind: Any) -> None:
    topology = hardware_profile("a100-dgx").topology(2)
    tables = Tables.from_zipf(
        [1000],
        1024,
        [
            1e6,
        ],
        1.0,
        Workload(MAX_BATCH_SIZE),
    )
    suite = TaskSuite("huge", [Task("huge", tables, topology)])
    with pytest.raises(
        InvalidTaskError, match=r"task 'huge' may take .* ms, and environments show costs of up to 1e\+09"
    ):
        kind(suite).reset()
    fewer = Tables.from_zipf([1000], 1024, [1e3], 1.0, Workload(2**20))
    env = kind(TaskSuite("less", [Task("less", fewer, topology)]))
    env.reset()
    assert 1e3 < env.problem.penalty_ms[0] < MAX_MS


def test_lookups_that_read_no_row_have_a_popularity() -> None:
    """Statistics with so few distinct rows that they were rounded to none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = assumed_popularity(np.array([100]), np.array([3.0]), np.zeros(1), np.zeros(1))
    assert np.isfinite(law.s).all()
    assert law.s[0] > 1
