"""Tables that fit no plan: what is missing, in numbers, and what would help."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidTablesError
from shard_gym.common.text import counted, format_bytes
from shard_gym.hardware import MAX_DEVICES, Topology
from shard_gym.plans.column_levels import NONE, ColumnLevels
from shard_gym.plans.hbm_rows import split_bytes
from shard_gym.plans.memory import row_block_bytes, whole_table_bytes
from shard_gym.plans.plan import has_equal_blocks
from shard_gym.plans.variants import default_max_shards
from shard_gym.tables import Tables

SMALLER = (
    ("FP16 weights", "weight_dtype", "fp16"),
    ("Rowwise Adagrad", "optimizer", "rowwise_adagrad"),
    ("SGD, which has no states,", "optimizer", "sgd"),
)
"""Ways to train with less memory: in words, the option, and its value."""

MATTERS = 0.1  # the share of the missing bytes from which savings are worth a sentence
STEP = 1.05  # between numbers of devices that are tried, where they are many
LARGE = (1.0, 0.25, 0.05)  # shares of a device from which tables are split


def missing_bytes(tables: Tables, topology: Topology) -> int:
    """Bytes that the tables and their buffers lack on all devices together, whatever the plan; 0 if there are enough.

    What a device has for both is its memory cap.
    """
    return max(0, _needed(tables) - _available(topology))


def _needed(tables: Tables) -> int:
    return int(whole_table_bytes(tables).sum())


def _available(topology: Topology) -> int:
    return int(topology.memory_cap_bytes.sum())


def misfit(name: str, tables: Tables, topology: Topology, *, constrained: bool = False) -> str:
    """Sentences on tables that fit no plan: what they need, what there is, and what would help.

    Args:
        constrained: whether the tables have constraints, of which the plans that are tried know nothing.
    """
    needed, own = _needed(tables), int(tables.memory_bytes.sum())
    have, missing = _available(topology), missing_bytes(tables, topology)
    devices = f"{counted(topology.num_devices, 'device')} ({topology.device.name})"
    sentences = [
        f"The tables of {name} need {format_bytes(needed)} ({format_bytes(own)} for weights and optimizer states, "
        f"{format_bytes(needed - own)} for buffers of a training step), and {devices} "
        f"{'has' if topology.num_devices == 1 else 'have'} {format_bytes(have)} for both{_of_it(topology)}"
        + (f": {format_bytes(missing)} are missing." if missing else ", but no plan was found that fits.")
    ]
    enough = devices_that_hold(tables, topology)
    if enough is not None:
        hosts = -(-enough // topology.devices_per_host)
        in_hosts = f" in {hosts:,} hosts" * (hosts > 1)
        caps = topology.memory_cap_bytes
        kind = f"with {format_bytes(caps.max())} each" if topology.host is None and np.ptp(caps) else "of this kind"
        free = ", if there were no constraints" * constrained
        sentences.append(f"{counted(enough, 'device')} {kind}{in_hosts} would hold them{free}.")
    else:
        sentences.append(
            f"No number of them up to {MAX_DEVICES:,} was found that would; give each more memory, or train with "
            "smaller batches."
        )
    return " ".join([*sentences, *_savings(tables, missing)])


def _of_it(topology: Topology) -> str:
    """How much of the memory is in the hosts, a clause; empty if none is."""
    if topology.host is None:
        return ""
    in_hbm = topology.num_devices * topology.host.hbm_bytes
    return f", {format_bytes(in_hbm)} in HBM and {format_bytes(_available(topology) - in_hbm)} in host memory"


def _savings(tables: Tables, missing: int) -> list[str]:
    """What narrower weights, and optimizers with less state, would save, where that matters."""
    found = []
    for what, option, value in SMALLER:
        smaller: dict[str, Any] = {option: value}
        try:
            less = int((tables.memory_bytes - tables.with_training(**smaller).memory_bytes).sum())
        except InvalidTablesError:  # FBGEMM trains FP8 with some optimizers alone
            continue
        if less > MATTERS * missing:
            found.append(f"{what} (`{option}={value!r}`) would save {format_bytes(less)}.")
    return found


def devices_that_hold(tables: Tables, topology: Topology) -> int | None:
    """A number of devices like these, more than there are, for which a plan is known to fit; None if none was found.

    Where their memory caps differ, it is of devices with the largest cap, and may be less. The plans that are tried
    have large tables in row blocks or in column shards, and the others packed by bytes.
    """
    room = _room_of_many(topology)
    unlike = topology.host is None and np.ptp(topology.memory_cap_bytes) > 0
    count = max(1 if unlike else topology.num_devices + 1, -(-_needed(tables) // room))
    if topology.host is not None:  # buffers, and the states of all rows, are in HBM
        cells = tables.num_embeddings * tables.embedding_dim
        in_hbm = _needed(tables) - int((cells * split_bytes(tables.workload)).sum())
        count = max(count, -(-in_hbm // topology.host.hbm_bytes))
    while count <= MAX_DEVICES:
        if any(_fits(tables, count, room, large) for large in LARGE):
            return count
        count = max(count + 1, int(count * STEP))
    return None


def _room_of_many(topology: Topology) -> int:
    """Bytes that a device may take where hosts have all of their devices, which share the memory of a host."""
    room = int(topology.memory_cap_bytes.max())
    if topology.host is None:
        return room
    hbm = topology.host.hbm_bytes
    return hbm + (room - hbm) * int(np.bincount(topology.hosts).min()) // topology.devices_per_host


def _fits(tables: Tables, num_devices: int, room: int, large: float) -> bool:
    """Whether a plan fits whose tables above the share `large` of `room` are in row blocks, or in column shards."""
    whole = whole_table_bytes(tables)
    spread = whole > large * room
    if has_equal_blocks(tables.num_embeddings[spread], num_devices).all():
        blocks = int(row_block_bytes(tables, num_devices)[spread].sum())
        if blocks <= room and _packed(whole[~spread], num_devices, room - blocks):
            return True
    return _packed(_column_parts(tables, large * room, default_max_shards(tables, room)), num_devices, room)


def _packed(sizes: NDArray[np.int64], num_devices: int, room: int) -> bool:
    """Whether parts of these bytes fit where the largest come first, each on the emptiest device."""
    used = np.zeros(num_devices, np.int64)
    for size in np.sort(sizes)[::-1]:
        used[used.argmin()] += size
    return bool(used.max() <= room)


def _column_parts(tables: Tables, most_bytes: float, max_shards: int) -> NDArray[np.int64]:
    """(P,) bytes of the column shards of all tables, the fewest that have `most_bytes` each, or as many as can be."""
    levels = ColumnLevels.of(tables.embedding_dim, max_shards)
    sizes = np.stack([whole_table_bytes(tables.with_dims(width)) for width in levels.width.T], axis=1)
    fewest, most = levels.fewest_parts(sizes <= most_bytes), np.where(levels.is_form, levels.parts, 0).argmax(axis=1)
    return sizes[levels.in_form(np.arange(len(tables)), np.where(fewest == NONE, most, fewest))]
