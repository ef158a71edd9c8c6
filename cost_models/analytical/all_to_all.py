"""The time of an all-to-all of pooled outputs: on arrays for any number of topologies, on floats for one.

NCCL cuts what a rank sends into pieces for each of the others, so a link is slow until the pieces are large. With b
bytes of a device through a link of bandwidth w,

    time = (b + extra * min(b, knee)) / w

so the first `knee` bytes pass at w / (1 + extra), the others at w. The numbers are those of `LinkSpec`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import Array, larger, smaller, some, sums_between, where
from shard_gym.cost_models.base.one_more import largest_of_others
from shard_gym.hardware import Cluster


def link_ms(num_bytes: ArrayLike, bytes_per_ms: ArrayLike, knee_bytes: ArrayLike, extra: ArrayLike) -> FloatArray:
    """Ms of a device that sends or receives `num_bytes` through a link, without latency; the arguments broadcast.

    It is continuous, never decreases in `num_bytes`, `knee_bytes` and `extra`, and never increases in `bytes_per_ms`.
    """
    sent = num_bytes if isinstance(num_bytes, np.ndarray) or hasattr(num_bytes, "device") else np.asarray(num_bytes)
    took: FloatArray = (sent + smaller(sent, knee_bytes) * extra) / bytes_per_ms
    return took


def to_parts_of_bytes(num_bytes: FloatArray) -> FloatArray:
    """Bytes rounded to 1,024ths, as a sequence table has no whole number of them.

    Sums of up to 8 TiB are then exact, and do not depend on the order of the devices.
    """
    return np.rint(num_bytes * 1024.0) / 1024.0


def all_to_all_ms(output_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) ms of each device in an all-to-all of pooled outputs.

    Device d holds output_bytes[d] for the whole batch and sends one D-th of it to every device. Its time is that of the
    larger of sending and receiving ("max of max", ml_perf_model analysis/memory_bw_utils.py) on the slower of its two
    links, plus the latency; it is 0 if no device has outputs, or for a single device.

    Args:
        output_bytes: (..., D) float64, bytes of the pooled outputs of each device's tables; 0 for padding.
        cluster: the topology; broadcasts against the leading shape.
    """
    # Sums of bytes are exact (`to_parts_of_bytes`). Bytes, knees and bandwidths are multiplied by D: arrays with an
    # axis of devices would take longer to divide.
    total = output_bytes.sum(axis=-1, keepdims=True)
    devices = column(cluster.num_devices)
    across: FloatArray | None = None
    if some(cluster.crosses_domains):
        near = received_from_peers(output_bytes, cluster)
        others = devices - 1.0 - cluster.num_peers
        far = larger(output_bytes * others, total - output_bytes - near)
        bandwidth, knee = column(cluster.inter_bytes_per_ms) * devices, column(cluster.inter_knee_bytes) * devices
        across = link_ms(far, bandwidth, knee, column(cluster.inter_knee_extra))
        crosses: Array = cluster.crosses_domains
        if crosses.ndim:  # some may not
            across = where(crosses[..., None], across, 0.0)
    else:
        near = total - output_bytes
    intra = larger(output_bytes * cluster.num_peers, near)
    bandwidth, knee = column(cluster.intra_bytes_per_ms) * devices, column(cluster.intra_knee_bytes) * devices
    busy = link_ms(intra, bandwidth, knee, column(cluster.intra_knee_extra))
    if across is not None:
        busy = larger(busy, across)
    took: FloatArray = where((total > 0) & cluster.device_mask, busy + column(cluster.latency_ms), 0.0)
    return took


class SlowestLinks(NamedTuple):
    """What M all-to-alls move in which one device has other outputs; (M,) bytes through a link, times D."""

    own_near: FloatArray  # of the device that changes, inside its domain
    own_far: FloatArray  # of it, to and from others; 0 within one domain
    most_near: FloatArray  # the most of any device, inside its domain
    most_far: FloatArray  # the most of any device, to and from others; 0 within one domain


