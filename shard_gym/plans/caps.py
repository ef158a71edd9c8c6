"""Memory caps: which devices are over theirs, how the memory of a host is allotted, and states that must be in HBM."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import StatesExceedHbmError
from shard_gym.common.text import format_bytes
from shard_gym.hardware import Topology
from shard_gym.tables import STATE_BYTES, Tables, Workload
from shard_gym.tables.tables import IN_HBM, IN_HOST


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


def rooms_of_kept(topology: Topology) -> dict[int, NDArray[np.int64]]:
    """(D,) int64, the most bytes of devices for tables whose `rows_in` is `IN_HBM`, and `IN_HOST`; 1 for none.

    Of tables with `IN_HOST`, these are bytes without `states_of_rows`, which are in HBM.
    """
    caps, host = topology.memory_cap_bytes, topology.host
    assert host is not None
    parts = np.maximum(caps - host.hbm_bytes, 1)
    parts = parts if host.total_bytes is None else np.full_like(parts, host.total_bytes)
    return {IN_HBM: np.minimum(caps, host.hbm_bytes), IN_HOST: np.minimum(caps, parts)}


def states_of_rows(tables: Tables) -> NDArray[np.int64]:
    """(T,) int64, bytes of what the optimizer keeps of each row, which are in HBM for all rows."""
    return np.asarray(STATE_BYTES * tables.workload.state.per_row * tables.num_embeddings)


def require_room_of_memories(
    devices: NDArray[np.int64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    workload: Workload,
    topology: Topology,
    rows_in: NDArray[np.int64] | None,
) -> None:
    """Raise StatesExceedHbmError if the HBM of a device, or its host's memory, cannot hold what must be in it.

    That is in HBM what the optimizer keeps of each row (rowwise Adagrad one number, also for rows in host memory), and
    tables that are kept there; in host memory other tables that are. Without host memory the memory caps say it.

    Args:
        devices: (S,) int64, the device of each shard.
        rows, columns: (S,) int64, of each.
        workload: of all tables, or those of the shards.
        rows_in: (S,) int64, of their tables (`Tables.rows_in`), or None.
    """
    host = topology.host
    if host is None or (rows_in is None and not np.any(workload.state.per_row)):
        return
    needed, states = np.zeros(topology.num_devices, np.int64), STATE_BYTES * workload.state.per_row * rows
    if rows_in is None:
        np.add.at(needed, devices, states)
    else:
        size = rows * workload.row_bytes(columns)
        np.add.at(needed, devices, np.where(rows_in == IN_HBM, size, states))
        _require_room_in_hosts(devices, size, np.where(rows_in == IN_HOST, size - states, 0), topology)
    device = int(needed.argmax())
    if needed[device] > host.hbm_bytes:
        if rows_in is not None and (rows_in == IN_HBM).any():
            raise StatesExceedHbmError(
                f"Device {device} has {format_bytes(needed[device])} of tables, and of what the optimizer keeps of "
                f"each row, that must be in its HBM, of which tables may take {format_bytes(host.hbm_bytes)}. Give "
                "more devices or HBM, or let fewer tables have the compute kernel fused alone."
            )
        keep = " and ".join(sorted({each.optimizer for each in workload.workloads if each.state.per_row}))
        raise StatesExceedHbmError(
            f"Device {device} keeps {format_bytes(needed[device])} of states of {keep}, which are in HBM "
            f"for all rows, but tables may take {format_bytes(host.hbm_bytes)} of it. Give more devices or "
            "HBM, or an optimizer without a state of each row, such as sgd."
        )


def _require_room_in_hosts(
    devices: NDArray[np.int64], size: NDArray[np.int64], kept: NDArray[np.int64], topology: Topology
) -> None:
    """Raise StatesExceedHbmError if hosts cannot hold `kept` bytes of each shard, of `size`, and what HBM cannot."""
    host = topology.host
    assert host is not None
    used, away = np.zeros((2, topology.num_devices), np.int64)
    np.add.at(used, devices, size)
    np.add.at(away, devices, kept)
    over = devices_over(np.maximum(used, np.where(away > 0, away + host.hbm_bytes, 0)), topology)
    if over.size:
        device = int(over[0])
        parts = topology.memory_cap_bytes[device] - host.hbm_bytes
        raise StatesExceedHbmError(
            f"Device {device} has {format_bytes(away[device])} of tables that must be in host memory, of which it may "
            f"take {format_bytes(max(int(parts), 0))}. Give more devices or host memory, or let fewer tables have the "
            f"compute kernel fused_uvm alone."
        )


def most_state_bytes(tables: Tables, memory_bytes: int) -> int:
    """Bytes that the states of rows of any whole tables with `memory_bytes` together can have, rounded up.

    It counts tables first of which states are the largest share, those of few columns, and of the last one a part.
    """
    states = states_of_rows(tables)
    first = np.argsort(-states / tables.memory_bytes, kind="stable")
    before = np.cumsum(tables.memory_bytes[first]) - tables.memory_bytes[first]
    share = np.clip((memory_bytes - before) / tables.memory_bytes[first], 0.0, 1.0)
    return int(np.ceil((states[first] * share).sum()))
