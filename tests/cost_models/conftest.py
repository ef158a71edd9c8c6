"""Makes tables whose statistics agree with each other, as those of the pools do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from shard_gym.pools.zipf import reuse_statistics
from shard_gym.tables import Tables, Workload

MakeTables = Callable[..., Tables]


@pytest.fixture(scope="session")
def zipf_tables() -> MakeTables:
    """Tables read by a Zipf law of exponent s; s = 0 is uniform. One number serves for all tables."""

    def make(
        rows: Sequence[int],
        dims: Sequence[int] | int = 16,
        pooling: Sequence[float] | float = 10.0,
        *,
        s: Sequence[float] | float = 0.0,
        features: Sequence[int] | int = 1,
        batch_size: int = 4096,
        weight_dtype: str = "fp32",
        optimizer: str = "sgd",
    ) -> Tables:
        def each(value: float | Sequence[float]) -> np.ndarray:
            return np.broadcast_to(np.asarray(value), (len(rows),))

        statistics = reuse_statistics(rows, each(pooling) * float(batch_size), np.zeros(len(rows)), each(s))
        return Tables(
            num_embeddings=np.asarray(rows),
            embedding_dim=each(dims),
            pooling_factor=each(pooling),
            distinct_rows=statistics.distinct_rows,
            reuse_histogram=statistics.reuse_histogram,
            access_histogram=statistics.access_histogram,
            workload=Workload(batch_size, weight_dtype, optimizer),
            num_features=each(features),
        )

    return make
