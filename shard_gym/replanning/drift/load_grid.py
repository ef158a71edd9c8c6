"""The loads of drifting tables: computed on a grid of pooling factors, then interpolated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.replanning.drift.processes import HIGHEST, LOWEST
from shard_gym.tables import RowPopularity, Tables
from shard_gym.tables.row_popularity import reuse_statistics

NODES: FloatArray = np.append(0.0, np.geomspace(LOWEST, HIGHEST, 49))
"""Multiples of the pooling factor. Between neighbours, costs of tables of `dlrm-2021` are within 0.2% of linear."""

ROUNDING = 1e-9
"""Relative error of mean lookups."""


def drifted_tables(
    tables: Tables,
    popularity: RowPopularity,
    lookups: FloatArray,
    rows: FloatArray | float = 1.0,
    exponent: FloatArray | float = 1.0,
) -> Tables:
    """The T `tables` with other lookups and the statistics that are expected under the row popularity.

    `lookups`, `rows` and `exponent` are (T,) multiples of the pooling factors, of the rows (rounded to whole rows) and
    of the exponents of the popularity.
    """
    num_embeddings = np.maximum(np.rint(tables.num_embeddings * rows), 1.0)
    pooling = tables.pooling_factor * lookups
    exponents = popularity.s * exponent
    found = reuse_statistics(num_embeddings, pooling * tables.workload.batch_size, popularity.q, exponents)
    drifted = RowPopularity(popularity.q, exponents)
    return replace(tables, num_embeddings=num_embeddings, pooling_factor=pooling, **found._asdict(), popularity=drifted)


@dataclass(frozen=True, eq=False)
class TableGrid:
    """T drifting tables at those of the `NODES` that a day needs."""

    tables: Tables  #: one for each node that is needed, table by table
    needed: NDArray[np.bool_]  #: (T, G) bool

    @staticmethod
    def of(
        tables: Tables,
        popularity: RowPopularity,
        lowest: FloatArray,
        highest: FloatArray,
        rows: FloatArray,
        exponent: FloatArray,
    ) -> TableGrid:
        """The nodes around the (T,) `lowest` to `highest` multiples of pooling factors; the rest: `drifted_tables`."""
        node = np.arange(len(NODES))
        first = np.searchsorted(NODES, lowest * (1.0 - ROUNDING), side="right")[:, None] - 1
        last = np.searchsorted(NODES, highest * (1.0 + ROUNDING), side="right")[:, None]
        needed = (node >= np.minimum(first, len(NODES) - 2)) & (node <= last)
        table, found = np.nonzero(needed)
        many = RowPopularity(popularity.q[table], popularity.s[table])
        return TableGrid(drifted_tables(tables.select(table), many, NODES[found], rows[table], exponent[table]), needed)

    def select(self, chosen: NDArray[np.int64]) -> TableGrid:
        """The grid of the tables `chosen`, which may repeat."""
        begin = np.append(0, np.cumsum(self.needed.sum(axis=1)))
        rows = [np.arange(begin[table], begin[table + 1]) for table in chosen.tolist()]
        return TableGrid(self.tables.select(np.concatenate(rows)), self.needed[chosen])

    def with_loads(self, loads: FloatArray) -> LoadGrid:
        """The (N, K) loads of `tables`, in the order of these."""
        counts = self.needed.sum(axis=1)
        grid = np.zeros((len(counts), counts.max(), loads.shape[1]))
        grid[np.arange(counts.max()) < counts[:, None]] = loads
        return LoadGrid(grid, self.needed.argmax(axis=1), counts)


@dataclass(frozen=True, eq=False)
class LoadGrid:
    """Loads of T tables at neighbouring `NODES`."""

    loads: FloatArray  #: (T, n, K) float64
    first: NDArray[np.int64]  #: (T,) int64, the first node of each table
    counts: NDArray[np.int64]  #: (T,) int64, how many nodes it has; the rest of its rows is padding

    def at(self, lookups: FloatArray) -> FloatArray:
        """(..., T, K) loads with (..., T) multiples of the pooling factors, between the nodes of the table."""
        node: NDArray[np.int64] = np.searchsorted(NODES, lookups, side="right") - 1
        low = np.clip(node - self.first, 0, self.counts - 2)
        begin = NODES[low + self.first]
        share = ((lookups - begin) / (NODES[low + self.first + 1] - begin))[..., None]
        table = np.arange(len(self.loads))
        return np.asarray(self.loads[table, low] * (1.0 - share) + self.loads[table, low + 1] * share)
