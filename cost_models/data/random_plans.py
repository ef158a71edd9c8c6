"""Random sharding plans of tables that have a placement, to be measured."""

from __future__ import annotations

import numpy as np

from shard_gym.cost_models.base import IntArray
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import (
    TableSharding,
    column_wise,
    data_parallel,
    has_equal_blocks,
    row_wise,
    table_wise,
)
from shard_gym.tables import Tables
from shard_gym.topology import Topology

MAX_SPREAD = 5  # tables that are spread over all devices at most, in two thirds of the plans; busy ones rather
SHARE_REPLICATED = 0.5  # the share of the small ones among them that is data-parallel; the others are row-wise
MAX_REPLICA_BYTES = 64 * 2**20
"""A larger table is not replicated: its dense update would take longer than all else, as no good plan has it."""

LIMITS = (8, 16, 32, 64, 128)  # of the width of all parts, in a third of the plans
MAX_HALVINGS = 3


def random_plan(placement: Placement, tables: Tables, topology: Topology, rng: np.random.Generator) -> ShardingPlan:
    """A plan in which some tables are spread over all devices, and others are halved by columns, once or more.

    A table that is not split is where `placement` has it, and so is its first part if it is; the others are anywhere.
    """
    count, devices = len(tables), topology.num_devices
    spread = np.zeros(count, np.bool_)
    if rng.random() < 2 / 3:
        weights = np.maximum(tables.lookups_per_batch, 1.0) ** rng.random()
        chosen = rng.integers(1, min(MAX_SPREAD, count) + 1)
        spread[rng.choice(count, chosen, replace=False, p=weights / weights.sum())] = True
    halvings = _halvings(tables, rng)
    blocks = has_equal_blocks(tables.num_embeddings, devices)
    small = tables.memory_bytes <= MAX_REPLICA_BYTES
    shardings: list[TableSharding] = []
    for table, device in enumerate(placement.tolist()):
        replicate = bool(small[table]) and rng.random() < SHARE_REPLICATED
        if spread[table] and (replicate or blocks[table]):
            shardings.append((data_parallel if replicate else row_wise)(tables, table, topology))
        elif halvings[table]:
            others = rng.integers(devices, size=(1 << int(halvings[table])) - 1).tolist()
            shardings.append(column_wise(tables, table, [device, *others]))
        else:
            shardings.append(table_wise(tables, table, device))
    return ShardingPlan(tuple(shardings))


def _halvings(tables: Tables, rng: np.random.Generator) -> IntArray:
    """(T,) int64, how often each table is halved: never in a third of the plans, at random, or down to a limit."""
    dims = tables.embedding_dim
    possible = np.array([(dim & -dim).bit_length() - 3 for dim in dims.tolist()])  # halves stay multiples of 4
    possible = np.clip(possible, 0, MAX_HALVINGS)
    draw = rng.random()
    halvings: IntArray = np.zeros(len(dims), np.int64)
    if draw >= 2 / 3:
        halvings = np.ceil(np.log2(np.maximum(dims / int(rng.choice(LIMITS)), 1.0))).astype(np.int64)
    elif draw >= 1 / 3:
        halvings = rng.integers(0, possible + 1)
    found: IntArray = np.minimum(halvings, possible).astype(np.int64)
    return found
