"""The exchange of the indices: every device gets the lookups of its shards from the samples of all devices.

Each device holds a D-th of the samples, with the lookups of all tables. Before the forward it sends every other device
the lookups of that one's shards (TorchRec's input dist). A shard adds to its device 8 bytes a lookup, the int64 values
of a KeyedJaggedTensor, 4 bytes a lookup for its weight if it has one, and 4 bytes a bag, its int32 lengths. TorchRec
1.8, `torchrec/distributed`:

| sharding type | what a shard gets | source |
|---|---|---|
| table_wise | its lookups and lengths, for each feature | sharding/tw_sharding.py, TwSparseFeaturesDist |
| column_wise | the same for every shard, also of two on one device | sharding/cw_sharding.py: it is the class above |
| row_wise | the lookups of its rows, and all lengths | sharding/rw_sharding.py: bucketized, then exchanged |
| table_row_wise | the same, with the blocks of one host | sharding/twrw_sharding.py, TwRwSparseFeaturesDist |
| data_parallel | nothing | sharding/dp_sharding.py, DpSparseFeaturesDist |

Sequence tables get the same (`*_sequence_sharding.py` make the same classes); with index dedup each device sends an id
once (embedding.py, `_dedup_indices`). dist_data.py runs three all-to-alls one after another: of the sizes, which the
hosts wait for, of the lengths and of the values. So the exchange takes the all-to-all of all bytes (`all_to_all_ms`,
where a device now receives what it sends of outputs), and the latencies of two more. Nothing compresses indices: the
`cross_host_ratio` of a topology and the dtype of the outputs do not count.

Assumed: lengths, values and weights share one message, and all sharding types one exchange, where TorchRec has one for
each type; int64 values, though int32 is possible; no stride of a variable batch.

A pipeline that fetches the lookups of the next batch hides the exchange (docs/cost-model.md says which), so it is in no
cost unless a cost model has `index_exchange="exposed"`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import largest, some, where
from shard_gym.common.errors import unknown_name
from shard_gym.cost_models.analytical.all_to_all import (
    all_to_all_ms,
    all_to_all_ms_with_one,
    least_all_to_all_ms,
    plain_all_to_all_ms,
    to_parts_of_bytes,
)
from shard_gym.cost_models.base.model import FORWARD_COMM
from shard_gym.hardware import Cluster
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tables import Tables

HIDDEN, EXPOSED = INDEX_EXCHANGES = "hidden", "exposed"
"""Whether a pipeline hides the exchange of the indices, or an iteration waits for it."""

VALUE_BYTES = 8  # of a lookup
LENGTH_BYTES = 4  # of a bag, the number of its lookups
FURTHER_LATENCIES = 2.0  # of the sizes and of the lengths


def checked_index_exchange(name: str) -> str:
    """`name` if it is one of `INDEX_EXCHANGES`; UnknownNameError otherwise."""
    if not isinstance(name, str) or name not in INDEX_EXCHANGES:
        raise unknown_name("index exchange", name, INDEX_EXCHANGES)
    return name


def index_bytes(shards: Tables, sharding_type: str) -> FloatArray:
    """(S,) float64 bytes of the lookups of a batch that shards get, from all devices; `shards` as of `shard_tables`."""
    if sharding_type == DATA_PARALLEL:
        return np.zeros(len(shards))
    bags = shards.workload.batch_size * shards.num_features  # a sequence is a bag here
    of_lookup = VALUE_BYTES + shards.workload.lookup_weight_bytes
    return to_parts_of_bytes(of_lookup * shards.lookups_per_batch + LENGTH_BYTES * bags)


def index_exchange_ms(num_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(...) ms of the exchange, for which all devices wait; 0 if nothing is exchanged, and on one device.

    Args:
        num_bytes: (..., D) float64, the sums of `index_bytes` of the devices; 0 for padding.
        cluster: the topology; broadcasts against the leading shape.
    """
    return _with_latencies(largest(all_to_all_ms(num_bytes, links_of_indices(cluster)), -1), cluster)


def add_index_exchange(phases: FloatArray, num_bytes: FloatArray, cluster: Cluster) -> None:
    """Add the exchange to the forward exchange of every device, in place; `phases` are (..., D, 4) ms."""
    took = index_exchange_ms(num_bytes, cluster)
    phases[..., FORWARD_COMM] += where(cluster.device_mask, took[..., None], 0.0)


def index_exchange_ms_with_one(
    num_bytes: FloatArray, devices: NDArray[np.int64], new_bytes: FloatArray, cluster: Cluster
) -> FloatArray:
    """(M,) ms of M exchanges in which one device gets other bytes, with the bits of `index_exchange_ms`, in O(M + D).

    Args:
        num_bytes: (D,) float64, see `index_exchange_ms`.
        devices, new_bytes: (M,) int64, the device that changes, and (M,) float64, what it gets then.
        cluster: the topology, without a leading shape and without padding.
    """
    _, slowest = all_to_all_ms_with_one(num_bytes, devices, new_bytes, links_of_indices(cluster))
    return _with_latencies(slowest, cluster)


def plain_index_exchange_ms(num_bytes: list[float], cluster: Cluster) -> float:
    """`index_exchange_ms` of one topology (leading shape 1) on floats, with the same bits."""
    took = max(plain_all_to_all_ms(num_bytes, links_of_indices(cluster)))
    return took + FURTHER_LATENCIES * cluster.latency_ms.item() if took > 0 else 0.0


def least_index_exchange_ms(total_bytes: float, cluster: Cluster) -> float:
    """Lower bound in ms for any split of the bytes over the devices of one topology."""
    return float(_with_latencies(np.asarray(least_all_to_all_ms(total_bytes, links_of_indices(cluster))), cluster))


def _with_latencies(took: FloatArray, cluster: Cluster) -> FloatArray:
    exchanged: FloatArray = where(took > 0, took + FURTHER_LATENCIES * cluster.latency_ms, 0.0)
    return exchanged


def latencies_ms(cluster: Cluster) -> FloatArray:
    """(...) ms that the three all-to-alls of an exchange take whatever they send."""
    return np.asarray((1.0 + FURTHER_LATENCIES) * cluster.latency_ms)


def links_of_indices(cluster: Cluster) -> Cluster:
    """`cluster` with links between domains that all bytes pass, not the share that a model sends of its outputs."""
    ratio = cluster.cross_host_ratio
    if not some(ratio != 1.0):
        return cluster
    return replace(
        cluster,
        inter_bytes_per_ms=cluster.inter_bytes_per_ms * ratio,
        inter_knee_bytes=cluster.inter_knee_bytes * ratio,
    )
