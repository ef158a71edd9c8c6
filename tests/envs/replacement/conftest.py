"""Builders of tests of re-placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.drift.levels import STRONG, DriftLevel
from shard_gym.drift.tasks import DriftTask
from shard_gym.hardware import hardware_profile
from shard_gym.pools import load_pool
from shard_gym.row_popularity import RowPopularity
from shard_gym.tasks import Task


@pytest.fixture(scope="session")
def drift_task() -> Callable[..., DriftTask]:
    """Makes a task of a few tables of `dlrm-2021` with mixed dims on a few devices."""
    pool = load_pool("dlrm-2021")
    assert pool.popularity is not None
    popularity = pool.popularity

    def make(
        tables: int = 6, devices: int = 2, seed: int = 0, level: DriftLevel = STRONG, pause_s: float = 60.0, **rest: Any
    ) -> DriftTask:
        rng = np.random.default_rng([seed, 77])
        chosen = rng.choice(len(pool.tables), tables, replace=False)
        drifting = pool.tables.select(chosen).with_dims(rng.choice([16, 32, 64, 128], tables))
        task = Task(f"drift {seed}", drifting, hardware_profile("a100-dgx").topology(devices))
        law = RowPopularity(popularity.q[chosen], popularity.s[chosen])
        return DriftTask(f"drift {seed}", task, law, level, seed, pause_s, **rest)

    return make
