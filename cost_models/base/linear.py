"""`LinearCosts`: the cost of the placements of one task as maxima of linear functions, for bounds and exact solvers.

A phase of compute lasts, on a device whose widest table has lane level l,

    fixed + max over pieces p of the sum over its tables of ms[l, p]

and, where rows may be in host memory, so many times the read time of `HostReads` besides. An all-to-all lasts as long
as the busiest entry of the slowest link. So with the levels of the devices given, the cost of a placement is a sum of
maxima of linear functions of it; only a link below its knee is concave, the minimum of two lines. This is another form
of the cost model, not an approximation: `links_of` says why, and so do `AnalyticalCostModel.linear_costs_of` and
`host_rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.hardware import Cluster
from shard_gym.plans.placement import Placement


class Line(NamedTuple):
    """Ms of n bytes: slope * n + offset."""

    slope: float
    offset: float


@dataclass(frozen=True, eq=False)
class Link:
    """A kind of link in an all-to-all."""

    sent: FloatArray  # (D,) float64, bytes that a device sends through it for each byte of its outputs
    received: FloatArray  # (R, D), bytes received for each byte of outputs; only rows that can exceed all of `sent`
    bytes_per_ms: float  # bandwidth
    knee_bytes: float = 0.0  # bytes up to which a message takes `1 + extra` times as long as at the full bandwidth
    extra: float = 0.0  # see `knee_bytes`

    @property
    def shares(self) -> FloatArray:
        """(D + R, D) float64: times the (D,) outputs, the bytes of which the largest number counts."""
        return np.concatenate([np.diag(self.sent), self.received])

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines whose minimum is the time of the link; it never decreases, so they cross at the knee."""
        full = Line(1.0 / self.bytes_per_ms, self.extra * self.knee_bytes / self.bytes_per_ms)
        return (full, Line((1.0 + self.extra) / self.bytes_per_ms, 0.0)) if full.offset else (full,)

    def least_bytes(self, total: float) -> float:
        """Bytes that the largest message has at least, however `total` bytes of outputs are split over the devices.

        Every weighted mean of the messages, of any weights, is at most the largest; here each device's outputs have the
        same weight in it. The senders can have weights alone, or a receiver and the senders that it gets nothing from.
        """
        weights = 1.0 / np.maximum(self.sent, np.finfo(float).tiny)
        most = [1.0 / weights.sum()]
        most += [1.0 / (weights[row == 0].sum() + 1.0 / row[row > 0].min()) for row in self.received]
        return total * float(max(most))

    def ms(self, num_bytes: float) -> float:
        """Ms of the largest message."""
        return min(line.slope * num_bytes + line.offset for line in self.lines)


def links_of(cluster: Cluster) -> tuple[Link, ...]:
    """The links of one topology without padding, in the all-to-all of `all_to_all.py`.

    Device d sends each of the D - 1 others a D-th of its outputs; all send and receive at once. A link's time never
    decreases with its bytes, so the largest message on it decides, and messages that cannot be larger than all others
    need no entry. Those are what a device receives:
    - Inside a domain with p + 1 devices, the outputs of p others, at most p times the largest of them. Its owner sends
      as much.
    - Between domains, by a device of one that is as large as any, the outputs of n devices elsewhere, at most n times
      the largest of them. Its owner sends to n devices or more, because its domain is not larger.
    The last domain may be smaller than the others; what its devices receive, the outputs of all others, has an entry.

    Args:
        cluster: the topology, of D devices.
    """
    devices = float(cluster.num_devices)
    if devices == 1:
        return ()
    none = np.empty((0, int(devices)))
    inside = (cluster.intra_bytes_per_ms, cluster.intra_knee_bytes, cluster.intra_knee_extra)
    links = [Link(cluster.num_peers / devices, none, *map(float, inside))]
    if cluster.crosses_domains:
        fewest = cluster.num_peers == cluster.num_peers.min()
        received = none if fewest.all() else (~fewest / devices)[None]
        sent = (devices - 1.0 - cluster.num_peers) / devices
        across = (cluster.inter_bytes_per_ms, cluster.inter_knee_bytes, cluster.inter_knee_extra)
        links.append(Link(sent, received, *map(float, across)))
    return tuple(link for link in links if link.shares.any())


@dataclass(frozen=True, eq=False)
class HostReads:
    """What rows in host memory add to both phases of a device, by G thresholds (`host_rows.py`)."""

    ms: FloatArray  # (G, T), what a table adds at each threshold
    hbm_ms: FloatArray  # (G,), what the HBM of a device takes off
    times: FloatArray  # (2,), how often the read time counts in forward and backward

    def read_ms(self, ms: FloatArray) -> FloatArray:
        """(...) ms that devices read from their hosts, from the (..., G) sums over their tables."""
        return np.asarray(np.maximum((ms - self.hbm_ms).max(axis=-1), 0.0))


@dataclass(frozen=True, eq=False)
class LinearCosts:
    """The costs of the placements of T tables on D devices; L lane levels, P pieces of each compute phase."""

    lane_shares: FloatArray  # (L,) float64, the lane levels of the tables, ascending
    levels: NDArray[np.int64]  # (T,) int64, the lane level of each table; a device has the highest of its tables
    ms: FloatArray  # (2, L, P, T), what a table adds to a piece of forward and backward; never falls with the level
    fixed_ms: FloatArray  # (2,) float64, fixed ms of the two phases on a device that is not empty
    outputs: FloatArray  # (T,) float64, bytes of the pooled outputs of each table, above 0
    links: tuple[Link, ...]  # the links of the all-to-all; none for one device
    latency_ms: float  # fixed ms of one all-to-all
    host: HostReads | None = None  # None if all rows are in HBM

    def cost_ms(self, placement: Placement) -> float:
        """Ms of a (T,) placement: what the cost model says, but for rounding; for tests."""
        compute = np.zeros(2)
        for device in np.unique(placement):
            here = placement == device
            phases = self.ms[:, self.levels[here].max()][..., here].sum(axis=-1).max(axis=-1)
            if self.host is not None:
                phases += self.host.times * self.host.read_ms(self.host.ms[:, here].sum(axis=-1))
            compute = np.maximum(compute, phases)
        busy = [link.ms((link.shares[:, placement] @ self.outputs).max()) for link in self.links]
        return float((compute + self.fixed_ms).sum() + 2.0 * (max(busy, default=0.0) + self.latency_ms))

    @property
    def interchangeable(self) -> bool:
        """Whether all devices have equal links, so that a placement may exchange them."""
        return all(np.ptp(link.sent) == 0 and not len(link.received) for link in self.links)
