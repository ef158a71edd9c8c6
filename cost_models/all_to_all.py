"""The time of an all-to-all of pooled outputs: on arrays for any number of topologies, on floats for one."""

from __future__ import annotations

import numpy as np

from shard_gym.cost_models.base import FloatArray
from shard_gym.topology import Cluster


def all_to_all_ms(output_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) ms of each device in an all-to-all of pooled outputs.

    Device d holds output_bytes[d] for the whole batch and sends one D-th of it to every device. Its time is that of the
    larger of sending and receiving ("max of max", ml_perf_model analysis/memory_bw_utils.py) on the slower of its two
    links, plus the latency; it is 0 if no device has outputs, or for a single device.

    Args:
        output_bytes: (..., D) float64, bytes of the pooled outputs of each device's tables; 0 for padding.
        cluster: the topology; broadcasts against the leading shape.
    """
    # Bytes are integers, so these sums are exact and do not depend on the order of the devices.
    total = output_bytes.sum(axis=-1, keepdims=True)
    devices = _column(cluster.num_devices)
    crosses = np.asarray(cluster.crosses_hosts)[..., None]
    if crosses.any():
        from_peers = _received_from_peers(output_bytes, cluster.host_peers)
        others = devices - 1.0 - cluster.num_peers
        inter = np.maximum(output_bytes * others, total - output_bytes - from_peers)
        inter = np.where(crosses, inter / _column(cluster.inter_bytes_per_ms), 0.0)
    else:
        from_peers, inter = total - output_bytes, 0.0
    intra = np.maximum(output_bytes * cluster.num_peers, from_peers) / _column(cluster.intra_bytes_per_ms)
    busy = np.maximum(intra, inter) / devices + _column(cluster.latency_ms)
    return np.where((total > 0) & cluster.device_mask, busy, 0.0)


def plain_all_to_all_ms(output_bytes: list[float], cluster: Cluster) -> list[float]:
    """`all_to_all_ms` of one topology on floats, bit for bit (tests/cost_models/test_all_to_all.py).

    Args:
        output_bytes: D numbers, see `all_to_all_ms`.
        cluster: the topology; leading shape (1,).
    """
    total = sum(output_bytes)
    if not total > 0:
        return [0.0] * len(output_bytes)
    devices, latency = cluster.num_devices.item(), cluster.latency_ms.item()
    num_peers, real = cluster.num_peers[0].tolist(), cluster.device_mask[0].tolist()
    intra = cluster.intra_bytes_per_ms.item()
    if not cluster.crosses_hosts.item():
        return [
            max(sent * peers, total - sent) / intra / devices + latency if there else 0.0
            for sent, peers, there in zip(output_bytes, num_peers, real, strict=True)
        ]
    from_peers = _received_from_peers(np.array(output_bytes), cluster.host_peers[0]).tolist()
    inter, others = cluster.inter_bytes_per_ms.item(), [devices - 1.0 - peers for peers in num_peers]
    # The maximum of the quotients has the same bits as the quotient of the maximum.
    return [
        max(sent * peers / intra, near / intra, sent * far / inter, (total - sent - near) / inter) / devices + latency
        if there
        else 0.0
        for sent, peers, near, far, there in zip(output_bytes, num_peers, from_peers, others, real, strict=True)
    ]


def _received_from_peers(output_bytes: FloatArray, host_peers: FloatArray) -> FloatArray:
    """(..., D) bytes of the other devices on each device's host; `host_peers` is symmetric."""
    if host_peers.ndim == 2:
        return output_bytes @ host_peers  # one topology for all, so one product
    return np.asarray((host_peers @ output_bytes[..., None])[..., 0])


def _column(numbers: FloatArray | np.float64) -> FloatArray:
    """(...) numbers as (..., 1), to broadcast over the devices."""
    return np.asarray(numbers)[..., None]
