"""Which rows of the shards of a device are in its HBM, and which in its host's memory: the best split, by sorting.

It is the split whose cost `cost_models/host_rows.py` computes in closed form, but for the thresholds between those of
its loads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.tables import Tables
from shard_gym.topology import Topology
from shard_gym.workload import STATE_BYTES, Workload


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
        shards: S shards as tables (`shard_gym.sharding.statistics.shard_tables`).
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
    if topology.host is None:
        return HbmSplit(rows_of.copy(), expected, np.zeros(len(shards)))
    row_bytes = shards.embedding_dim * split_bytes(workload)
    state = STATE_BYTES * workload.state.per_row * rows_of  # in HBM whatever the split is
    kept = np.zeros(reads.shape)
    for device in np.unique(devices):
        here = np.flatnonzero(devices == device)
        order = np.argsort(-reads[here], axis=None, kind="stable")
        size = (count[here] * row_bytes[here, None]).ravel()[order]
        free = max(topology.host.hbm_bytes - int(state[here].sum()), 0)
        before = np.cumsum(size) - size
        part = np.clip(np.divide(free - before, size, out=np.ones_like(size), where=size > 0), 0.0, 1.0)
        of_device = np.empty(order.size)
        of_device[order] = part
        kept[here] = of_device.reshape(len(here), -1)
    in_hbm = (reads * count * kept).sum(axis=1)
    whole = np.floor((count * kept).sum(axis=1) + 1e-6).astype(np.int64)
    whole = np.where((kept == 1.0).all(axis=1), rows_of, np.minimum(whole, rows_of))
    return HbmSplit(whole, in_hbm, expected - in_hbm)


def split_bytes(workload: Workload) -> int:
    """Bytes of a weight with its own states, which are where its row is; a state of each row is in HBM."""
    return workload.weight_bytes + STATE_BYTES * workload.state.per_weight
