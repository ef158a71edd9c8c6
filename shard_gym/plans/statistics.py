"""What a device executes for a shard: its rows, columns and lookup statistics, as a table of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidPlanError
from shard_gym.hardware import Topology
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, devices_of_hosts
from shard_gym.tables import Tables


def shard_tables(
    tables: Tables,
    sharding_type: str,
    topology: Topology,
    widths: NDArray[Any] | None = None,
    blocks: NDArray[np.int64] | None = None,
) -> Tables:
    """What one shard of each table is to the device that has it, as tables.

    - table_wise: the table.
    - column_wise: `widths` columns, (T,), of all rows; every lookup reads a part of its row from every shard.
    - row_wise and table_row_wise: a block of ceil(rows / n) rows. It gets an n-th of the lookups and of the distinct
      rows, as if the rows were shuffled; each of its rows is read as often as before. Its pooled outputs are partial
      sums of all samples, as wide as the table; of a sequence table they are its lookups. A block without rows has no
      lookups, but its partial sums, zeros, are made and added up, too; it is a table of one row. `blocks`, (T,) int64,
      says which are empty and how many are not (`blocks_of_rows`); by default none is. Of table_row_wise they may have
      `widths`, too, which makes them those of grid_shard. Hosts of different sizes are an InvalidPlanError.
    - data_parallel: the table in the samples of one device, ceil(B / D) of them. A row that is read k times in the
      batch is among them with probability 1 - (1 - 1/D)^k (`Tables.at_batch_size`).
    """
    if sharding_type == COLUMN_WISE and widths is not None:
        return tables.with_dims(widths)
    if sharding_type in (ROW_WISE, TABLE_ROW_WISE):
        if blocks is None:
            count = topology.num_devices if sharding_type == ROW_WISE else devices_of_hosts(topology)
            if not count:
                raise InvalidPlanError("table_row_wise needs hosts with equal numbers of devices.")
            blocks = np.full(len(tables), count)
        empty = blocks == 0
        parts = np.where(empty, tables.num_embeddings, blocks)
        shards = replace(
            tables,
            num_embeddings=-(-tables.num_embeddings // parts),
            pooling_factor=tables.pooling_factor / parts,
            distinct_rows=tables.distinct_rows / parts,
            popularity=None if tables.popularity is None else tables.popularity.of_blocks(parts),
        )
        if sharding_type == TABLE_ROW_WISE and widths is not None:
            shards = shards.with_dims(widths)
        return _not_read(shards, empty) if empty.any() else shards
    if sharding_type == DATA_PARALLEL:
        return in_batches(tables, -(-tables.workload.batch_size // topology.num_devices))
    return tables


def _not_read(tables: Tables, those: NDArray[np.bool_]) -> Tables:
    """The same tables, without lookups of `those`, (T,) bool."""
    return replace(
        tables,
        pooling_factor=np.where(those, 0.0, tables.pooling_factor),
        distinct_rows=np.where(those, 0.0, tables.distinct_rows),
        reuse_histogram=np.where(those[:, None], 0.0, tables.reuse_histogram),
        access_histogram=np.where(those[:, None], 0.0, tables.access_histogram),
    )


_IN_BATCHES: WeakKeyDictionary[Tables, dict[int, Tables]] = WeakKeyDictionary()


def in_batches(tables: Tables, batch_size: int) -> Tables:
    """`Tables.at_batch_size`, which takes most of preparing a task, kept as long as the tables are: many environments
    prepare the same ones, and a task with groups has up to 16."""
    if batch_size == tables.workload.batch_size:
        return tables
    kept = _IN_BATCHES.setdefault(tables, {})
    if batch_size not in kept:
        kept[batch_size] = tables.at_batch_size(batch_size)
    return kept[batch_size]
