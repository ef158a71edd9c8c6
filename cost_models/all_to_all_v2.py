"""Version 2 of the all-to-all: messages below a knee get less of a link. On arrays, and on floats for one topology.

NCCL cuts what a rank sends into pieces for each of the others, so a link is slow until the pieces are large. With b
bytes through a link of bandwidth w,

    time = (b + extra * min(b, knee)) / w

so the first `knee` bytes pass at w / (1 + extra), the others at w. The constants depend on the kind of link. They are
fitted to nccl-tests on named machines; tools/fit_cost_model_v2.py, docs/cost-model-v2.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.linear import Link, links_of
from shard_gym.topology import Cluster


class Knee(NamedTuple):
    """How a kind of link treats small messages.

    Attributes:
        num_bytes: bytes of a device through the link up to which it is slower.
        extra: additional time of these bytes, as a share of the time that the full bandwidth would take.
    """

    num_bytes: float
    extra: float


PCIE = Knee(0.937e6, 0.407)
"""Two RTX 2080 Ti over PCIe 3.0 x16 without peer-to-peer copies."""

NVLINK = Knee(3.70e6, 3.38)
"""8 B200, 8 H20 and 4 H100 of one host."""

NETWORK = Knee(0.938e6, 0.612)
"""Two hosts of B200, H20, V100, RTX 6000D and A100, eight hosts of H800."""

PCIE_BYTES_PER_MS = 64e6
"""Devices of one host that reach less than this are taken to be joined by PCIe, others by NVLink."""


def link_ms(num_bytes: ArrayLike, bytes_per_ms: ArrayLike, knee: ArrayLike, extra: ArrayLike) -> FloatArray:
    """Ms of a device that sends or receives `num_bytes` through a link, without latency; the arguments broadcast.

    It is continuous, never decreases in `num_bytes`, `knee` and `extra`, and never increases in `bytes_per_ms`.
    """
    sent = np.asarray(num_bytes)
    return np.asarray((sent + np.minimum(sent, knee) * np.asarray(extra)) / np.asarray(bytes_per_ms))


def exchange_ms(output_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) ms of each device in an all-to-all of pooled outputs.

    Device d holds output_bytes[d] for the whole batch and sends one D-th of it to every device. Its time is that of the
    larger of sending and receiving ("max of max", ml_perf_model analysis/memory_bw_utils.py) on the slower of its two
    links, plus the latency; it is 0 if no device has outputs, or for a single device.

    Args:
        output_bytes: (..., D) float64, bytes of the pooled outputs of each device's tables; 0 for padding.
        cluster: the topology; broadcasts against the leading shape.
    """
    total = output_bytes.sum(axis=-1, keepdims=True)
    devices = _column(cluster.num_devices)
    crosses = np.asarray(cluster.crosses_hosts)[..., None]
    bandwidth = _column(cluster.intra_bytes_per_ms)
    near, far = total - output_bytes, np.zeros_like(output_bytes)
    if crosses.any():
        near = _received_from_peers(output_bytes, cluster.host_peers)
        others = devices - 1.0 - cluster.num_peers
        far = np.maximum(output_bytes * others, total - output_bytes - near) / devices
    intra = np.maximum(output_bytes * cluster.num_peers, near) / devices
    is_pcie = bandwidth < PCIE_BYTES_PER_MS
    knee, extra = (np.where(is_pcie, PCIE[field], NVLINK[field]) for field in range(2))
    busy = link_ms(intra, bandwidth, knee, extra)
    across = link_ms(far, _column(cluster.inter_bytes_per_ms), *NETWORK)
    busy = np.where(crosses, np.maximum(busy, across), busy) + _column(cluster.latency_ms)
    return np.where((total > 0) & cluster.device_mask, busy, 0.0)


def plain_exchange_ms(output_bytes: list[float], cluster: Cluster) -> list[float]:
    """`exchange_ms` of one topology on floats, bit for bit (tests/cost_models/test_all_to_all_v2.py).

    Args:
        output_bytes: D numbers, see `exchange_ms`.
        cluster: the topology; leading shape (1,).
    """
    total = sum(output_bytes)
    if not total > 0:
        return [0.0] * len(output_bytes)
    devices, latency = cluster.num_devices.item(), cluster.latency_ms.item()
    peers, real = cluster.num_peers[0].tolist(), cluster.device_mask[0].tolist()
    bandwidth, across = cluster.intra_bytes_per_ms.item(), cluster.inter_bytes_per_ms.item()
    knee, extra = PCIE if bandwidth < PCIE_BYTES_PER_MS else NVLINK
    crosses = cluster.crosses_hosts.item()
    near = [total - sent for sent in output_bytes]
    if crosses:
        near = _received_from_peers(np.array(output_bytes), cluster.host_peers[0]).tolist()
    times = [0.0] * len(output_bytes)
    for device, (sent, received) in enumerate(zip(output_bytes, near, strict=True)):
        if not real[device]:
            continue
        intra = max(sent * peers[device], received) / devices
        busy = (intra + min(intra, knee) * extra) / bandwidth
        if crosses:
            far = max(sent * (devices - 1.0 - peers[device]), total - sent - received) / devices
            busy = max(busy, (far + min(far, NETWORK.num_bytes) * NETWORK.extra) / across)
        times[device] = busy + latency
    return times


def exchange_links(cluster: Cluster) -> tuple[Link, ...]:
    """The links of one topology without padding: the slowest device of `exchange_ms` as a maximum of lines."""
    is_pcie = cluster.intra_bytes_per_ms < PCIE_BYTES_PER_MS
    return links_of(cluster, inside=PCIE if is_pcie else NVLINK, across=NETWORK)


def least_exchange_ms(total_bytes: float, cluster: Cluster) -> float:
    """Lower bound in ms for any split of the outputs over the devices of one topology: one holds at least the mean."""
    devices = float(cluster.num_devices)
    if devices == 1 or total_bytes <= 0:
        return 0.0
    mean = total_bytes / devices
    is_pcie = cluster.intra_bytes_per_ms < PCIE_BYTES_PER_MS
    intra = link_ms(mean * cluster.num_peers / devices, cluster.intra_bytes_per_ms, *(PCIE if is_pcie else NVLINK))
    others = devices - 1.0 - cluster.num_peers
    across = link_ms(mean * others / devices, cluster.inter_bytes_per_ms, *NETWORK)
    busy = np.maximum(intra, across if cluster.crosses_hosts else 0.0)
    return float(busy[cluster.device_mask].min() + cluster.latency_ms)


def _received_from_peers(output_bytes: FloatArray, host_peers: FloatArray) -> FloatArray:
    """(..., D) bytes of the other devices on each device's host; `host_peers` is symmetric."""
    if host_peers.ndim == 2:
        return output_bytes @ host_peers  # one topology for all, so one product
    return np.asarray((host_peers @ output_bytes[..., None])[..., 0])


def _column(numbers: FloatArray | np.float64) -> FloatArray:
    """(...) numbers as (..., 1), to broadcast over the devices."""
    return np.asarray(numbers)[..., None]
