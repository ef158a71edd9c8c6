"""Memory caps: which devices are over theirs, how the memory of a host is allotted, and states that must be in HBM."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import StatesExceedHbmError
from shard_gym.common.text import format_bytes
from shard_gym.hardware import Topology
from shard_gym.tables import STATE_BYTES, Tables, Workload


def devices_over(used: NDArray[np.int64], topology: Topology) -> NDArray[np.int64]:
    """The devices (int64) whose tables exceed their memory cap; none if their hosts' memory can be allotted otherwise.

    Args:
        used: (D,) int64, bytes of weights and states of each device.
    """
    over = np.flatnonzero(used > topology.memory_cap_bytes)
    return over[:0] if over.size and allotted_caps(used, topology) is not None else over


def allotted_caps(used: NDArray[np.int64], topology: Topology) -> NDArray[np.int64] | None:
    """(D,) int64, memory caps that allot the memory of each host to its devices: what their tables need of it, and
    equal parts of the rest. None where a host has less, or devices do not share it.

    Args:
        used: (D,) int64, bytes of weights and states of each device.
    """
    host, hosts = topology.host, topology.hosts
    if host is None or host.total_bytes is None:
        return None
    away = np.maximum(used - host.hbm_bytes, 0)
    left = np.full(topology.num_hosts, host.total_bytes)
    np.subtract.at(left, hosts, away)
    if (left < 0).any():
        return None
    return np.asarray(host.hbm_bytes + away + (left // np.bincount(hosts))[hosts])


def packed_caps(tables: Tables, topology: Topology) -> NDArray[np.int64] | None:
    """(D,) int64, memory caps under which whole tables fit where equal parts of the hosts' memory are too small.

    They are those of a packing: the largest table first, each on the device with most HBM left whose host has what it
    takes besides. None if it fails, or devices do not share the memory of their hosts.
    """
    host, hosts = topology.host, topology.hosts
    if host is None or host.total_bytes is None:
        return None
    used, left = np.zeros(topology.num_devices, np.int64), np.full(topology.num_hosts, host.total_bytes)
    for size in np.sort(tables.memory_bytes)[::-1].tolist():
        free = host.hbm_bytes - used
        more = np.minimum(np.maximum(size - free, 0), size)  # of it in the host
        fits = np.flatnonzero(more <= left[hosts])
        if not fits.size:
            return None
        device = fits[free[fits].argmax()]
        used[device] += size
        left[hosts[device]] -= more[device]
    return allotted_caps(used, topology)


def require_room_for_states(
    devices: NDArray[np.int64], rows: NDArray[np.int64], workload: Workload, topology: Topology
) -> None:
    """Raise StatesExceedHbmError if the HBM of a device cannot hold what the optimizer keeps of each of its rows.

    Rowwise Adagrad keeps one number, which is in HBM for rows in host memory, too. Without host memory the memory caps
    say it.

    Args:
        devices: (S,) int64, the device of each shard.
        rows: (S,) int64, its rows.
        workload: of all tables, or those of the shards.
    """
    if topology.host is None or not np.any(workload.state.per_row):
        return
    needed = np.zeros(topology.num_devices, np.int64)
    np.add.at(needed, devices, STATE_BYTES * workload.state.per_row * rows)
    device = int(needed.argmax())
    if needed[device] > topology.host.hbm_bytes:
        keep = " and ".join(sorted({each.optimizer for each in workload.workloads if each.state.per_row}))
        raise StatesExceedHbmError(
            f"Device {device} keeps {format_bytes(needed[device])} of states of {keep}, which are in HBM "
            f"for all rows, but tables may take {format_bytes(topology.host.hbm_bytes)} of it. Give more devices or "
            "HBM, or an optimizer without a state of each row, such as sgd."
        )


def most_state_bytes(tables: Tables, memory_bytes: int) -> int:
    """Bytes that the states of rows of any whole tables with `memory_bytes` together can have, rounded up.

    It counts tables of few columns first, and of the last one a part.
    """
    states = STATE_BYTES * tables.workload.state.per_row * tables.num_embeddings
    first = np.argsort(tables.embedding_dim, kind="stable")
    before = np.cumsum(tables.memory_bytes[first]) - tables.memory_bytes[first]
    share = np.clip((memory_bytes - before) / tables.memory_bytes[first], 0.0, 1.0)
    return int(np.ceil((states[first] * share).sum()))
