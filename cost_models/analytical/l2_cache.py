"""Hits of the L2 cache, from the reuse histograms of tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.hardware import DeviceSpec
from shard_gym.tables import BIN_UPPER_EDGES, STATE_BYTES, Tables

SECTOR_BYTES = 32
"""The unit of transfers from GPU memory (Lin et al., ml_perf_model analysis/inference.py, rounds each row to it)."""

USABLE_L2 = 0.9  # share of the L2 that rows can hold (Lin et al., same file)
WARPS_IN_FLIGHT_PER_SM = 45  # 64 warps at the occupancy of 0.71 FBGEMM's forward reaches (Lin et al., same file)


def to_sectors(num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """`num_bytes` rounded up to whole sectors."""
    return -(-num_bytes // SECTOR_BYTES) * SECTOR_BYTES


def state_sectors(tables: Tables) -> NDArray[np.int64]:
    """(T,) bytes of the optimizer state of a row in whole sectors, as an update reads or writes them.

    Each number for a row, and each moment of a row, lies in an array of its own (pytorch/FBGEMM v1.8.0,
    split_table_batched_embeddings_ops_training.py: momentum1, momentum2).
    """
    state = tables.workload.state
    return state.per_row * SECTOR_BYTES + state.per_weight * to_sectors(STATE_BYTES * tables.embedding_dim)


def l2_bytes_per_table(tables: Tables, device: DeviceSpec) -> NDArray[np.float64]:
    """(T,) bytes of the L2 that a table can use while the fused op processes it.

    FBGEMM processes table after table, so with a large batch one table has the whole cache; with a small one
    ceil(warps in flight / outputs of a table) tables share it (Lin et al., ml_perf_model analysis/inference.py).
    """
    sharing = np.ceil(device.num_sms * WARPS_IN_FLIGHT_PER_SM / tables.outputs_per_batch)
    return USABLE_L2 * device.l2_bytes / sharing


def l2_hits(tables: Tables, device: DeviceSpec) -> NDArray[np.float64]:
    """(T,) float64, row reads per batch that hit the L2.

    The rows are ranked by their reuse bin. The hottest rows that fit the L2 stay in it after one cold miss each; all
    other reads go to DRAM. Lin et al. assume uniform reads; with the 17 bins instead, a skewed table has more hits.
    """
    accesses = tables.lookups_per_batch[:, None] * tables.access_histogram
    rows = np.maximum(tables.distinct_rows[:, None] * tables.reuse_histogram, accesses / BIN_UPPER_EDGES)
    hotter = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1] - rows
    capacity = l2_bytes_per_table(tables, device) / to_sectors(tables.row_bytes)
    resident = np.clip(capacity[:, None] - hotter, 0.0, rows)
    share = np.divide(resident, rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(np.maximum(accesses * share - resident, 0.0).sum(axis=1))
