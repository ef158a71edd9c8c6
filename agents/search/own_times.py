"""Own times: what tables cost by arithmetic on the numbers of a hardware profile, for rules that ask no cost model.

The constants are round numbers of what operators do; none is fitted, and none is of a cost model. What FBGEMM does is
taken from where cost models have it: the share of a warp for a width (`lane_share`), which rows are in HBM
(`host_bytes`), the bytes of an output, and rates that a user gives for a device of another kind. A device takes

    forward   max(memory, lanes) + reads of the host
    backward  max(memory, lanes) + sort + dense gradients of replicas + updates in the host

and exchanges its outputs in the forward and their gradients in the backward.

- Memory: rows that are read more than once in a batch come from DRAM once where the distinct rows fit the L2, and each
  time where they do not; all pass the L2. An update reads and writes each distinct row with its state.
- Lanes: FBGEMM's kernels give each row a group of threads by the widest table of the device (`lane_share`).
- Sort: keys of eight bytes and positions of four are read and written in passes.
- Launches: each workload of mixed tables is an operator of its own on the devices that have tables of it (`LAUNCHES`).
  Of tables of one workload every device has one operator, and no plan has fewer.
- Exchanges: of the b bytes of a device 1/D go to every other one; the slower of the links inside and across domains
  counts. Partial sums of blocks are reduce-scattered, those on a host inside it and then across; dense gradients are
  all-reduced (nccl-tests, doc/PERFORMANCE.md). Each kind has the latency of the links, and what their knee adds. A
  device that sends less of a kind than it receives waits for that (`fill_communication`).
- Host memory: as if all HBM were one pool of the rows that are read most, a table has the bytes that a batch reads of
  its rows outside, and its device has those above its own HBM.
- Where shards have replicas in other groups, their averaging (`Replicas`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.all_to_all import received_from_peers
from shard_gym.cost_models.analytical.model import FULL_WARP_DIM, OUTPUT_BYTES, lane_share
from shard_gym.cost_models.analytical.work_rates import work_ms
from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.cost_models.base.host_rows import THRESHOLDS, host_bytes
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM
from shard_gym.cost_models.neural.groups import LAUNCHES
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.needs import NEEDS
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE, has_dense_gradient
from shard_gym.plans.variants import Variants
from shard_gym.tables import STATE_BYTES, Tables


class RoughConstants(NamedTuple):
    """What operators do for a row, a lookup, or a byte: the constants of `OwnTimes`."""

    row_cycles: float = 32.0  # of a warp, for 128 columns that it reads, or for the end of a bag
    update_cycles: float = 128.0  # of a warp, for 128 columns that it reads, changes and writes, with their state
    sort_bytes: float = 192.0  # of DRAM for each lookup: a key and a position, read and written in eight passes
    random: float = 2.0  # how much longer DRAM takes for rows anywhere, which are read and written
    dense_passes: float = 8.0  # of a dense gradient through the DRAM: zeroed, averaged, and applied to all weights
    exchange: float = 1.0  # of the time of links
    host: float = 1.0  # of the time of reads and updates in the host's memory
    launches: float = 1.0  # of the time of launches

    def scaled(self, times: Iterable[float]) -> RoughConstants:
        """These numbers, each multiplied by one of eight."""
        return RoughConstants(*(number * factor for number, factor in zip(self, times, strict=True)))


ROUGH = RoughConstants()

# The loads. Sums, in ms:
(
    FORWARD_MEMORY,
    FORWARD_LANES,
    BACKWARD_MEMORY,
    BACKWARD_LANES,
    BACKWARD_REST,
    EXCHANGE,
    HOST_EXCHANGE,  # the share of EXCHANGE that is of blocks of rows on one host
    BACKWARD_EXCHANGE,
) = range(8)
# then maxima, the latencies in ms:
LANE_SHARE, OUTPUTS_LATENCY, ROWS_LATENCY, HOST_ROWS_LATENCY, REPLICAS_LATENCY = range(8, 13)
LATENCIES = slice(OUTPUTS_LATENCY, REPLICAS_LATENCY + 1)
MAXIMA = slice(LANE_SHARE, REPLICAS_LATENCY + 1)
# of mixed tables more maxima, the ms of a launch for each workload; and of devices with host memory sums
# again, the ms to read what is outside of HBM, for some thresholds of reads:
AROUND = (0, -8, -4, -2, 2, 4, 8)  # numbers of `THRESHOLDS`, from that of all HBM as one pool; of served tables, which
# may all be replicas, also from that of the HBM of a device alone


class OwnTimes(AdditiveCostModel):
    """The times described at the top of this file.

    Args:
        tables, topology: of the task, from which the pool of all HBM follows.
        constants: others than `ROUGH`.
    """

    name = "own-times"
    version = 1
    num_loads = MAXIMA.stop
    num_sum_loads = MAXIMA.start
    supports = frozenset(NEEDS)

    def __init__(self, tables: Tables, topology: Topology, constants: RoughConstants = ROUGH) -> None:
        self.constants, self.exchanges = constants, 2 if tables.workload.training else 1
        self._in_hbm_ms, self._update_times = np.zeros(0), 1.0
        inside, between = (
            _host_ms_per_byte(topology) if topology.num_devices > topology.devices_per_host else (0.0, 1.0)
        )
        self._between_hosts = between / (inside + between)  # the share of HOST_EXCHANGE
        groups = len(tables.workload.workloads)
        self._launches = slice(MAXIMA.stop, MAXIMA.stop + groups * (groups > 1))
        self._host = self._launches.stop
        if topology.host is not None:
            host, workload = topology.host, tables.workload
            self._thresholds = _thresholds(tables, topology)
            states = STATE_BYTES * workload.state.per_weight
            weights = float(np.mean(np.asarray(workload.weight_bytes / (workload.weight_bytes + states))))
            self._read_ms = constants.host * weights / (host.read_gb_per_s * 1e6)
            self._in_hbm_ms = THRESHOLDS[self._thresholds] * (host.hbm_bytes * self._read_ms)
            self._update_times = host.read_gb_per_s / host.update_gb_per_s / weights

    @property
    @override
    def maxima(self) -> slice:
        return slice(MAXIMA.start, self._launches.stop)

    @override
    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(S, K) float64, in the order of the names above; ms but for the lane share."""
        constants, device = self.constants, topology.device
        loads = np.zeros((len(shards), self._host + len(self._in_hbm_ms)))
        dense = has_dense_gradient(sharding_type, shards, topology.num_devices)
        if device.rates is not None:
            loads[:, [FORWARD_MEMORY, BACKWARD_MEMORY]] = work_ms(shards, device.rates)
        else:
            self._operator(loads, shards, topology)
        if dense:
            gradient = OUTPUT_BYTES * (shards.num_embeddings * shards.embedding_dim).astype(np.float64)
            passes = constants.dense_passes + 2 * np.asarray(shards.workload.state.per_weight)
            loads[:, BACKWARD_REST] += passes * gradient / (device.dram_gb_per_s * 1e6)
        if topology.num_devices > 1:
            self._exchanges(loads, shards, topology, sharding_type)
        if topology.replicas is not None:
            loads[:, BACKWARD_EXCHANGE] += constants.exchange * shards.memory_bytes * _averaging_ms_per_byte(topology)
        if topology.host is not None:
            loads[:, self._host :] = host_bytes(shards, dense)[:, self._thresholds] * self._read_ms
        if self._launches.stop > self._launches.start:
            launch_ms = constants.launches * topology.device.kernel_launch_us * 1e-3
            loads[np.arange(len(shards)), MAXIMA.stop + shards.workload.group_of(len(shards))] = launch_ms
        return loads

    def _operator(self, loads: FloatArray, shards: Tables, topology: Topology) -> None:
        device, constants, workload = topology.device, self.constants, shards.workload
        dram, l2 = device.dram_gb_per_s * 1e6, device.l2_gb_per_s * 1e6
        cycles = device.num_sms * device.clock_ghz * 1e6
        lookups, distinct, bags = shards.lookups_per_batch, shards.distinct_rows, shards.outputs_per_batch
        row, vectors = shards.row_bytes, np.ceil(shards.embedding_dim / FULL_WARP_DIM)
        outputs = OUTPUT_BYTES * shards.embedding_dim * bags
        again = (lookups - distinct) * np.maximum(1.0 - device.l2_bytes / np.maximum(distinct * row, 1.0), 0.0)
        read = (8.0 + workload.lookup_weight_bytes) * lookups + 8.0 * bags + (distinct + again) * row + outputs
        loads[:, FORWARD_MEMORY] = np.maximum(read / dram, (lookups * row + outputs) / l2)
        loads[:, FORWARD_LANES] = constants.row_cycles * (lookups * vectors + bags) / cycles
        state = STATE_BYTES * (workload.state.per_row + workload.state.per_weight * shards.embedding_dim)
        update = constants.random * distinct * 2.0 * (row + state)
        gradients = OUTPUT_BYTES * shards.embedding_dim * lookups
        loads[:, BACKWARD_MEMORY] = np.maximum((outputs + update) / dram, gradients / l2)
        loads[:, BACKWARD_LANES] = (
            (constants.row_cycles * lookups + constants.update_cycles * distinct) * vectors / cycles
        )
        loads[:, BACKWARD_REST] = constants.sort_bytes * lookups / dram
        loads[:, LANE_SHARE] = lane_share(shards.embedding_dim)

    def _exchanges(self, loads: FloatArray, shards: Tables, topology: Topology, sharding_type: str) -> None:
        times, devices, links = self.constants.exchange, topology.num_devices, topology.links
        domain = min(topology.domain_size, devices)
        crosses = devices > domain
        near, far = links.intra_host_gb_per_s * 1e6, links.inter_host_gb_per_s * 1e6
        latency = 1e-3 * (links.inter_host_latency_us if crosses else links.intra_host_latency_us)
        latency += times * max(
            links.intra_host_knee_extra * links.intra_host_knee_bytes / near,
            links.inter_host_knee_extra * links.inter_host_knee_bytes / far * crosses,
        )
        if sharding_type == DATA_PARALLEL:
            gradient = OUTPUT_BYTES * (shards.num_embeddings * shards.embedding_dim).astype(np.float64)
            ring = 2.0 * max((domain - 1) / domain / near, (1.0 / domain - 1.0 / devices) / far)
            loads[:, BACKWARD_EXCHANGE] = times * gradient * ring
            loads[:, REPLICAS_LATENCY] = latency
            return
        outputs = OUTPUT_BYTES * shards.embedding_dim * shards.outputs_per_batch
        ms, kind = outputs * _ms_per_byte(topology), np.full(len(shards), OUTPUTS_LATENCY)
        if sharding_type == TABLE_ROW_WISE and devices > topology.devices_per_host:
            inside, between = _host_ms_per_byte(topology)
            ms = outputs * (inside + between)
            kind[:], latency = HOST_ROWS_LATENCY, 2.0 * latency  # one collective after the other
            loads[:, HOST_EXCHANGE] = times * ms
        elif sharding_type in (ROW_WISE, TABLE_ROW_WISE):
            kind[shards.pooled] = ROWS_LATENCY
        loads[:, EXCHANGE] = times * ms
        loads[np.arange(len(shards)), kind] = latency

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        phases = _last(np.empty((len(PHASES), *loads.shape[:-1])))  # each phase contiguous
        share = loads[..., LANE_SHARE]
        host: FloatArray | float = 0.0
        if len(self._in_hbm_ms):
            host = (loads[..., self._host :] - self._in_hbm_ms).max(axis=-1, initial=0.0)
        launches: FloatArray | float = 0.0
        if self._launches.stop > self._launches.start:
            launches = loads[..., self._launches].sum(axis=-1)
        phases[..., FORWARD] = np.maximum(loads[..., FORWARD_MEMORY], loads[..., FORWARD_LANES] * share) + host
        phases[..., FORWARD] += LAUNCHES[FORWARD] * launches
        self._fill_exchanges(phases, loads, _exchange_ms(loads))
        if self.exchanges == 1:
            phases[..., BACKWARD] = 0.0
            return phases
        lanes = np.maximum(loads[..., BACKWARD_MEMORY], loads[..., BACKWARD_LANES] * share)
        phases[..., BACKWARD] = lanes + loads[..., BACKWARD_REST] + host * self._update_times
        phases[..., BACKWARD] += LAUNCHES[BACKWARD] * launches
        return phases

    def _fill_exchanges(self, phases: FloatArray, loads: FloatArray, exchange_ms: FloatArray) -> None:
        phases[..., FORWARD_COMM] = exchange_ms
        if self.exchanges == 1:
            phases[..., BACKWARD_COMM] = 0.0
        else:
            phases[..., BACKWARD_COMM] = exchange_ms + loads[..., BACKWARD_EXCHANGE] + loads[..., REPLICAS_LATENCY]

    @override
    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """A device that sends less than it receives is done when it has received all.

        That matters where blocks of rows on hosts have an exchange of their own, after that of all other parts: a
        device that has more of one is not done sooner by having less of the other.
        """
        exchange_ms, on_hosts = _exchange_ms(shared), shared[..., HOST_EXCHANGE]
        if on_hosts.any():
            for sent, share in ((shared[..., EXCHANGE] - on_hosts, 1.0), (on_hosts, self._between_hosts)):
                from_others = sent.sum(axis=-1, keepdims=True) - sent
                others = cluster.num_devices - 1.0
                if cluster.crosses_domains:  # each device sends as much to each one in other domains
                    from_others = from_others - received_from_peers(sent, cluster)
                    others = others - cluster.num_peers
                exchange_ms += share * np.maximum(from_others / others - sent, 0.0)
        self._fill_exchanges(phases, shared, exchange_ms)

    def part_ms(self, loads: FloatArray, lane_share: FloatArray) -> FloatArray:
        """(...) ms that parts with (..., K) loads add to a device with that lane share, in all phases together.

        Rows in the host count as if all HBM were one pool; latencies, which all parts share, do not.
        """
        own = loads.copy()
        own[..., LANE_SHARE:] = 0.0
        own[..., LANE_SHARE] = lane_share
        found: FloatArray = self.device_phases(own).sum(axis=-1)
        if len(self._in_hbm_ms):
            found += loads[..., self._host] * (1.0 + self._update_times * (self.exchanges - 1))
        return found

    def part_phases(self, loads: FloatArray, lane_share: FloatArray) -> FloatArray:
        """(..., 4) the same, by phase."""
        own = loads.copy()
        own[..., LANE_SHARE:] = 0.0
        own[..., LANE_SHARE] = lane_share
        found = self.device_phases(own)
        if len(self._in_hbm_ms):
            found[..., FORWARD] += loads[..., self._host]
            found[..., BACKWARD] += loads[..., self._host] * self._update_times * (self.exchanges - 1)
        return found

    @override
    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """In O(M): no phase depends on other devices."""
        phases = self.device_phases(loads)
        return phases, phases.sum(axis=-1)

    @override
    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """0 and infinity: nobody asks."""
        return 0.0, np.inf