def slowest_links_with_one(
    output_bytes: FloatArray, devices: NDArray[np.int64], new_bytes: FloatArray, cluster: Cluster
) -> SlowestLinks:
    """The links of M all-to-alls in which one device has other outputs, in O(M + D).

    The slowest device sends most or receives most, and what it receives depends on its own outputs, those of its domain
    and the total.

    Args:
        output_bytes: (D,) float64, see `all_to_all_ms`.
        devices, new_bytes: (M,) int64, the device that changes, and (M,) float64, its outputs then.
        cluster: the topology, without a leading shape and without padding.
    """
    count, of_domain = cluster.num_devices, int(cluster.num_peers[0]) + 1
    domain, slot = np.divmod(devices, of_domain)
    grid = np.full((-(-len(output_bytes) // of_domain), of_domain), np.nan)
    grid.ravel()[: len(output_bytes)] = output_bytes
    there = ~np.isnan(grid)
    by_domain = np.where(there, grid, 0.0).sum(axis=1)
    peers = there.sum(axis=1, keepdims=True) - 1.0
    total = output_bytes.sum() - output_bytes[devices] + new_bytes
    own_domain = by_domain[domain] - output_bytes[devices] + new_bytes

    most = np.maximum(largest_of_others(np.where(there, grid, -np.inf))[domain, slot], 0.0)
    least = -largest_of_others(np.where(there, -grid, -np.inf))[domain, slot]
    elsewhere = np.where(there, np.maximum(grid * peers, by_domain[:, None] - grid), -np.inf).max(axis=1)
    own = np.maximum(new_bytes * peers[domain, 0], own_domain - new_bytes)
    others = np.maximum(most * peers[domain, 0], own_domain - least)
    slowest = np.maximum.reduce([own, others, largest_of_others(elsewhere)[domain]])
    if not cluster.crosses_domains:
        return SlowestLinks(own, np.zeros_like(own), slowest, np.zeros_like(own))
    sends = count - 1.0 - peers
    far = np.maximum(new_bytes * sends[domain, 0], total - own_domain)
    sent = largest_of_others(output_bytes * np.broadcast_to(sends, grid.shape)[there])[devices]
    return SlowestLinks(
        own, far, slowest, np.maximum.reduce([far, sent, total + largest_of_others(-by_domain)[domain]])
    )


def all_to_all_ms_with_one(
    output_bytes: FloatArray, devices: NDArray[np.int64], new_bytes: FloatArray, cluster: Cluster
) -> tuple[FloatArray, FloatArray]:
    """M all-to-alls in which one device has other outputs: (M,) ms of it, and (M,) ms of the slowest device.

    They have the bits of `all_to_all_ms`, in O(M + D); the arguments are those of `slowest_links_with_one`.
    """
    count = cluster.num_devices
    links = slowest_links_with_one(output_bytes, devices, new_bytes, cluster)
    inside = cluster.intra_bytes_per_ms * count, cluster.intra_knee_bytes * count, cluster.intra_knee_extra
    own_ms, slowest_ms = link_ms(links.own_near, *inside), link_ms(links.most_near, *inside)
    if cluster.crosses_domains:
        across = cluster.inter_bytes_per_ms * count, cluster.inter_knee_bytes * count, cluster.inter_knee_extra
        own_ms = np.maximum(own_ms, link_ms(links.own_far, *across))
        slowest_ms = np.maximum(slowest_ms, link_ms(links.most_far, *across))
    exchanged = output_bytes.sum() - output_bytes[devices] + new_bytes > 0
    own_ms, slowest_ms = (np.where(exchanged, ms + cluster.latency_ms, 0.0) for ms in (own_ms, slowest_ms))
    return own_ms, slowest_ms


def one_of_each(cluster: Cluster) -> Cluster:
    """Of the D devices of a topology: the first one, one more of its domain, one of another, and one of the last.

    While all but the first are empty, every other device sends and receives what one of these does.
    """
    chosen = np.unique([0, 1, cluster.domain_end[0], cluster.domain_begin[-1]])
    chosen = chosen[chosen < len(cluster.device_mask)]
    begin, end = (np.searchsorted(chosen, each[chosen]) for each in (cluster.domain_begin, cluster.domain_end))
    return replace(
        cluster,
        device_mask=cluster.device_mask[chosen],
        domain_begin=begin,
        domain_end=end,
        num_peers=cluster.num_peers[chosen],
    )


def plain_all_to_all_ms(output_bytes: list[float], cluster: Cluster) -> list[float]:
    """`all_to_all_ms` of one topology (leading shape 1) on floats, with the same bits."""
    total = sum(output_bytes)
    if not total > 0:
        return [0.0] * len(output_bytes)
    devices, latency = cluster.num_devices.item(), cluster.latency_ms.item()
    num_peers, real = cluster.num_peers[0].tolist(), cluster.device_mask[0].tolist()
    bandwidth, knee = cluster.intra_bytes_per_ms.item() * devices, cluster.intra_knee_bytes.item() * devices
    extra = cluster.intra_knee_extra.item()
    if not cluster.crosses_domains.item():
        return [
            ((sent := max(own * peers, total - own)) + min(sent, knee) * extra) / bandwidth + latency if there else 0.0
            for own, peers, there in zip(output_bytes, num_peers, real, strict=True)
        ]
    from_peers = received_from_peers(np.array([output_bytes]), cluster)[0].tolist()
    card, card_knee = cluster.inter_bytes_per_ms.item() * devices, cluster.inter_knee_bytes.item() * devices
    card_extra = cluster.inter_knee_extra.item()
    others = [devices - 1.0 - peers for peers in num_peers]
    return [
        max(
            ((sent := max(own * peers, near)) + min(sent, knee) * extra) / bandwidth,
            ((sent := max(own * far, total - own - near)) + min(sent, card_knee) * card_extra) / card,
        )
        + latency
        if there
        else 0.0
        for own, peers, near, far, there in zip(output_bytes, num_peers, from_peers, others, real, strict=True)
    ]


def least_all_to_all_ms(total_bytes: float, cluster: Cluster) -> float:
    """Lower bound in ms for any split of the outputs over the devices of one topology.

    One device holds at least the mean and sends it. Across domains, the s devices of the smallest one send its outputs
    y to D - s others, so one of them at least y / s (D - s) / D, and each receives (total - y) / D: the larger of the
    two is smallest where both are (D - s) / D^2 of the total.
    """
    devices = float(cluster.num_devices)
    if devices == 1 or total_bytes <= 0:
        return 0.0
    sent, real = total_bytes / devices / devices, cluster.device_mask
    others = devices - 1.0 - cluster.num_peers
    near = link_ms(
        sent * cluster.num_peers, cluster.intra_bytes_per_ms, cluster.intra_knee_bytes, cluster.intra_knee_extra
    )
    network = cluster.inter_bytes_per_ms, cluster.inter_knee_bytes, cluster.inter_knee_extra
    far = link_ms(sent * others, *network)
    busy = np.maximum(near, far)[real].min()
    if cluster.crosses_domains:
        busy = max(busy, link_ms(sent * others[real].max(), *network))
    return float(busy + cluster.latency_ms)


def received_from_peers(output_bytes: FloatArray, cluster: Cluster) -> FloatArray:
    """(..., D) bytes of the other devices in each device's domain."""
    if not isinstance(output_bytes, np.ndarray):
        return sums_between(output_bytes, cluster.domain_begin, cluster.domain_end) - output_bytes
    sent = output_bytes.T
    up_to = np.zeros((len(sent) + 1, *sent.shape[1:]))  # the sum of the devices before each
    np.cumsum(sent, axis=0, out=up_to[1:])
    if cluster.domain_begin.ndim == 1:  # one topology for all
        return np.asarray((up_to[cluster.domain_end] - up_to[cluster.domain_begin]).T - output_bytes)
    sums = up_to.T
    begin, end = (np.broadcast_to(each, output_bytes.shape) for each in (cluster.domain_begin, cluster.domain_end))
    return np.asarray(np.take_along_axis(sums, end, -1) - np.take_along_axis(sums, begin, -1) - output_bytes)


def column(numbers: Array) -> Array:
    """(...) numbers as (..., 1), to broadcast over the devices; one number, which broadcasts faster, as it is."""
    return numbers[..., None] if numbers.ndim else numbers
