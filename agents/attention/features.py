"""What the attention policy sees of a task: statistics of its tables and their shares of it; no cost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.heuristics import lookup_score
from shard_gym.cost_models.analytical import lane_share
from shard_gym.cost_models.neural.pooled import WORK, PooledCostModel
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.tables import AMOUNT_NAMES, FEATURE_NAMES
from shard_gym.tasks import Task

NUM_SHARES = len(AMOUNT_NAMES) + 1
"""The `Tables.amounts` and the memory."""

LOOKUPS, VALUES_UPDATED = AMOUNT_NAMES.index("lookups"), AMOUNT_NAMES.index("values_updated")

NUM_FEATURES = len(FEATURE_NAMES) + NUM_BINS + len(WORK) + 1 + 2 * len(AMOUNT_NAMES) + 1 + 1 + 4

LEAST_SHARE = 1e-3
"""Added to shares before the logarithm."""


class Described(NamedTuple):
    """A task of T tables in the order in which they are placed: those of the widest lanes first, then by descending
    embedding_dim * pooling_factor. Wide tables should be together, which is easier to learn if they come together.

    Attributes:
        order: (T,) int64, the task's own number of each.
        features: (T, `NUM_FEATURES`) float32.
        shares: (T, `NUM_SHARES`) float32, shares of the task's amounts in multiples of a D-th, and of a memory cap.
        lane: (T,) float32, the share of a warp that FBGEMM gives to a row.
        memory: (T,) int64, bytes.
        caps: (D,) int64, bytes.
    """

    order: NDArray[np.int64]
    features: NDArray[np.float32]
    shares: NDArray[np.float32]
    lane: NDArray[np.float32]
    memory: NDArray[np.int64]
    caps: NDArray[np.int64]


def described(task: Task) -> Described:
    """What the policy sees of `task`."""
    tables, topology = task.tables, task.topology
    lane = lane_share(tables.embedding_dim)
    order = np.lexsort((-lookup_score(tables), -lane))
    inputs = PooledCostModel.describe(tables).astype(np.float64)
    inputs[:, -len(WORK) - 1 : -1] = np.log2(1.0 + inputs[:, -len(WORK) - 1 : -1])
    amounts = tables.amounts()
    shares = amounts / np.maximum(amounts.sum(axis=0), 1e-12) * task.num_devices
    memory = (tables.memory_bytes / topology.memory_cap_bytes.max())[:, None]
    cluster = topology.cluster()
    machine = [
        np.log2(task.num_devices),
        np.log2(topology.device.dram_gb_per_s / 1e3),
        np.log2(float(cluster.intra_bytes_per_ms) / 1e8),
        float(cluster.crosses_hosts),
    ]
    features = np.concatenate(
        [inputs, np.log2(shares + LEAST_SHARE), shares, memory, lane[:, None], np.tile(machine, (len(tables), 1))],
        axis=1,
    )
    return Described(
        order,
        features[order].astype(np.float32),
        np.concatenate([shares, memory], axis=1)[order].astype(np.float32),
        lane[order].astype(np.float32),
        tables.memory_bytes[order],
        topology.memory_cap_bytes,
    )
