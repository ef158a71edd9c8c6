"""DreamShard's features of tables: their names, their scale and their bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.lookup_statistics import NUM_BINS

MAX_ROWS = 2**40
MAX_DIM = 2**16
MAX_BYTES = 2**62
"""The most bytes of all tables together: sums are int64, which ends at 2**63."""

FEATURE_NAMES: tuple[str, ...] = (
    "embedding_dim",
    "num_embeddings",
    "pooling_factor",
    "table_size",
    *(f"reuse_bin_{k}" for k in range(NUM_BINS)),
)
"""DreamShard's 21 table features (daochenzha/dreamshard, dreamshard/utils.py), in its order."""

FEATURE_MEAN = (4.0875, 19.28, 3.23, 0.127)
FEATURE_STD = (1.0, 3.36, 1.46, 0.233)
"""Mean and std of log2(1 + x) of the first four features, table_size in GiB: rounded numbers of the pool `dlrm-2021` at
dim 16 in FP16 (its dims are constant, so their std is set to 1). One scale serves all pools and tasks, so that equal
tables have equal features everywhere and a task of equal tables yields no NaN."""


def scaled(sizes: ArrayLike) -> NDArray[np.float64]:
    """(..., 4) dim, rows, pooling factor and GiB of a table as its first features."""
    return np.asarray((np.log2(1.0 + np.asarray(sizes)) - np.asarray(FEATURE_MEAN)) / np.asarray(FEATURE_STD))


_BINS = np.repeat([[0.0], [1.0]], NUM_BINS, axis=1)
_SIZES = [(4, 1, 0, 0), (MAX_DIM, MAX_ROWS, 1e6, MAX_BYTES / 2**30)]
FEATURE_BOUNDS: NDArray[np.float32] = np.concatenate([scaled(_SIZES), _BINS], axis=1).astype(np.float32)
"""(2, 21) float32, the least and the largest value of each of `FEATURE_NAMES` that tables can have."""