def _exchange_ms(loads: FloatArray) -> FloatArray:
    """(...) ms, with latencies, of what (...) devices with (..., K) loads send."""
    found: FloatArray = loads[..., EXCHANGE] + loads[..., OUTPUTS_LATENCY]
    found += loads[..., ROWS_LATENCY]
    found += loads[..., HOST_ROWS_LATENCY]
    return found


def _last(array: FloatArray) -> FloatArray:
    """A view with the first axis as the last; `np.moveaxis` takes longer than the arithmetic on small arrays."""
    return array.transpose(*range(1, array.ndim), 0)


def _ms_per_byte(topology: Topology) -> float:
    """Ms of a byte of outputs on the slower of the links of a device, of the mean device where domains differ."""
    devices, links = topology.num_devices, topology.links
    members = np.bincount(topology.domains)[topology.domains]
    near = (members - 1) / (links.intra_host_gb_per_s * 1e6)
    far = (devices - members) * topology.cross_host_ratio / (links.inter_host_gb_per_s * 1e6)
    return float(np.maximum(near, far).mean()) / devices


def _host_ms_per_byte(topology: Topology) -> tuple[float, float]:
    """Ms of a byte of partial sums of blocks on one host: to add them up inside it, and then between hosts."""
    devices, host, links = topology.num_devices, topology.devices_per_host, topology.links
    domain = min(topology.domain_size, devices)
    near, far = links.intra_host_gb_per_s * 1e6, links.inter_host_gb_per_s * 1e6
    shrunk = far / topology.cross_host_ratio
    beside = max((domain - host) / near, (devices - domain) / shrunk) / (devices * host)
    return (host - 1) / host / near, beside


def _thresholds(tables: Tables, topology: Topology) -> IntArray:
    """The numbers of the thresholds from which rows are in HBM: first that of all HBM as one pool."""
    assert topology.host is not None
    pools = [topology.num_devices] if tables.workload.training else [topology.num_devices, 1]
    read = host_bytes(tables).sum(axis=0)
    first = [int((read - THRESHOLDS * (topology.host.hbm_bytes * float(devices))).argmax()) for devices in pools]
    return np.clip(np.add.outer(first, AROUND).ravel(), 0, len(THRESHOLDS) - 1)


def _averaging_ms_per_byte(topology: Topology) -> float:
    """Ms that averaging the replicas adds to an iteration for a byte, by rings inside and across domains."""
    replicas, links = topology.replicas, topology.links
    assert replicas is not None
    count, inside = replicas.count, replicas.in_host
    near = 2.0 * (inside - 1) / inside / (links.intra_host_gb_per_s * 1e6)
    far = 2.0 * (1.0 / inside - 1.0 / count) / (links.inter_host_gb_per_s * 1e6)
    return max(near, far) / replicas.sync_every
