"""Which rows of the shards of a plan are in HBM: the best split (`hbm_split.py`), its bytes, and its check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import as_array, holds_integers
from shard_gym.common.errors import InvalidPlanError, MemoryExceededError, short_repr
from shard_gym.common.text import format_bytes
from shard_gym.hardware.topology import Topology
from shard_gym.plans.hbm_split import HbmSplit, best_split, split_bytes
from shard_gym.plans.plan import SHARDING_TYPES, ShardingPlan, blocks_of_rows, has_dense_gradient
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables.row_popularity import Popularity, RowPopularity, RowSteps
from shard_gym.tables.tables import Tables

_OF_SHARDS = ("num_embeddings", "pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram")
"""What a shard may have otherwise than its table."""


def split_of_plan(plan: ShardingPlan, tables: Tables, topology: Topology) -> HbmSplit:
    """The best split of the S shards of a valid plan, in the order of `ShardingPlan.shard_arrays`."""
    arrays = plan.shard_arrays()
    kinds = np.array([SHARDING_TYPES.index(each.shard_type) for each in plan.tables], np.int64)[arrays[:, 0]]
    updated = [has_dense_gradient(kind, tables, topology.num_devices) for kind in SHARDING_TYPES]
    dense = np.array(updated)[kinds]
    shards = tables.select(arrays[:, 0]).with_dims(arrays[:, 5])
    blocks = blocks_of_rows(arrays)
    changes = {name: getattr(shards, name).copy() for name in _OF_SHARDS}
    popularities: dict[int, tuple[NDArray[np.int64], Popularity]] = {}
    for kind in np.unique(kinds).tolist():
        chosen = np.flatnonzero(kinds == kind)
        own = tables.select(arrays[chosen, 0])
        if not dense[chosen[0]]:  # all rows of a replica are read and updated, whatever its samples are
            own = shard_tables(own, SHARDING_TYPES[kind], topology, arrays[chosen, 5], blocks[chosen])
        for name, values in changes.items():
            values[chosen] = getattr(own, name)
        popularities[kind] = chosen, own.row_popularity
    popularity = _in_order(popularities.values(), len(shards))
    parts = replace(shards, **changes, popularity=popularity)
    split = best_split(parts, arrays[:, 1], dense, topology)
    # The last of several blocks has fewer rows than the others.
    return split._replace(hbm_rows=np.minimum(split.hbm_rows, arrays[:, 3]))


def check_hbm_rows(
    hbm_rows: Sequence[int] | NDArray[np.integer[Any]], plan: ShardingPlan, tables: Tables, topology: Topology
) -> NDArray[np.int64]:
    """(S,) int64, `hbm_rows` itself, the rows of each shard of a valid plan in HBM, if devices can keep them there.

    Raises:
        InvalidPlanError: it is no such list, a shard has fewer rows, or there is no host memory for the other rows.
        MemoryExceededError: the rows of a device, and the states of each row, need more bytes than its HBM has.
    """
    rows, shards = as_array("hbm_rows", hbm_rows, InvalidPlanError), plan.shard_arrays()
    if rows.shape != (len(shards),) or not holds_integers(rows):
        raise InvalidPlanError(
            f"hbm_rows must be an integer for each of {len(shards)} shards, not {short_repr(hbm_rows)}."
        )
    wrong = np.flatnonzero((rows < 0) | (rows > shards[:, 3]))
    if wrong.size:
        table, device, _, has, *_ = shards[wrong[0]].tolist()
        raise InvalidPlanError(
            f"The shard of table {tables.names[table]!r} on device {device} has {has:,} rows, of which "
            f"{int(rows[wrong[0]]):,} cannot be in HBM."
        )
    in_host = host_bytes(rows, plan, tables)
    if topology.host is None:
        if in_host.any():
            table = int(shards[in_host.argmax(), 0])
            raise InvalidPlanError(
                f"Rows of table {tables.names[table]!r} are in host memory, but the devices have none for tables."
            )
        return rows
    in_hbm = shards[:, 3] * tables.workload.row_bytes(shards[:, 5]) - in_host
    used = np.zeros(topology.num_devices, np.int64)
    np.add.at(used, shards[:, 1], in_hbm)
    device = int(used.argmax())
    if used[device] > topology.host.hbm_bytes:
        raise MemoryExceededError(
            f"Device {device} keeps {format_bytes(used[device])} of rows and their states in HBM, but tables may take "
            f"{format_bytes(topology.host.hbm_bytes)} of it."
        )
    return rows


def _in_order(parts: Iterable[tuple[NDArray[np.int64], Popularity]], count: int) -> Popularity:
    """Popularities of one class, of the shards at some indices each, as those of all `count` shards."""
    found = list(parts)
    kind, names = (RowSteps, ("rows", "shares")) if isinstance(found[0][1], RowSteps) else (RowPopularity, ("q", "s"))
    arrays = []
    for name in names:
        array = np.zeros((count, *getattr(found[0][1], name).shape[1:]))
        for chosen, popularity in found:
            array[chosen] = getattr(popularity, name)
        arrays.append(array)
    return kind(*arrays)


def host_bytes(hbm_rows: NDArray[np.int64], plan: ShardingPlan, tables: Tables) -> NDArray[np.int64]:
    """(S,) int64, bytes of each shard of a plan in host memory: the weights of its rows there, and their states.

    A state of each row is in HBM for all rows.

    Args:
        hbm_rows: (S,) int64, rows of each shard in HBM.
    """
    _, _, _, rows, _, columns = plan.shard_arrays().T
    return np.asarray((rows - hbm_rows) * columns * split_bytes(tables.workload), np.int64)
