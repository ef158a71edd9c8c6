"""How many row reads the L2 cache serves, from a table's reuse histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.tables import BIN_UPPER_EDGES, Tables
from shard_gym.topology import DeviceSpec

SECTOR_BYTES = 32
"""GPU memory moves in sectors of 32 bytes (Lin et al., ml_perf_model analysis/inference.py, rounds each row to it)."""

USABLE_L2 = 0.9
"""Share of the L2 that rows can hold (Lin et al., same file)."""

WARPS_IN_FLIGHT_PER_SM = 45
"""64 warps at the occupancy of 0.71 FBGEMM's forward reaches (Lin et al., same file)."""


def to_sectors(num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """`num_bytes` rounded up to whole sectors."""
    return -(-num_bytes // SECTOR_BYTES) * SECTOR_BYTES


def l2_bytes_per_table(tables: Tables, device: DeviceSpec) -> NDArray[np.float64]:
    """(T,) bytes of L2 a table has to itself while the fused op works on it.

    FBGEMM walks table after table, so with a large batch one table has the cache alone; with a small one
    ceil(warps in flight / bags of a table) tables share it (Lin et al., ml_perf_model analysis/inference.py).
    """
    bags = tables.workload.batch_size * tables.num_features
    sharing = np.ceil(device.num_sms * WARPS_IN_FLIGHT_PER_SM / bags)
    return USABLE_L2 * device.l2_bytes / sharing


def l2_hits(tables: Tables, device: DeviceSpec) -> NDArray[np.float64]:
    """(T,) float64, row reads per batch that the L2 serves.

    The rows are ranked by the reuse bin they fall into; the hottest stay resident as far as the L2 reaches, each costs
    one cold miss, and all other reads go to DRAM. Lin et al. do the same with a uniform table; the 17 bins stand in for
    their uniform law, so a skewed table hits more.
    """
    accesses = tables.lookups_per_batch[:, None] * tables.access_histogram
    rows = np.maximum(tables.distinct_rows[:, None] * tables.reuse_histogram, accesses / BIN_UPPER_EDGES)
    hotter = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1] - rows
    capacity = l2_bytes_per_table(tables, device) / to_sectors(tables.row_bytes)
    resident = np.clip(capacity[:, None] - hotter, 0.0, rows)
    share = np.divide(resident, rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(np.maximum(accesses * share - resident, 0.0).sum(axis=1))
