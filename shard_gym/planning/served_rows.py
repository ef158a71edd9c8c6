"""Which rows of tables that are served have a copy on every device: a threshold for copies, and one for the host.

A row that is read L times in a batch by D devices, W of them in a domain of fast links (by default a host), with links
of b_in and b_out inside and across domains, and hosts that are read at b_host by each device, is in one of four states:

    state                     bytes of HBM on each device    ms of a byte of the row, of the mean device
    on every device           1                              0
    on one device             1 / D                          x L
    in the host of every one  0                              D h (1 - exp(-L / D))
    in the host of one        0                              x L + h (1 - exp(-L))

    x = max((W - 1) / (D b_in), (D - W) / (D b_out)) / D        h = 1 / (D b_host)

A device sends a row of its own for each lookup elsewhere (with deduplicated ids D (1 - exp(-L / D)) times, not L), and
reads a row of its host once in a batch. The HBM is full at a price p of its bytes that is the same for all rows, so
each row is in the state whose ms and price are least. For rows with few reads, the first three are UGache's (SOSP
2023), from two thresholds: rows with more than (D - 1) p / (D x) reads are on every device, others with more than
p / (D (h - x)) on one. The ratio is (D - 1) (h - x) / x, whatever the HBM. That is its authors' mu,
1 + D (host - peer) / peer for the times of a read, because x is (D - 1) / D of a peer's.
The price that fills the HBM is found by bisection; rows of equal popularity at that price are copied in part.

Rows in the host of every device are a part of the copied tables, and the memory of a plan counts them on each device.
Where the devices have no room for that, hosts are read by one device alone.

Left out: latency, the time that reads in HBM take, which is the same in all states, and that a device may have more of
the tables than another. Rows of pooled tables are blocks on one device each.
"""

from __future__ import annotations

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.hardware import Topology
from shard_gym.tables import Tables

EVERY, ONE, HOST_OF_EVERY, HOST_OF_ONE = range(4)  # the states

_BISECTIONS = 100  # of the exponent of the price


def copied_shares(
    tables: Tables, reads: FloatArray, rows: FloatArray, topology: Topology, dedup: bool = False
) -> FloatArray:
    """(T, J) float64 from 0 to 1: how much of each step of popularity every device has, in HBM or in its host.

    Args:
        tables: those that are served; 0 for pooled ones.
        reads: (T, J) expected reads of a row in a batch, of each step.
        rows: (T, J) rows of each step.
        dedup: whether a device asks for a row once in a batch (`shard_gym.planning.index_dedup`).
    """
    ms, devices = _state_ms(reads, topology, dedup), topology.num_devices
    ms[EVERY][tables.pooled], ms[HOST_OF_EVERY][tables.pooled] = np.inf, np.inf
    num_bytes = rows * tables.workload.row_bytes(tables.embedding_dim)[:, None]
    shares = _filling(ms, num_bytes, topology)
    on_each = float((num_bytes * (shares + (1.0 - shares) / devices)).sum())
    if topology.host is not None and on_each > topology.memory_cap_bytes.min():
        ms[HOST_OF_EVERY] = np.inf
        shares = _filling(ms, num_bytes, topology, float(topology.memory_cap_bytes.min()))
    return shares


def _state_ms(reads: FloatArray, topology: Topology, dedup: bool) -> FloatArray:
    """(4, T, J) ms of a GB of rows in each state."""
    devices, linked = topology.num_devices, min(topology.domain_size, topology.num_devices)
    links, host = topology.links, topology.host
    across = (devices - linked) / links.inter_host_gb_per_s * topology.cross_host_ratio
    asked = -devices * np.expm1(-reads / devices)
    exchange = (asked if dedup else reads) * max((linked - 1) / links.intra_host_gb_per_s, across) / devices**2
    if host is None:
        return np.stack([0.0 * reads, exchange, np.full(reads.shape, np.inf), np.full(reads.shape, np.inf)])
    read = 1.0 / (devices * host.read_gb_per_s)
    return np.stack([0.0 * reads, exchange, read * asked, exchange - read * np.expm1(-reads)])


def _filling(ms: FloatArray, num_bytes: FloatArray, topology: Topology, cap: float = np.inf) -> FloatArray:
    """(T, J), the `copied_shares` of steps with these ms in each state, at the price that fills the HBM.

    Of states that take as long, a row is in the one of fewest bytes.

    Args:
        cap: bytes that a device may hold in HBM and in its host's memory together.
    """
    devices = topology.num_devices
    room = float(topology.memory_cap_bytes.min() if topology.host is None else topology.host.hbm_bytes)
    slots = np.array([1.0, 1.0 / devices, 0.0, 0.0])

    limits = np.array([room, cap])

    def at(price: float) -> tuple[FloatArray, FloatArray]:
        """Whether each step is copied at that price, and the bytes that a device needs, of HBM and of all memory."""
        state = HOST_OF_ONE - (ms + price * slots[:, None, None])[::-1].argmin(axis=0)
        copied = ((state == EVERY) | (state == HOST_OF_EVERY)).astype(np.float64)
        held = num_bytes * (copied + (1.0 - copied) / devices)
        return copied, np.array([(num_bytes * slots[state]).sum(), held.sum()])

    most = devices * float(ms[np.isfinite(ms)].max(initial=0.0))
    low, high = 1e-30 * most, 2.0 * most
    if not most or (at(low)[1] <= limits).all():
        return at(low)[0]
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if (at(middle)[1] <= limits).all() else (middle, high)
    (more, needed), (fewer, used) = at(low), at(high)
    grown = np.maximum(needed - used, 1e-300)
    part = float(np.clip(np.where(needed > used, (limits - used) / grown, 1.0), 0.0, 1.0).min())
    return np.asarray(fewer + part * (more - fewer))
