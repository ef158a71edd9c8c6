"""How long it takes to move tables to the devices of a new plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.hardware import Topology


def migration_seconds(
    before: NDArray[np.int64], after: NDArray[np.int64], bytes_of: NDArray[np.int64], topology: Topology
) -> FloatArray:
    """(...) seconds until all P parts are on the devices `after`, (P,), from those `before`, (..., P).

    All devices and both kinds of links move at one time. The slowest link decides: the most of `bytes_of` that a device
    sends or receives inside its domain over the bandwidth there, or between domains over that of its network card.
    """
    cluster, devices = topology.cluster(), topology.num_devices
    domain = np.asarray(cluster.domain_begin)
    moves, inside = before != after, domain[before] == domain[after]
    longest = np.zeros(before.shape[:-1])
    for those, bandwidth in (
        (moves & inside, cluster.intra_bytes_per_ms),
        (moves & ~inside, cluster.inter_bytes_per_ms * cluster.cross_host_ratio),  # rows are sent whole
    ):
        if those.any():
            moved = np.where(those, bytes_of, 0)
            most = np.maximum(_by_device(before, moved, devices), _by_device(after, moved, devices)).max(axis=-1)
            longest = np.maximum(longest, most / bandwidth / 1e3)
    return longest


def moved_by_device(
    before: NDArray[np.int64], after: NDArray[np.int64], bytes_of: NDArray[np.int64], num_devices: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(D,) and (D,) int64 bytes that each device sends and receives until all P parts, (P,), are on devices `after`."""
    moved = np.where(before != after, bytes_of, 0)
    sent, received = (_by_device(devices, moved, num_devices).astype(np.int64) for devices in (before, after))
    return sent, received


def _by_device(device: NDArray[np.int64], moved: NDArray[np.int64], devices: int) -> FloatArray:
    """(..., D) bytes by the device of each part, from (..., P) bytes."""
    rows = moved.reshape(-1, moved.shape[-1])
    row = np.arange(len(rows))[:, None] * devices + np.broadcast_to(device, moved.shape).reshape(rows.shape)
    sums = np.asarray(np.bincount(row.ravel(), rows.ravel(), len(rows) * devices), np.float64)
    return sums.reshape(*moved.shape[:-1], devices)
