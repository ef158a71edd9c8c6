"""Which rows of the shards of a device, or of a plan, are in HBM: the best split, by sorting; its bytes, and its check.

It is the split whose cost `cost_models/base/host_rows.py` computes in closed form, but for the thresholds between those
of its loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import as_array, holds_integers
from shard_gym.common.errors import InvalidPlanError, MemoryExceededError, short_repr
from shard_gym.common.text import format_bytes
from shard_gym.hardware import Topology
from shard_gym.plans.plan import SHARDING_TYPES, ShardingPlan, blocks_of_rows, has_dense_gradient
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import STATE_BYTES, Popularity, RowPopularity, RowSteps, Tables, Workload
from shard_gym.tables.tables import IN_HBM, IN_HOST
from shard_gym.tables.workload import PerTable

_OF_SHARDS = ("num_embeddings", "pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram")
"""What a shard may have otherwise than its table."""


class HbmSplit(NamedTuple):
    """The best split of S shards.

    The rows in HBM are those of a shard that are read most; which row ids these are, recorded lookups say.
    """

    hbm_rows: NDArray[np.int64]  #: (S,) int64, rows in HBM
    hbm_reads: NDArray[np.float64]  #: (S,) float64, expected rows in HBM that a batch reads
    host_reads: NDArray[np.float64]  #: (S,) float64, expected rows in the host's memory that a batch reads


def best_split(shards: Tables, devices: NDArray[np.int64], dense: NDArray[np.bool_], topology: Topology) -> HbmSplit:
    """The split of each device's HBM that leaves the fewest bytes of a batch to its host; whole rows.

    Args:
        shards: S shards as tables (`shard_gym.plans.statistics.shard_tables`).
        devices: (S,) int64, the device of each.
        dense: (S,) bool, whether a batch updates every row of the shard: replicas on several devices.
        topology: the devices; all rows are in HBM if it has no host memory.
    """
    rows_of, workload = shards.num_embeddings, shards.workload
    share, count = shards.row_popularity.steps(rows_of.astype(np.float64))
    reads = np.where(dense[:, None], 1.0, -np.expm1(-share * shards.lookups_per_batch[:, None]))  # (S, n)
    reads = np.where(count > 0, reads, 0.0)
    count = count * (rows_of / np.maximum(count.sum(axis=1), 1e-300))[:, None]  # steps of quadratures are no whole rows
    expected = (reads * count).sum(axis=1)
    in_hbm, in_host = shards.are_in(IN_HBM), shards.are_in(IN_HOST)
    if topology.host is None:
        return HbmSplit(rows_of.copy(), expected, np.zeros(len(shards)))
    row_bytes = shards.embedding_dim * split_bytes(workload)
    state = STATE_BYTES * workload.state.per_row * rows_of  # in HBM whatever the split is
    kept = np.zeros(reads.shape)
    for device in np.unique(devices):
        here = np.flatnonzero(devices == device)
        order = np.argsort(-reads[here], axis=None, kind="stable")
        shared = ~(in_hbm | in_host)[here, None]
        size = np.where(shared, count[here] * row_bytes[here, None], 0.0).ravel()[order]
        own = (rows_of * row_bytes)[here][in_hbm[here]].sum()
        free = max(topology.host.hbm_bytes - int(state[here].sum()) - int(own), 0)
        before = np.cumsum(size) - size
        part = np.clip(np.divide(free - before, size, out=np.ones_like(size), where=size > 0), 0.0, 1.0)
        of_device = np.empty(order.size)
        of_device[order] = part
        kept[here] = of_device.reshape(len(here), -1)
    kept[in_hbm], kept[in_host] = 1.0, 0.0
    read_there = (reads * count * kept).sum(axis=1)
    whole = np.floor((count * kept).sum(axis=1) + 1e-6).astype(np.int64)
    whole = np.where((kept == 1.0).all(axis=1), rows_of, np.minimum(whole, rows_of))
    return HbmSplit(whole, read_there, expected - read_there)


def split_bytes(workload: Workload) -> PerTable:
    """Bytes of a weight with its own states, which are where its row is; a state of each row is in HBM."""
    return workload.weight_bytes + STATE_BYTES * workload.state.per_weight


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
    in_hbm = shards[:, 3] * tables.workload.select(shards[:, 0]).row_bytes(shards[:, 5]) - in_host
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
    table, _, _, rows, _, columns = plan.shard_arrays().T
    return np.asarray((rows - hbm_rows) * columns * split_bytes(tables.workload.select(table)), np.int64)
