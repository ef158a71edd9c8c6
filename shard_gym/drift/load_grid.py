"""The loads of drifting tables: computed on a grid of pooling factors, then interpolated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.drift.processes import HIGHEST, LOWEST
from shard_gym.row_popularity import RowPopularity, reuse_statistics
from shard_gym.tables import Tables
from shard_gym.topology import Topology

NODES: FloatArray = np.append(0.0, np.geomspace(LOWEST, HIGHEST, 49))
"""Multiples of the pooling factor. Between neighbours, costs of tables of `dlrm-2021` are within 0.2% of linear."""


def drifted_tables(
    tables: Tables,
    popularity: RowPopularity,
    lookups: FloatArray,
    rows: FloatArray | float = 1.0,
    exponent: FloatArray | float = 1.0,
) -> Tables:
    """`tables` with other lookups; their statistics are those expected under the row popularity.

    Args:
        tables: the T tables at the start.
        popularity: of their rows at the start.
        lookups: (T,) multiples of their pooling factors.
        rows: (T,) multiples of their rows, rounded to whole rows.
        exponent: (T,) multiples of the exponents of the popularity.
    """
    num_embeddings = np.maximum(np.rint(tables.num_embeddings * rows), 1.0)
    pooling = tables.pooling_factor * lookups
    exponents = popularity.s * exponent
    found = reuse_statistics(num_embeddings, pooling * tables.workload.batch_size, popularity.q, exponents)
    return replace(tables, num_embeddings=num_embeddings, pooling_factor=pooling, **found._asdict())


@dataclass(frozen=True, eq=False)
class LoadGrid:
    """Loads of T tables of a task at the `NODES`.

    Attributes:
        loads: (T, G, K) float64.
    """

    loads: FloatArray

    @staticmethod
    def of(
        tables: Tables,
        popularity: RowPopularity,
        topology: Topology,
        model: AdditiveCostModel,
    ) -> LoadGrid:
        """The grid of tables on the devices of `topology`."""
        count, nodes = len(tables), len(NODES)
        table = np.repeat(np.arange(count), nodes)
        many = RowPopularity(popularity.q[table], popularity.s[table])
        drifted = drifted_tables(tables.select(table), many, np.tile(NODES, count))
        return LoadGrid(model.table_loads(drifted, topology).reshape(count, nodes, -1))

    def at(self, lookups: FloatArray) -> FloatArray:
        """(..., T, K) loads with (..., T) multiples of the pooling factors."""
        low: NDArray[np.int64] = np.clip(np.searchsorted(NODES, lookups, side="right") - 1, 0, len(NODES) - 2)
        share = ((lookups - NODES[low]) / (NODES[low + 1] - NODES[low]))[..., None]
        table = np.arange(len(self.loads))
        return np.asarray(self.loads[table, low] * (1.0 - share) + self.loads[table, low + 1] * share)
