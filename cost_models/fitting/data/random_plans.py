"""Random parts of tables, and random sharding plans, which are measured to learn what a plan costs."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import IntArray
from shard_gym.hardware import Topology
from shard_gym.plans import (
    SHARDING_TYPES,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
)
from shard_gym.plans.placement import Placement, memory_used
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, devices_of_hosts, has_equal_blocks
from shard_gym.tables import Tables

WIDEST = (8, 16, 32, 64, 128)
"""Limits of the width of all parts of a random load; a good plan often has one, and all its devices run faster."""

MAX_SPREAD = 5
"""Tables of a random load that are spread over all its devices at most, in half of the loads; busy ones rather."""

SHARE_REPLICATED = 0.7  # the share of the small ones among them that is data-parallel; the others are row-wise


def executable_types(sharding_types: Collection[str], tables: Tables, topology: Topology) -> tuple[str, ...]:
    """Those of the types that a machine executes: blocks of rows only if the devices divide the batch."""
    blocks = tables.workload.batch_size % topology.num_devices == 0
    return tuple(kind for kind in sharding_types if blocks or kind not in (ROW_WISE, TABLE_ROW_WISE))


def spreading(sharding_types: Collection[str]) -> list[str]:
    """The types that spread tables over all devices."""
    return [kind for kind in (ROW_WISE, DATA_PARALLEL) if kind in sharding_types]


def drawn_spread(tables: Tables, sharding_types: Collection[str], rng: np.random.Generator) -> NDArray[np.bool_]:
    """(T,) bool, the tables that are spread over devices: none in half of the cases, and few in the others."""
    spread = np.zeros(len(tables), np.bool_)
    if spreading(sharding_types) and rng.random() < 0.5:
        weights = np.maximum(tables.lookups_per_batch, 1.0) ** rng.random()
        most = min(MAX_SPREAD, len(tables))
        spread[rng.choice(len(tables), rng.integers(1, most + 1), replace=False, p=weights / weights.sum())] = True
    return spread


def spread_types(
    tables: Tables,
    topology: Topology,
    spread: NDArray[np.bool_],
    sharding_types: Collection[str],
    rng: np.random.Generator,
) -> NDArray[np.str_]:
    """(T,) the type of each table if it is one of those that are `spread`: most small ones are replicated."""
    small = tables.memory_bytes * (10 * spread.sum()) <= topology.memory_cap_bytes.min()
    replicated = small & (rng.random(len(tables)) < SHARE_REPLICATED)
    ways = spreading(sharding_types) or [""]
    return np.where(replicated, ways[-1], ways[0])


def halved(tables: Tables, max_halvings: int, rng: np.random.Generator) -> Tables:
    """Parts of `tables`: whole in a third of the loads, halved at random, or until none is wider than a limit."""
    dims = tables.embedding_dim
    possible = np.array([(dim & -dim).bit_length() - 3 for dim in dims.tolist()])  # halves stay multiples of 4
    possible = np.clip(possible, 0, max_halvings)
    draw = rng.random()
    if draw < 1 / 3:
        return tables
    if draw < 2 / 3:
        return tables.with_dims(dims >> rng.integers(0, possible + 1))
    limit = int(rng.choice(WIDEST))
    needed = np.ceil(np.log2(np.maximum(dims / limit, 1.0))).astype(np.int64)
    return tables.with_dims(dims >> np.minimum(needed, possible))


def random_plan(
    placement: Placement,
    tables: Tables,
    topology: Topology,
    rng: np.random.Generator,
    sharding_types: Collection[str] = SHARDING_TYPES,
    max_halvings: int = 3,
) -> ShardingPlan:
    """A valid plan in which tables of a placement are split one by one, with every further part on a random device.

    A table whose parts do not fit into the memory that is left stays whole.
    """
    types = executable_types(sharding_types, tables, topology)
    spread = drawn_spread(tables, types, rng)
    kinds = spread_types(tables, topology, spread, types, rng)
    widths = halved(tables, max_halvings, rng).embedding_dim
    free = topology.memory_cap_bytes - memory_used(placement, tables, topology.num_devices)
    shardings = list(plan_of_placement(placement, tables).tables)
    for table, device in enumerate(placement.tolist()):
        split: TableSharding | None = None
        if spread[table]:
            split = _spread(tables, table, topology, kinds[table], TABLE_ROW_WISE in types, rng)
        elif widths[table] < tables.embedding_dim[table]:
            more = tables.embedding_dim[table] // widths[table] - 1
            split = column_wise(tables, table, [device, *rng.integers(topology.num_devices, size=more).tolist()])
        if split is not None:
            needed = _bytes_of(split, tables, topology) - _bytes_of(shardings[table], tables, topology)
            if (needed <= free).all():
                free -= needed
                shardings[table] = split
    return ShardingPlan(tuple(shardings))


def _spread(
    tables: Tables, table: int, topology: Topology, kind: str, on_hosts: bool, rng: np.random.Generator
) -> TableSharding | None:
    """A table on all devices, or in half of the cases on those of a host; None if a block of rows would be empty."""
    if kind == DATA_PARALLEL:
        return data_parallel(tables, table, topology)
    size, rows = devices_of_hosts(topology), tables.num_embeddings[table]
    if on_hosts and 0 < size < topology.num_devices and rng.random() < 0.5 and has_equal_blocks(rows, size):
        return table_row_wise(tables, table, topology, int(rng.integers(topology.num_devices // size)))
    return row_wise(tables, table, topology) if has_equal_blocks(rows, topology.num_devices) else None


def _bytes_of(sharding: TableSharding, tables: Tables, topology: Topology) -> IntArray:
    """(D,) int64, bytes of the shards of one table on each device."""
    device, _, rows, _, columns = np.array(sharding.shards, np.int64).T
    used = np.zeros(topology.num_devices, np.int64)
    np.add.at(used, device, rows * tables.workload.row_bytes(columns))
    return used
