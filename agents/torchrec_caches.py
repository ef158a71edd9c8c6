"""What TorchRec's planner is told of caches: the miss rates of an LRU cache of each table, by its size.

TorchRec's `CacheStatistics` are those of FBGEMM's cache, which counts batches and rows once in each. A batch reads row
k with the probability P_k = 1 - exp(-its expected reads), and a cache that keeps the rows of the last t batches finds
it unless none of them read it. So by Che's approximation

    rows in the cache = sum_k (1 - (1 - P_k)^t),    misses of a batch = sum_k P_k (1 - P_k)^t

and t, of any size, gives a point of the curve of misses over sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torchrec.distributed.types import CacheStatistics

from shard_gym.cost_models.base import FloatArray
from shard_gym.tables import Tables

BATCHES = np.concatenate([[0.0], np.exp2(np.arange(-12.0, 40.0, 0.5))])
"""The times t of the points, in batches; beyond, a cache has all rows that are ever read."""


@dataclass(frozen=True)
class LruStatistics(CacheStatistics):  # type: ignore[misc]
    """Those of a table: expected distinct rows of a batch, and the curve of its miss rates.

    Attributes:
        distinct_rows: expected rows that a global batch reads.
        load_factors: (N,) float64, rising from 0 to 1, sizes of the cache as shares of the rows.
        miss_rates: (N,) float64, falling from 1 to 0.
    """

    distinct_rows: float
    load_factors: FloatArray
    miss_rates: FloatArray

    @property
    def expected_lookups(self) -> float:
        """Distinct rows of a global batch, as TorchRec has it."""
        return self.distinct_rows

    def expected_miss_rate(self, clf: float) -> float:
        """Of a cache with that load factor."""
        return float(np.interp(clf, self.load_factors, self.miss_rates))

    @property
    def cacheability(self) -> float:
        """The area under the curve, as that of TorchRec's `EmbeddingOffloadStats`."""
        return float(np.trapezoid(self.miss_rates, self.load_factors))


def lru_statistics(tables: Tables) -> list[LruStatistics]:
    """Those of each table."""
    rows = tables.num_embeddings.astype(np.float64)
    shares, counts = tables.row_popularity.steps(rows)
    found = []
    for share, count, reads, total in zip(shares, counts, tables.lookups_per_batch, rows, strict=True):
        missed = np.exp(-np.outer(BATCHES, share * reads))  # (N, steps), that none of t batches read the row
        read = -np.expm1(-share * reads) * count
        distinct = float(read.sum())
        kept = (1.0 - missed) @ count / max(float(count.sum()), 1e-300)
        misses = missed @ read / max(distinct, 1e-300) if distinct else 1.0 - kept
        found.append(LruStatistics(min(distinct, total), np.append(np.minimum(kept, 1.0), 1.0), np.append(misses, 0.0)))
    return found
