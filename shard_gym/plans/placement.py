"""Placements: check, memory use, and conversion to plans and JSON, independent of environments and masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.arrays import IntArray
from shard_gym.common.checks import holds_integers, is_integer
from shard_gym.common.errors import InvalidPlacementError, MemoryExceededError, short_repr
from shard_gym.common.text import format_bytes
from shard_gym.hardware import Topology
from shard_gym.plans.caps import devices_over, require_room_of_memories
from shard_gym.tables import Tables

Placement = NDArray[np.int64]
"""(T,) int64: the device of each table."""


def memory_used(placement: Placement, tables: Tables, num_devices: int) -> NDArray[np.int64]:
    """(D,) int64, bytes of weights and optimizer state on each device under a valid `placement`."""
    used = np.zeros(num_devices, np.int64)
    np.add.at(used, placement, tables.memory_bytes)  # bincount would lose bytes, because it sums in float64
    return used


def check_placement(placement: ArrayLike, tables: Tables, topology: Topology) -> Placement:
    """`placement` as a checked (T,) int64 array.

    The memory use is computed from the tables and the topology alone, without the mask of an environment.

    Raises:
        InvalidPlacementError: the length is wrong, or an entry is not an integer or not a device.
        MemoryExceededError: the tables of a device need more bytes than its memory cap, or the states of their rows
            more than its HBM.
    """
    try:
        given = np.asarray(placement)
    except (ValueError, OverflowError) as error:
        raise InvalidPlacementError(
            f"A placement is one list of device numbers, not {short_repr(placement)}."
        ) from error
    if given.shape != (len(tables),):
        raise InvalidPlacementError(
            f"A placement of {len(tables)} tables needs shape ({len(tables)},), one device for each; got {given.shape}."
        )
    if not holds_integers(given):
        raise InvalidPlacementError(f"A placement holds device numbers (integers), not {given.dtype}.")
    outside = np.flatnonzero((given < 0) | (given >= topology.num_devices))
    if outside.size:
        table = int(outside[0])
        raise InvalidPlacementError(
            f"Table {table} ({tables.names[table]}) is on device {given[table]}, "
            f"but the devices are 0 to {topology.num_devices - 1}."
        )
    checked = given.astype(np.int64)
    used = memory_used(checked, tables, topology.num_devices)
    over = devices_over(used, topology)
    if over.size:
        device = int(over[0])
        raise MemoryExceededError(
            f"Device {device} is given {int((checked == device).sum())} tables that need {used[device]} bytes "
            f"({format_bytes(used[device])}), but its cap is {topology.memory_cap_bytes[device]} bytes "
            f"({format_bytes(topology.memory_cap_bytes[device])})."
        )
    rows, columns = tables.num_embeddings, tables.embedding_dim
    require_room_of_memories(checked, rows, columns, tables.workload, topology, tables.rows_in)
    return checked


def pack_by_memory(tables: Tables, num_devices: int) -> Placement:
    """(T,) int64, the largest table first, each to the device with the fewest bytes so far.

    It balances memory alone: a proof that a task is solvable, not a good placement.
    """
    used, sizes = np.zeros(num_devices, np.int64), tables.memory_bytes
    placement = np.empty(len(tables), np.int64)
    for table in np.argsort(-sizes, kind="stable"):
        placement[table] = used.argmin()
        used[placement[table]] += sizes[table]
    return placement


MAX_TRIALS = 20_000  # of `pack_tightly`: about a second


def pack_tightly(sizes: IntArray, caps: IntArray, open_to: NDArray[np.bool_]) -> Placement | None:
    """(T,) int64, devices that hold (T,) bytes within (D,) caps; None if none were found.

    The largest table first, each on the device where least would be left; where a later one finds no room, the last
    choices are taken back, up to `MAX_TRIALS` choices.

    Args:
        sizes, caps: bytes.
        open_to: (T, D) where each table may be.
    """
    order = np.argsort(-sizes, kind="stable").tolist()
    rest = np.cumsum(sizes[order][::-1])[::-1].tolist()  # of a table and all later ones
    free, placement, trials = caps.astype(np.int64), np.empty(len(sizes), np.int64), 0
    choices: list[Iterator[int]] = []
    _, kind = np.unique(open_to, axis=1, return_inverse=True)  # of a device, by the tables that may be there

    def devices(table: int) -> Iterator[int]:
        """Where it fits, the fullest first; of devices with as much left and open to the same tables one."""
        if rest[len(choices)] > free.sum():
            return iter([])
        fits = np.flatnonzero(open_to[table] & (free >= sizes[table]))
        _, first = np.unique(np.stack([free[fits], kind.ravel()[fits]], axis=1), axis=0, return_index=True)
        return iter(fits[first].tolist())

    while len(choices) < len(order):
        choices.append(devices(order[len(choices)]))
        while choices:
            table = order[len(choices) - 1]
            device = next(choices[-1], None)
            if device is not None:
                break
            choices.pop()
            if choices:
                free[placement[order[len(choices) - 1]]] += sizes[order[len(choices) - 1]]
        trials += 1
        if not choices or device is None or trials > MAX_TRIALS:
            return None
        placement[table] = device
        free[device] -= sizes[table]
    return placement


def to_plan(placement: Placement, num_devices: int) -> list[list[int]]:
    """The placement as D lists: the tables of each device, ascending."""
    return [np.flatnonzero(placement == device).tolist() for device in range(num_devices)]


def placement_to_json(placement: Placement) -> list[int]:
    """The placement as a list of T integers."""
    return [int(device) for device in placement]


def placement_from_json(value: Any, tables: Tables, topology: Topology) -> Placement:
    """The checked placement in a JSON value.

    Raises:
        InvalidPlacementError: `value` is not a list of integers; also the errors of `check_placement`.
    """
    if not isinstance(value, list) or not all(map(is_integer, value)):
        raise InvalidPlacementError("A placement in JSON is a list of integers, one device for each table.")
    beyond = next((v for v in value if not -(2**63) <= v < 2**63), None)
    if beyond is not None:
        raise InvalidPlacementError(f"Devices are numbered from 0, and {short_repr(beyond)} is none.")
    return check_placement(np.asarray(value, np.int64), tables, topology)
