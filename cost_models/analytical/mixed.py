"""Tables of several workloads: each group of them is a fused operator of its own, and so are its phases.

FBGEMM's operators have one optimizer and one dtype of weights, so a device runs one for each group of `Workload.mixed`
that it has tables of. Assumed: one after the other, each as if it were alone, with launches of its own; so the compute
of a device is the sum over its groups, each with its own sums and its own widest table. Exchanges are shared. Pooled
and sequence tables of a group are one operator, as those of one workload are.

Behind all other loads, every group has `GROUP_LOADS` sums: the compute loads of its tables, and how many of them there
are of each share of the lanes, from which the share of the group follows. So no load of a group is a maximum. The loads
in front are those of one operator for all tables; its lane share is no less than that of any group.
"""

from __future__ import annotations

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import smaller, where, zeros
from shard_gym.tables import Workload

LANE_SHARES = (0.25, 0.5, 1.0)
"""Of the lanes that FBGEMM gives a row, ascending."""

SUMS = 7
"""The loads of the analytical model that groups have, its first: those of compute."""

GROUP_LOADS = SUMS + len(LANE_SHARES)


def group_loads(sums: FloatArray, lane_share: FloatArray, workload: Workload) -> FloatArray:
    """(T, G * 10) float64 loads of G groups, of each table in the columns of its own.

    Args:
        sums: (T, 7) the compute loads.
        lane_share: (T,) one of `LANE_SHARES`, or 0 on a device that has no lanes.
    """
    count = len(sums)
    loads = np.zeros((count, len(workload.workloads), GROUP_LOADS))
    # Without lanes, the first column says that there is a table.
    level = np.minimum(np.searchsorted(LANE_SHARES, lane_share), len(LANE_SHARES) - 1)
    every, group = np.arange(count), workload.group_of(count)
    loads[every, group, :SUMS] = sums
    loads[every, group, SUMS + level] = 1.0
    return loads.reshape(count, -1)


def share_of_group(counts: list[FloatArray] | FloatArray, most: FloatArray) -> FloatArray:
    """(...) lane shares of a group with (3, ...) `counts` of tables of each share; `most` is that of all groups.

    Counts of a device are whole numbers. Of a mean of devices they are none, and then `most` limits the share.
    """
    narrow, middle, wide = (zeros(most.shape, most) + share for share in LANE_SHARES)
    found: FloatArray = smaller(where(counts[2] > 0, wide, where(counts[1] > 0, middle, narrow)), most)
    return found
