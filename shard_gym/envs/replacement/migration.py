"""How long it takes to move tables to the devices of a new plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.placement import Placement
from shard_gym.topology import Topology


def migration_seconds(before: Placement, after: Placement, bytes_of: NDArray[np.int64], topology: Topology) -> float:
    """Seconds until all parts are on their new devices; all devices and both kinds of links move at the same time.

    The slowest link decides: the most that a device sends or receives inside its host over the bandwidth there, or
    between hosts over the bandwidth of its network card.

    Args:
        before, after: (P,) int64, devices.
        bytes_of: (P,) int64, weights and optimizer state of each part.
        topology: the devices.
    """
    moved = np.flatnonzero(before != after)
    cluster, devices = topology.cluster(), topology.num_devices
    traffic: FloatArray = np.zeros((devices, devices))
    np.add.at(traffic, (before[moved], after[moved]), bytes_of[moved])
    host = np.asarray(cluster.host_begin)
    inside = host[:, None] == host
    longest = 0.0
    for those, bandwidth in ((inside, cluster.intra_bytes_per_ms), (~inside, cluster.inter_bytes_per_ms)):
        over = np.where(those, traffic, 0.0)
        most = max(over.sum(axis=1).max(), over.sum(axis=0).max())
        longest = max(longest, float(most / bandwidth) / 1e3)
    return longest
