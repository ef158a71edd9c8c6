"""Own times: what tables cost by arithmetic on the numbers of a hardware profile, for rules that ask no cost model.

Each of the rates below is a round number of what an operator does, none is fitted. A device takes

    forward   max(memory, lanes) + rows of the host
    backward  max(memory, lanes) + sort + dense gradients of replicas + rows of the host

and exchanges its outputs in the forward and their gradients in the backward.

- Memory: rows that are read more than once in a batch come from DRAM once where the distinct rows fit the L2, and each
  time where they do not; all pass the L2. An update reads and writes each distinct row with its state, at half the
  speed, as rows lie anywhere.
- Lanes: FBGEMM's kernels give each row a group of threads by the widest table of the device (`lane_share`).
- Sort: a key of eight bytes and a position of four are read and written in each of eight passes.
- Exchanges: of a device with b bytes, 1/D go to every other device; the slower of the links inside and across domains
  counts. Partial sums of blocks are reduce-scattered, those on a host inside it and then across; dense gradients of
  replicas are all-reduced (nccl-tests, doc/PERFORMANCE.md). Each kind of exchange has the latency of the links.
- Rows of the host: all HBM is one pool, which holds the rows that are read most. A table adds to its device the bytes
  that a batch reads of its rows outside, as many as its own HBM takes off that of others.
- Where shards have replicas in other groups, their averaging (`Replicas`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical.model import FULL_WARP_DIM, OUTPUT_BYTES, lane_share
from shard_gym.cost_models.analytical.work_rates import work_ms
from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.cost_models.base.host_rows import THRESHOLDS, host_bytes
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM
from shard_gym.hardware import Topology
from shard_gym.plans.needs import NEEDS
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE, has_dense_gradient
from shard_gym.plans.variants import Variants
from shard_gym.tables import STATE_BYTES, Tables


class Rates(NamedTuple):
    """What operators do for a row, a lookup, or a byte: the constants of `OwnTimes`."""

    row_cycles: float = 32.0  # of a warp, for 128 columns that it reads, or for the end of a bag
    update_cycles: float = 128.0  # of a warp, for 128 columns that it reads, changes and writes, with their state
    sort_bytes: float = 192.0  # of DRAM, for each lookup that the backward sorts
    random: float = 2.0  # how much longer DRAM takes for rows anywhere, which are read and written
    dense_passes: float = 8.0  # of a dense gradient through the DRAM: zeroed, averaged, and applied to all weights
    exchange: float = 1.0  # of the time of links
    host: float = 1.0  # of the time of reads and updates in the host's memory

    def scaled(self, times: Iterable[float]) -> Rates:
        """These numbers, each multiplied by one of seven."""
        return Rates(*(number * factor for number, factor in zip(self, times, strict=True)))


RATES = Rates()

# The loads: sums in ms, then maxima.
(
    FORWARD_MEMORY,
    FORWARD_LANES,
    BACKWARD_MEMORY,
    BACKWARD_LANES,
    BACKWARD_REST,
    EXCHANGE,
    BACKWARD_EXCHANGE,
    HOST_FORWARD,
    HOST_BACKWARD,
    LANE_SHARE,
    OUTPUTS_LATENCY,
    ROWS_LATENCY,
    HOST_ROWS_LATENCY,
    REPLICAS_LATENCY,
    IN_HBM_FORWARD,
    IN_HBM_BACKWARD,
) = range(16)
LATENCIES = slice(OUTPUTS_LATENCY, ROWS_LATENCY + 2)


class OwnTimes(AdditiveCostModel):
    """The times described at the top of this file, of devices each by itself: no phase depends on other devices.

    Args:
        tables, topology: of the task, from which the pool of all HBM follows.
        rates: others than `RATES`.
    """

    name = "own-times"
    version = 1
    num_loads = 16
    num_sum_loads = LANE_SHARE
    supports = frozenset(NEEDS)

    def __init__(self, tables: Tables, topology: Topology, rates: Rates = RATES) -> None:
        self.rates = rates
        self._threshold = _threshold(tables, topology)
        self.exchanges = 2 if tables.workload.training else 1

    @property
    @override
    def maxima(self) -> slice:
        return slice(self.num_sum_loads, self.num_loads)

    @override
    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(S, 16) float64, in the order of the names above; ms but for the lane share."""
        loads, rates, training = np.zeros((len(shards), self.num_loads)), self.rates, shards.workload.training
        device, dense = topology.device, has_dense_gradient(sharding_type, shards, topology.num_devices)
        dram, bags = device.dram_gb_per_s * 1e6, shards.outputs_per_batch
        outputs = OUTPUT_BYTES * shards.embedding_dim * bags
        if device.rates is not None:
            loads[:, [FORWARD_MEMORY, BACKWARD_MEMORY]] = work_ms(shards, device.rates)
        else:
            self._operator(loads, shards, topology)
        if dense:
            gradient = OUTPUT_BYTES * (shards.num_embeddings * shards.embedding_dim).astype(np.float64)
            passes = rates.dense_passes + 2 * np.asarray(shards.workload.state.per_weight)
            took = passes * gradient / dram
            if device.rates is not None and device.rates.dense_update is not None:
                took = device.rates.dense_update * gradient / OUTPUT_BYTES * 1e-6
            loads[:, BACKWARD_REST] += took
        if topology.num_devices > 1:
            self._exchanges(loads, shards, topology, sharding_type, outputs)
        if topology.replicas is not None:
            loads[:, BACKWARD_EXCHANGE] += rates.exchange * shards.memory_bytes * _averaging_ms_per_byte(topology)
        if topology.host is not None and self._threshold is not None:
            self._host(loads, shards, topology, dense)
        if not training:
            loads[:, [BACKWARD_MEMORY, BACKWARD_LANES, BACKWARD_REST, BACKWARD_EXCHANGE, HOST_BACKWARD]] = 0.0
        return loads

    def _operator(self, loads: FloatArray, shards: Tables, topology: Topology) -> None:
        device, rates, workload = topology.device, self.rates, shards.workload
        dram, l2 = device.dram_gb_per_s * 1e6, device.l2_gb_per_s * 1e6
        cycles = device.num_sms * device.clock_ghz * 1e6
        lookups, distinct, bags = shards.lookups_per_batch, shards.distinct_rows, shards.outputs_per_batch
        row, vectors = shards.row_bytes, np.ceil(shards.embedding_dim / FULL_WARP_DIM)
        outputs = OUTPUT_BYTES * shards.embedding_dim * bags
        again = (lookups - distinct) * np.maximum(1.0 - device.l2_bytes / np.maximum(distinct * row, 1.0), 0.0)
        read = (8.0 + workload.lookup_weight_bytes) * lookups + 8.0 * bags + (distinct + again) * row + outputs
        loads[:, FORWARD_MEMORY] = np.maximum(read / dram, (lookups * row + outputs) / l2)
        loads[:, FORWARD_LANES] = rates.row_cycles * (lookups * vectors + bags) / cycles
        state = STATE_BYTES * (workload.state.per_row + workload.state.per_weight * shards.embedding_dim)
        update = rates.random * distinct * 2.0 * (row + state)
        gradients = OUTPUT_BYTES * shards.embedding_dim * lookups
        loads[:, BACKWARD_MEMORY] = np.maximum((outputs + update) / dram, gradients / l2)
        loads[:, BACKWARD_LANES] = (rates.row_cycles * lookups + rates.update_cycles * distinct) * vectors / cycles
        loads[:, BACKWARD_REST] = rates.sort_bytes * lookups / dram
        loads[:, LANE_SHARE] = lane_share(shards.embedding_dim)

    def _exchanges(
        self, loads: FloatArray, shards: Tables, topology: Topology, sharding_type: str, outputs: FloatArray
    ) -> None:
        times, devices = self.rates.exchange, topology.num_devices
        domain = min(topology.domain_size, devices)
        crosses, links = devices > domain, topology.links
        near, far = links.intra_host_gb_per_s * 1e6, links.inter_host_gb_per_s * 1e6
        shrunk = far / topology.cross_host_ratio
        latency = 1e-3 * (links.inter_host_latency_us if crosses else links.intra_host_latency_us)
        to_all = max((domain - 1) / near, (devices - domain) / shrunk) / devices  # ms of a byte
        if sharding_type == DATA_PARALLEL:
            gradient = OUTPUT_BYTES * (shards.num_embeddings * shards.embedding_dim).astype(np.float64)
            ring = 2.0 * max((domain - 1) / domain / near, (1.0 / domain - 1.0 / devices) / far)
            loads[:, BACKWARD_EXCHANGE] = times * gradient * ring
            loads[:, REPLICAS_LATENCY] = latency * shards.workload.training
            return
        ms, kind = outputs * to_all, np.full(len(shards), OUTPUTS_LATENCY)
        if sharding_type == TABLE_ROW_WISE and devices > topology.devices_per_host:
            host = topology.devices_per_host
            beside = max((domain - host) / near, (devices - domain) / shrunk) / (devices * host)
            ms = outputs * ((host - 1) / host / near + beside)
            kind[:] = HOST_ROWS_LATENCY
        elif sharding_type in (ROW_WISE, TABLE_ROW_WISE):
            kind[shards.pooled] = ROWS_LATENCY
        loads[:, EXCHANGE] = times * ms
        loads[np.arange(len(shards)), kind] = latency * (1 + (kind == HOST_ROWS_LATENCY))

    def _host(self, loads: FloatArray, shards: Tables, topology: Topology, dense: bool) -> None:
        host, workload, times = topology.host, shards.workload, self.rates.host
        assert host is not None
        weight, states = workload.weight_bytes, STATE_BYTES * workload.state.per_weight
        own = host_bytes(shards, dense)[:, self._threshold]
        share = np.mean(np.asarray(weight / (weight + states)))
        in_hbm = THRESHOLDS[self._threshold] * host.hbm_bytes
        for column, constant, rate in (
            (HOST_FORWARD, IN_HBM_FORWARD, times * share / (host.read_gb_per_s * 1e6)),
            (HOST_BACKWARD, IN_HBM_BACKWARD, times / (host.update_gb_per_s * 1e6)),
        ):
            loads[:, column], loads[:, constant] = own * rate, in_hbm * rate

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        phases = np.empty((*loads.shape[:-1], len(PHASES)))
        share = loads[..., LANE_SHARE]
        host = np.maximum(loads[..., HOST_FORWARD] - loads[..., IN_HBM_FORWARD], 0.0)
        phases[..., FORWARD] = np.maximum(loads[..., FORWARD_MEMORY], loads[..., FORWARD_LANES] * share) + host
        exchange = loads[..., EXCHANGE] + loads[..., OUTPUTS_LATENCY]
        exchange = exchange + loads[..., ROWS_LATENCY] + loads[..., HOST_ROWS_LATENCY]
        phases[..., FORWARD_COMM] = exchange
        if self.exchanges == 1:
            phases[..., BACKWARD_COMM] = phases[..., BACKWARD] = 0.0
            return phases
        phases[..., BACKWARD_COMM] = exchange + loads[..., BACKWARD_EXCHANGE] + loads[..., REPLICAS_LATENCY]
        host = np.maximum(loads[..., HOST_BACKWARD] - loads[..., IN_HBM_BACKWARD], 0.0)
        lanes = np.maximum(loads[..., BACKWARD_MEMORY], loads[..., BACKWARD_LANES] * share)
        phases[..., BACKWARD] = lanes + loads[..., BACKWARD_REST] + host
        return phases

    @override
    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """In O(M): no phase depends on other devices."""
        phases = self.device_phases(loads)
        return phases, phases.sum(axis=-1)

    @override
    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """0 and infinity: nobody asks."""
        return 0.0, np.inf


def _threshold(tables: Tables, topology: Topology) -> int | None:
    """The number of the threshold in `THRESHOLDS` from which rows are in HBM if all HBM is one pool; None without."""
    if topology.host is None:
        return None
    outside = host_bytes(tables).sum(axis=0) - THRESHOLDS * (topology.host.hbm_bytes * float(topology.num_devices))
    return int(outside.argmax())


def _averaging_ms_per_byte(topology: Topology) -> float:
    """Ms that averaging the replicas adds to an iteration for a byte, by rings inside and across domains."""
    replicas, links = topology.replicas, topology.links
    assert replicas is not None
    count, inside = replicas.count, replicas.in_host
    near = 2.0 * (inside - 1) / inside / (links.intra_host_gb_per_s * 1e6)
    far = 2.0 * (1.0 / inside - 1.0 / count) / (links.inter_host_gb_per_s * 1e6)
    return max(near, far) / replicas.sync_every
