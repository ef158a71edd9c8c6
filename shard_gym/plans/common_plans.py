"""Whether a plan is one of the common valid ones, from its arrays: no line runs for each table."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from shard_gym.hardware import Topology
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    ShardingPlan,
    devices_of_hosts,
)
from shard_gym.tables import Tables

_CODES = {kind: code for code, kind in enumerate(SHARDING_TYPES)}
_CODES[TABLE_COLUMN_WISE] = _CODES[COLUMN_WISE]


def is_common_valid_plan(
    plan: ShardingPlan, tables: Tables, topology: Topology, sharding_types: Collection[str]
) -> bool:
    """Whether the shards are where `check_plan` wants them, memory aside; False where it has to look at them itself.

    Args:
        plan: of T shardings; its shards are of Python's integers.
        tables, topology, sharding_types: see `check_plan`.
    """
    kinds = [sharding.sharding_type for sharding in plan.tables]
    if set(map(type, kinds)) != {str} or not set(kinds) <= _CODES.keys() & set(sharding_types):
        return False
    try:
        shards = plan.shard_arrays()
    except OverflowError:
        return False
    counts = np.bincount(shards[:, 0], minlength=len(plan))
    if not counts.all() or shards.min() < 0 or shards.max() > 2**40:
        return False
    num_devices, of_host = topology.num_devices, devices_of_hosts(topology)
    code = np.array([_CODES[kind] for kind in kinds])
    whole, columns, row, host, copies = (
        code == _CODES[kind] for kind in (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL)
    )
    if host.any() and not (of_host and tables.pooled[host].all()):
        return False
    wanted = np.select([whole, host, columns], [1, of_host, counts], num_devices)
    return bool((counts == wanted).all()) and _cells_are_right(
        shards, counts, tables, np.stack([columns, row, host, row | host | copies]), num_devices, of_host
    )


def _cells_are_right(
    shards: NDArray[np.int64],
    counts: NDArray[np.int64],
    tables: Tables,
    forms: NDArray[np.bool_],
    num_devices: int,
    of_host: int,
) -> bool:
    """Of (S, 6) `shard_arrays`, (T,) counts, and (4, T) `forms`: by columns, by rows, on a host, on several devices."""
    by_columns = forms[0][shards[:, 0]]
    order = np.lexsort((np.where(by_columns, shards[:, 4], shards[:, 1]), shards[:, 0]))
    table, device, first_row, num_rows, first_column, num_columns = shards[order].T
    columns, row, host, every = forms[:, table]
    begin = np.cumsum(counts) - counts
    number = np.arange(len(table)) - begin[table]  # of the shard in its table, by column or by device
    rows, dim = tables.num_embeddings[table], tables.embedding_dim[table]
    of_block = -(-rows // np.select([row, host], [num_devices, of_host], 1))
    first = np.minimum(np.where(row | host, number, 0) * of_block, rows)
    end = first_column + num_columns
    before = np.where(columns & (number > 0), np.append(0, end[:-1]), 0)
    last = ~columns | (number == counts[table] - 1)
    base = np.where(host, device[begin[table]], 0)
    right = (device < num_devices) & (~every | (device == base + number)) & (base % max(of_host, 1) == 0)
    right &= (first_row == first) & (num_rows == np.minimum(of_block, rows - first))
    right &= (first_column == before) & (num_columns > 0) & (~columns | (num_columns % 4 == 0))
    return bool((right & (~last | (end == dim))).all())
