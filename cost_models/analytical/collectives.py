"""The times of the collectives that sharded tables need beside the all-to-all of `all_to_all.py`.

- Reduce-scatter over all devices: each device sends a D-th of its partial sums to every other one, so it is the
  all-to-all of as many bytes of outputs on every device. (n - 1)/n of the bytes pass each link (nccl-tests,
  doc/PERFORMANCE.md). TorchRec's planner, too, lets all of them pass the links between hosts (planner/
  shard_estimators.py, row_wise); rings that share the network cards of a domain would send fewer.
- Reduce-scatter inside the hosts, then an all-to-all across them, for tables with blocks on one host (TorchRec,
  distributed/sharding/twrw_sharding.py). A host is what it trains them on, LOCAL_WORLD_SIZE devices: it takes a domain
  of several hosts only if TORCHREC_RESOLVED_POD_SIZE says how many (distributed/comm.py, TorchRec 1.8).
- All-reduce of gradients: 2 (n - 1)/n of the bytes pass each link (nccl-tests, same file). Across domains the W
  network cards of a domain share them, as TorchRec's planner assumes (all-reduce bandwidth = inter-host bandwidth x W).

Every collective has the latency of its links once, and its links their knees (`LinkSpec`). Bytes are (..., D) float64,
of each device, the same on all that take part; 0 for padding. `cluster` broadcasts against the leading shape.
"""

from __future__ import annotations

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import any_of, larger, largest, some, where
from shard_gym.cost_models.analytical.all_to_all import all_to_all_ms, column, link_ms, received_from_peers
from shard_gym.hardware import Cluster


def reduce_scatter_ms(partial_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) ms of a reduce-scatter of partial sums over all devices."""
    return all_to_all_ms(partial_bytes, cluster)


def host_reduce_scatter_ms(partial_bytes: FloatArray, cluster: Cluster, share: float = 1.0) -> FloatArray:
    """(..., D) ms of a reduce-scatter of partial sums inside each host, and of the all-to-all across hosts after it.

    The first leaves each device of a host of W the sums of a W-th of the samples. The second is between devices of the
    same number in their hosts, so its bytes pass the network cards, but for those to hosts of the same domain, which
    pass its links at the same time. All hosts, more than one, are equal.

    Args:
        share: of the bytes of a partial sum that a sum has in the all-to-all.
    """
    devices, host = column(cluster.num_devices), column(cluster.host_size)
    near, beside, far = host_reduce_scatter_bytes(partial_bytes, cluster, share)
    # Bytes are divided after their sum, which is exact then.
    total = partial_bytes.sum(axis=-1, keepdims=True) / host
    elsewhere = share * (total - partial_bytes)  # the W devices of a host have W parts of the same
    across: FloatArray | float = 0.0
    if some(beside):
        here = share * ((received_from_peers(partial_bytes, cluster) + partial_bytes) / host - partial_bytes)
        across, elsewhere = _inside_ms(larger(beside, here / devices), cluster), elsewhere - here
    across = larger(_across_ms(larger(far, elsewhere / devices), cluster), across)
    busy = _inside_ms(near, cluster) + across
    busy += 2.0 * column(cluster.latency_ms)
    took: FloatArray = where(any_of(partial_bytes, -1) & cluster.device_mask, busy, 0.0)
    return took


def all_reduce_ms(gradient_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) ms of an all-reduce of the dense gradients of replicas.

    Inside a domain of W devices 2 (W - 1)/W of the bytes pass each link, and between domains 2 (1 - W/D) of a W-th of
    them each network card. The two overlap, so the slower counts.
    """
    near, far = all_reduce_bytes(gradient_bytes, cluster)
    across = _across_ms(far / column(cluster.cross_host_ratio), cluster)  # its links count bytes before they shrink
    busy = larger(_inside_ms(near, cluster), across) + column(cluster.latency_ms)
    took: FloatArray = where(any_of(gradient_bytes, -1) & cluster.device_mask, busy, 0.0)
    return took


def all_to_all_bytes(output_bytes: FloatArray, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """(..., D) bytes that each device sends inside its domain, and to others; the same of a reduce-scatter."""
    devices, domain = column(cluster.num_devices), cluster.num_peers + 1.0
    return output_bytes * cluster.num_peers / devices, output_bytes * (devices - domain) / devices


def host_reduce_scatter_bytes(
    partial_bytes: FloatArray, cluster: Cluster, share: float = 1.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(..., D) bytes that each device sends inside its host, and in the all-to-all that follows to other hosts of its
    domain, and to those of other domains."""
    devices, host = column(cluster.num_devices), column(cluster.host_size)
    domain = larger(cluster.num_peers + 1.0, host)  # of padding, which has no bytes
    summed = partial_bytes / host
    beside, far = (share * summed * each / devices for each in (domain - host, devices - domain))
    return summed * (host - 1.0), beside, far


def all_reduce_bytes(gradient_bytes: FloatArray, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """(..., D) bytes that each device sends inside its domain, and to others."""
    devices, domain = column(cluster.num_devices), cluster.num_peers + 1.0
    near = 2.0 * gradient_bytes * cluster.num_peers / domain
    return near, 2.0 * gradient_bytes * (devices - domain) / (devices * domain)


def codec_ms(sent_bytes: FloatArray, summed_bytes: FloatArray, ms_per_byte: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) ms to encode what each device sends and to decode what it receives, a D-th of all summed outputs.

    `sent_bytes` are encoded pooled outputs and partial sums, `summed_bytes` (...) the same of all devices after the
    sums: of blocks, the share of each device. `ms_per_byte` is 0 on devices without shards.
    """
    received = column(summed_bytes / cluster.num_devices)
    busy = (sent_bytes + received) * largest(ms_per_byte, -1, keepdims=True)
    took: FloatArray = where(cluster.device_mask, busy, 0.0)
    return took


def _inside_ms(num_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    bandwidth, knee = column(cluster.intra_bytes_per_ms), column(cluster.intra_knee_bytes)
    return link_ms(num_bytes, bandwidth, knee, column(cluster.intra_knee_extra))


def _across_ms(num_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    bandwidth, knee = column(cluster.inter_bytes_per_ms), column(cluster.inter_knee_bytes)
    return link_ms(num_bytes, bandwidth, knee, column(cluster.inter_knee_extra))
