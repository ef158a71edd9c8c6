"""What the attention policy sees of a task: statistics of its tables and their shares of it; no cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.heuristics import lookup_score
from shard_gym.agents.training.loads import ShardLoad, Shards
from shard_gym.cost_models.analytical import lane_share
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.envs.core.problem import WIDE, IntArray, Problem
from shard_gym.forms import SplitTask
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.placement import Placement
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.sharding.statistics import shard_tables
from shard_gym.table_features import FEATURE_NAMES
from shard_gym.tables import AMOUNT_NAMES, Tables
from shard_gym.tasks import Task

NUM_SHARES = len(AMOUNT_NAMES) + 1  # shares of a table: of the `Tables.amounts` and of the memory
LOOKUPS, VALUES_UPDATED = AMOUNT_NAMES.index("lookups"), AMOUNT_NAMES.index("values_updated")
NUM_FEATURES = len(FEATURE_NAMES) + NUM_BINS + PooledCostModel.num_work + 1 + 2 * len(AMOUNT_NAMES) + 1 + 4
LEAST_SHARE = 1e-3  # this is added to shares before the logarithm


def placing_order(tables: Tables) -> IntArray:
    """(T,) int64: the widest lanes first, then by descending embedding_dim * pooling_factor.

    Wide tables should be together, which is easier to learn if they come together.
    """
    return np.lexsort((-lookup_score(tables), -lane_share(tables.embedding_dim)))


def described(task: Task) -> NDArray[np.float32]:
    """(T, `NUM_FEATURES`) float32 of the tables of `task`, in its own order: statistics, shares, and the machine."""
    tables, topology = task.tables, task.topology
    inputs = PooledCostModel.describe(tables).astype(np.float64)
    work = slice(-PooledCostModel.num_work - 1, -1)
    inputs[:, work] = np.log2(1.0 + inputs[:, work])
    amounts = tables.amounts()
    shares = amounts / np.maximum(amounts.sum(axis=0), 1e-12) * task.num_devices
    memory = (tables.memory_bytes / topology.memory_cap_bytes.max())[:, None]
    cluster = topology.cluster()
    machine = [
        np.log2(task.num_devices),
        np.log2(topology.device.dram_gb_per_s / 1e3),
        np.log2(float(cluster.intra_bytes_per_ms) / 1e8),
        float(cluster.crosses_domains),
    ]
    columns = [inputs, np.log2(shares + LEAST_SHARE), shares, memory, np.tile(machine, (len(tables), 1))]
    return np.concatenate(columns, axis=1, dtype=np.float32)


def amounts_of(problem: Problem) -> NDArray[np.float32]:
    """(S * T, `NUM_SHARES` + 1) float32 of all rows of `TableRows`: what a device that receives the table gets more of.

    Shares of the task's amounts in multiples of a D-th, of a device's memory, and the share of a warp that FBGEMM gives
    to a row.
    """
    tables = problem.tables
    rows, first = np.unique(problem.row, return_index=True)
    amounts = np.zeros((*tables.memory.shape, NUM_SHARES + 1), np.float32)
    devices = np.asarray(problem.cluster.num_devices)[first, None, None]
    amounts[rows, :, : len(AMOUNT_NAMES)] = tables.shares[rows] * devices
    amounts[rows, :, -2] = tables.memory[rows] / problem.memory_cap[first].max(axis=1, keepdims=True)
    amounts[rows, :, -1] = lane_share((tables.widths[rows] * WIDE).astype(np.int64))
    return amounts.reshape(-1, NUM_SHARES + 1)


def shard_load(form: SplitTask, placement: Placement) -> ShardLoad:
    """All shards of the plan that `placement` of the parts is, on their devices."""
    shards, topology = [Shards(TABLE_WISE, form.task.tables, placement)], form.origin.topology
    every = np.arange(form.origin.num_devices)
    for kind, tables in form.spread.items():
        spread = shard_tables(form.origin.tables.select(tables), kind, topology)
        on_each = np.repeat(np.arange(len(tables)), len(every))
        shards.append(Shards(kind, spread.select(on_each), np.tile(every, len(tables))))
    return ShardLoad(topology, tuple(shards))
