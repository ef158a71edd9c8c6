"""Valid plans to measure in training, as loads: a machine executes whole plans, and not shards by themselves."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from shard_gym.agents.training.loads import (
    ShardLoad,
    Shards,
    drawn_spread,
    halved,
    random_load,
    spread_types,
    whole_tables,
)
from shard_gym.cost_models.base import IntArray
from shard_gym.placement import memory_used
from shard_gym.sharding import (
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
)
from shard_gym.sharding.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    has_equal_blocks,
)
from shard_gym.sharding.statistics import shard_tables
from shard_gym.tables import Tables
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Topology


def load_of_plan(plan: ShardingPlan, tables: Tables, topology: Topology) -> ShardLoad:
    """The shards of a valid plan, which are measured as that plan."""
    if plan.placement is not None:
        return whole_tables(tables, topology, plan.placement)
    arrays, found = plan.shard_arrays(), []
    types = [sharding.sharding_type for sharding in plan.tables]
    kinds = np.array([COLUMN_WISE if kind == TABLE_WISE else kind for kind in types])[arrays[:, 0]]
    for kind in (COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL):
        table, device, _, _, _, width = arrays[kinds == kind].T
        if len(table):
            widths = width if kind == COLUMN_WISE else None
            found.append(Shards(kind, shard_tables(tables.select(table), kind, topology, widths), device))
    return ShardLoad(topology, tuple(found), (tables, plan))


def executable_types(sharding_types: Collection[str], tables: Tables, topology: Topology) -> tuple[str, ...]:
    """Those of the types that a machine executes: blocks of rows only if the devices divide the batch."""
    blocks = tables.workload.batch_size % topology.num_devices == 0
    return tuple(kind for kind in sharding_types if blocks or kind not in (ROW_WISE, TABLE_ROW_WISE))


def random_plan(
    suite: TaskSuite, max_halvings: int, sharding_types: Collection[str], rng: np.random.Generator
) -> ShardLoad:
    """A random plan of random tables of the training tasks: what `random_shards` draws, but all parts of each table.

    The tables of `random_load` are split one by one, with every further part on a random device. A table whose parts do
    not fit there stays whole.
    """
    drawn = random_load(suite, rng)
    topology, (_, tables, placement) = drawn.topology, drawn.shards[0]
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
    return load_of_plan(ShardingPlan(tuple(shardings)), tables, topology)


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
