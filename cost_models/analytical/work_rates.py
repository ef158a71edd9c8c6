"""Loads of a device whose work was measured (`topology.WorkRates`): so many ns for each bag, lookup and value.

Where a device has measured rates, the analytical model computes its forward and backward from them, in place of the
limits of DRAM, L2 and lanes: amounts times rates, summed over the tables, and the fixed time of the operators.
`shard-gym calibrate` measures them. On 221 placements of test tables of one CPU such sums are 15 to 18% off in a phase
of a device, on those of an H100 5 to 13%, where fitted limits were 36 to 41% and 12 to 33% off (November 2026).
"""

from __future__ import annotations

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.hardware import WorkRates
from shard_gym.hardware.topology import WORK_NAMES
from shard_gym.tables import Tables

MS = 1e-6  # ms in a ns


def work_amounts(tables: Tables) -> FloatArray:
    """(T, 6) float64, what a batch does with each table, in the order of `topology.WORK_NAMES`."""
    bags, lookups, distinct = tables.outputs_per_batch, tables.lookups_per_batch, tables.distinct_rows
    dim = tables.embedding_dim
    amounts = np.stack([bags, lookups, lookups * dim, distinct, distinct * dim, bags * dim], axis=1)
    assert amounts.shape[1] == len(WORK_NAMES)
    return amounts.astype(np.float64)


def work_ms(tables: Tables, rates: WorkRates) -> FloatArray:
    """(T, 2) float64, ms of forward and of backward of each table, without the fixed time."""
    found: FloatArray = work_amounts(tables) @ np.array([rates.forward, rates.backward]).T * MS
    return found
