"""The forms that each table may have in a plan, for lower bounds: `forms_of`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.hardware import Topology
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    has_equal_blocks,
)
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables


def forms_of(
    tables: Tables, topology: Topology, model: AnalyticalShardingModel, limits: Constraints | None
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], FloatArray, FloatArray, FloatArray]]:
    """Kind, table, parts that make a table, loads and least memory of a part, for each kind of form, in arrays of F.

    Those that the constraints permit; of blocks on a host, on any.
    """
    dims, rows, devices = tables.embedding_dim, tables.num_embeddings, topology.num_devices
    every = np.arange(len(tables))
    forms = [(TABLE_WISE, every, 1, dims)]
    for width in range(4, int(dims.max()), 4):
        forms.append((COLUMN_WISE, np.flatnonzero(dims > width), 1, np.full(len(tables), width)))
    of_host = devices_of_hosts(topology)
    own = of_host < devices or limits is not None  # on one host it is row_wise, which may not be permitted
    for kind, blocks in ((ROW_WISE, devices), (TABLE_ROW_WISE, of_host if own else 0)):
        if blocks:
            may = np.ones(len(tables), np.bool_) if kind == ROW_WISE else tables.pooled  # as `variants_of` says
            forms.append((kind, np.flatnonzero(may & has_equal_blocks(rows, blocks)), blocks, dims))
    forms.append((DATA_PARALLEL, every, devices, dims))
    for kind, possible, copies, widths in forms:
        which = possible
        if limits is not None:
            which = possible[limits.may_have_parts(kind, widths, copies, tables)[possible]]
        if len(which):
            shards = shard_tables(tables.select(which), kind, topology, widths[which])
            last = shards.num_embeddings  # the last block has the fewest rows
            if kind in (ROW_WISE, TABLE_ROW_WISE):
                last = rows[which] - (copies - 1) * shards.num_embeddings
            memory = shards.memory_bytes * (last / shards.num_embeddings)
            parts = copies * dims[which] / widths[which]
            on_all = ROW_WISE if kind == TABLE_ROW_WISE and of_host == devices else kind
            yield np.full(len(which), on_all), which, parts, model.loads(shards, topology, kind), memory
    if limits is None or not limits.empty_blocks:
        return
    for kind, blocks in ((ROW_WISE, devices), (TABLE_ROW_WISE, of_host)):
        if blocks:
            may = limits.may_have_parts(kind, dims, blocks, tables) & ~has_equal_blocks(rows, blocks)
            which = np.flatnonzero(may & (tables.pooled if kind == TABLE_ROW_WISE else True))
            if len(which):  # any block takes what one without rows takes, at least
                none = np.zeros(len(which), np.int64)
                shards = shard_tables(tables.select(which), kind, topology, blocks=none)
                parts, loads = np.full(len(which), float(blocks)), model.loads(shards, topology, kind)
                on_all = ROW_WISE if of_host == devices else kind
                yield np.full(len(which), on_all), which, parts, loads, none.astype(np.float64)
