"""A model of FBGEMM's table-batched embedding and its all-to-alls, in additive-load form.

Forward and backward of a device are

    limits(DRAM, L2, lanes) = the slowest of them + OVERLAP_LOSS x the other two

plus a fixed cost, and the backward first sorts.
- DRAM: indices (8 B) and offsets (8 B) read, rows read on cache misses, pooled FP32 outputs written (pytorch/FBGEMM,
  bench/tbe counts rows and outputs; Lin et al., HiPC 2022, add indices, offsets and the cache); in the backward pass
  gradients, and a random read-modify-write of every distinct row with its optimizer state.
- L2: every row and every gradient that is read passes through it, and the pooled outputs that are written.
- Lanes: thread groups of FBGEMM's kernels. A group spends cycles on every row that it reads, on every bag, on every
  gradient and on every row that it updates. It has 8, 16 or 32 threads, for up to 32, 64 or more columns of the widest
  table of the fused operator, so rows of narrow tables beside a wide one leave lanes idle.
Of a device with measured rates (`topology.WorkRates`) work_rates.py has the times in place of these limits.
Rows in host memory, of a topology that has some: host_rows.py, or host_cache.py with the policy "lru".
All-to-all: each device sends its pooled outputs to all others (all_to_all.py). The gradients are sent back in the same
time. Before, it gets its indices (index_exchange.py), for which the model with an exposed exchange waits.

pytorch/FBGEMM v1.6.0 and v1.8.0 prove the groups: codegen/training/forward/embedding_forward_split_template.cu:731 and
codegen/training/backward/embedding_backward_split_template.cu:985 (733 and 987 in v1.8.0) dispatch on max_D, and
codegen/genscript/jinja_environment.py:167 to 207 makes groups of 8, 16 and 32 threads with four columns each. That a
narrow row costs a wide group as many cycles as a wide row is assumed.

Of tables of several workloads, a device runs a fused operator for each group of them (mixed.py).

Every load is a sum or a maximum over the tables of a device. Every time is a sum of maxima of non-negative multiples of
the loads (with OVERLAP_LOSS between 0 and 1), so it never decreases when a table is added. Compute times are convex in
the sums for a given share of the lanes; a link below its knee is concave.

The constants are fitted to the public measurements by tools/fit_analytical.py; docs/results/cost-model-errors.md has
the errors.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import larger, turned, turned_copy, where, zeros
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.analytical.all_to_all import (
    all_to_all_ms,
    all_to_all_ms_with_one,
    least_all_to_all_ms,
    plain_all_to_all_ms,
    to_parts_of_bytes,
)
from shard_gym.cost_models.analytical.constants import FITTED, Constants, checked_constants
from shard_gym.cost_models.analytical.host_cache import host_policy_named
from shard_gym.cost_models.analytical.index_exchange import (
    EXPOSED,
    HIDDEN,
    add_index_exchange,
    checked_index_exchange,
    index_bytes,
    index_exchange_ms,
    index_exchange_ms_with_one,
    least_index_exchange_ms,
    plain_index_exchange_ms,
)
from shard_gym.cost_models.analytical.l2_cache import l2_bytes_per_table, l2_hits, state_sectors, to_sectors
from shard_gym.cost_models.analytical.mixed import GROUP_LOADS, SUMS, group_loads, share_of_group
from shard_gym.cost_models.analytical.work_rates import work_ms
from shard_gym.cost_models.base import COMMUNICATION, COMPUTE, PHASES, AdditiveCostModel, LinearCosts, PlainCosts
from shard_gym.cost_models.base.linear import Link, links_of
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM
from shard_gym.cost_models.base.one_more import largest_of_others
from shard_gym.hardware import Cluster, DeviceSpec, Topology
from shard_gym.plans.needs import COMPRESSION, HOST_MEMORY, MIXED, SEQUENCES, TRAINING, WEIGHTED
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables


class Rates(NamedTuple):
    """What the loads need of a device; the fields may be arrays that broadcast against the counts."""

    dram_bytes_per_ms: ArrayLike
    l2_bytes_per_ms: ArrayLike
    cycles_per_ms: ArrayLike  # of all streaming multiprocessors together
    launch_ms: ArrayLike

    @staticmethod
    def of(device: DeviceSpec) -> Rates:
        """The rates of a device."""
        return Rates(
            device.dram_gb_per_s * 1e6,
            device.l2_gb_per_s * 1e6,
            device.num_sms * device.clock_ghz * 1e6,
            device.kernel_launch_us * 1e-3,
        )


INDEX_BYTES = OFFSET_BYTES = 8
OUTPUT_BYTES = 4  # pooled outputs and their gradients are FP32, FBGEMM's default output_dtype

SORT_BYTES = (8 + 8 + 4) + (8 + 4 * 2 * (8 + 4)) + 2 * 8
"""Per lookup: an index is read, its position and its bag are written; the positions are read once to count all digits,
and positions and bags are read and written in each of four passes of eight bits (Adinets and Merrill, Onesweep, arXiv
2206.01784, the radix sort of CUB); the sorted positions are read to find runs of equal rows, and again to find the long
ones."""

WEIGHT_SORT_BYTES = 8 + 4 * 2 * (8 + 4)
"""The same per weight of a lookup: they are sorted by themselves, once more by the indices (pytorch/FBGEMM v1.8.0,
codegen/training/backward/embedding_backward_split_template.cu, `indice_weights_sorted`)."""

FULL_WARP_DIM = 128  # 32 threads of four elements each

# The counts of a table; all but the last are summed.
(
    ROW_VECTORS,
    BAGS,
    FORWARD_DRAM_BYTES,
    FORWARD_L2_BYTES,
    LOOKUPS,
    GRADIENT_DRAM_BYTES,
    GRADIENT_L2_BYTES,
    UPDATE_BYTES,
    UPDATE_VECTORS,
    OUTPUTS,
    GROUP_SHARE,
) = range(11)

# The loads: first sums, then maxima. Those of forward and backward are neighbours, so that one slice has both.
(
    FORWARD_DRAM_MS,
    BACKWARD_DRAM_MS,
    FORWARD_L2_MS,
    BACKWARD_L2_MS,
    FORWARD_LANE_MS,
    BACKWARD_LANE_MS,
    SORT_MS,
    OUTPUT_BYTES_SENT,
    LANE_SHARE,
    LAUNCH_MS,
) = range(10)

LOADS = 10
"""Without host memory, of one workload; those of the host policy are behind them, and those of groups behind these."""

_DRAM, _L2 = slice(FORWARD_DRAM_MS, BACKWARD_DRAM_MS + 1), slice(FORWARD_L2_MS, BACKWARD_L2_MS + 1)
_LANES = slice(FORWARD_LANE_MS, BACKWARD_LANE_MS + 1)
_LANE_LOADS = FORWARD_LANE_MS, BACKWARD_LANE_MS
_LIMITS = np.array(
    [[FORWARD_DRAM_MS, FORWARD_L2_MS, FORWARD_LANE_MS], [BACKWARD_DRAM_MS, BACKWARD_L2_MS, BACKWARD_LANE_MS]]
)
"""The limits of forward and of backward; the last of each is multiplied by the lane share of the device."""


def lane_share(embedding_dim: NDArray[np.int64]) -> FloatArray:
    """(T,) share of a warp that FBGEMM assigns to a row, by embedding dim: 8, 16 or 32 of 32 threads."""
    return np.select([embedding_dim <= 32, embedding_dim <= 64], [0.25, 0.5], 1.0)


def table_counts(tables: Tables, device: DeviceSpec) -> FloatArray:
    """(T, 11) bytes, lookups and vectors of a batch, in the order of the names above; no constant enters."""
    lookups, distinct = tables.lookups_per_batch, tables.distinct_rows
    bags, weight = tables.outputs_per_batch, tables.workload.lookup_weight_bytes
    row, gradient = to_sectors(tables.row_bytes), to_sectors(OUTPUT_BYTES * tables.embedding_dim)
    outputs = OUTPUT_BYTES * tables.embedding_dim * bags
    vectors = np.ceil(tables.embedding_dim / FULL_WARP_DIM)
    in_l2 = np.minimum(1.0, l2_bytes_per_table(tables, device) / outputs)
    counts = np.empty((len(tables), 11))
    counts[:, ROW_VECTORS] = lookups * vectors
    counts[:, BAGS] = bags
    counts[:, FORWARD_DRAM_BYTES] = (
        (INDEX_BYTES + weight) * lookups + OFFSET_BYTES * bags + (lookups - l2_hits(tables, device)) * row + outputs
    )
    counts[:, FORWARD_L2_BYTES] = lookups * row + outputs
    counts[:, LOOKUPS] = lookups
    counts[:, GRADIENT_DRAM_BYTES] = outputs + np.maximum(lookups - bags, 0.0) * gradient * (1.0 - in_l2)
    if np.any(weight):
        counts[:, LOOKUPS] += np.sign(weight) * lookups * (WEIGHT_SORT_BYTES / SORT_BYTES)
        counts[:, GRADIENT_DRAM_BYTES] += weight * lookups
    counts[:, GRADIENT_L2_BYTES] = lookups * gradient
    counts[:, UPDATE_BYTES] = distinct * (2 * row + 2 * state_sectors(tables))
    counts[:, UPDATE_VECTORS] = distinct * vectors
    counts[:, OUTPUTS] = to_parts_of_bytes(outputs)
    counts[:, GROUP_SHARE] = lane_share(tables.embedding_dim)
    return counts


def loads_of(counts: FloatArray, rates: Rates, constants: Constants = FITTED) -> FloatArray:
    """(..., 10) loads from (..., 11) counts; ms, but OUTPUT_BYTES_SENT in bytes."""
    dram, l2, cycles, launch = (np.asarray(rate, np.float64) for rate in rates)
    c, loads = constants, np.empty((*counts.shape[:-1], LAUNCH_MS + 1))
    updates = counts[..., UPDATE_BYTES] / c.random_update_efficiency
    loads[..., FORWARD_DRAM_MS] = counts[..., FORWARD_DRAM_BYTES] / dram
    loads[..., FORWARD_L2_MS] = counts[..., FORWARD_L2_BYTES] / l2
    forward = c.cycles_per_row * counts[..., ROW_VECTORS] + c.cycles_per_bag * counts[..., BAGS]
    loads[..., FORWARD_LANE_MS] = forward / cycles
    loads[..., SORT_MS] = counts[..., LOOKUPS] * SORT_BYTES / (c.sort_efficiency * dram)
    loads[..., BACKWARD_DRAM_MS] = (counts[..., GRADIENT_DRAM_BYTES] + updates) / dram
    loads[..., BACKWARD_L2_MS] = counts[..., GRADIENT_L2_BYTES] / l2
    backward = c.cycles_per_gradient * counts[..., ROW_VECTORS] + c.cycles_per_update * counts[..., UPDATE_VECTORS]
    loads[..., BACKWARD_LANE_MS] = backward / cycles
    loads[..., OUTPUT_BYTES_SENT] = counts[..., OUTPUTS]
    loads[..., LANE_SHARE] = counts[..., GROUP_SHARE]
    loads[..., LAUNCH_MS] = launch
    return loads


class AnalyticalCostModel(AdditiveCostModel):
    """The model described at the top of this file; costs never decrease when a table is added to a device.

    Args:
        constants: others than `FITTED`; the fingerprint then ends with a hash of them.
        host_policy: "static" or "lru", see `host_policies.py`; with "lru" its name is "analytical-lru".
        index_exchange: "hidden" or "exposed". A pipeline hides the exchange of the indices; exposed, it is part of the
            forward exchange of every device, so a cost is that of the hidden one and `index_exchange_ms`. Then the
            name ends in "-exposed-indices", and there is one load more, in front of the others, the `index_bytes`.

    Raises:
        InvalidOptionError: a constant is no number or negative, or an efficiency is 0.
        UnknownNameError: there is no such policy or index exchange.
    """

    name = "analytical"
    version = 2
    num_loads = LOADS
    num_sum_loads = 8
    group_loads = GROUP_LOADS
    supports = frozenset({TRAINING, SEQUENCES, WEIGHTED, MIXED, HOST_MEMORY, COMPRESSION})
    shared_loads = slice(OUTPUT_BYTES_SENT, OUTPUT_BYTES_SENT + 1)

    constants: Constants = FITTED
    index_exchange: str = HIDDEN
    first_load: int = 0  # of those named above
    own_loads: list[int] = list(range(LOADS))  # noqa: RUF012  where they are, behind `first_load`

    def __init__(
        self, constants: Constants | None = None, host_policy: str = "static", index_exchange: str = HIDDEN
    ) -> None:
        if constants is not None:
            self.constants = checked_constants(constants)
        self.host_policy = host_policy_named(host_policy)
        if host_policy != "static":
            self.name = f"{self.name}-{host_policy}"
        self.index_exchange = checked_index_exchange(index_exchange)
        if self.index_exchange == EXPOSED:
            self.name = f"{self.name}-exposed-indices"
            self.first_load = 1
            self.num_loads, self.num_sum_loads = self.num_loads + 1, self.num_sum_loads + 1
            self.shared_loads = slice(0, self.shared_loads.stop + 1)

    @property
    @override
    def fingerprint(self) -> str:
        fitted = self.constants == FITTED
        own = "" if fitted else f"-{hashlib.sha256(repr(tuple(self.constants)).encode()).hexdigest()[:12]}"
        return super().fingerprint + own

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(T, K) float64, in the order of the names above; ms, but OUTPUT_BYTES_SENT and those of indices in bytes."""
        if sharding_type != TABLE_WISE:
            raise InvalidOptionError(
                f"{type(self).__name__} has loads of whole tables, not of {sharding_type} shards. For plans subclass "
                "AnalyticalShardingModel."
            )
        own = self.hbm_loads(shards, topology)
        parts = [own]
        if self.first_load:
            parts.insert(0, index_bytes(shards, TABLE_WISE)[:, None])
        if topology.host is not None:
            parts.append(self.host_loads(shards, topology))
        if len(shards.workloads) > 1:
            begin = self.begin_of_groups(topology.host is not None)
            parts.append(np.zeros((len(shards), begin - sum(part.shape[1] for part in parts))))
            parts.append(group_loads(own[:, :SUMS], own[:, LANE_SHARE], shards.workload))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def hbm_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        """(T, 10) float64, the loads if all rows are in HBM; of a calibrated device from its measured rates."""
        if topology.device.rates is not None:
            loads = np.zeros((len(tables), LOADS))
            loads[:, _DRAM] = work_ms(tables, topology.device.rates)
            outputs = OUTPUT_BYTES * tables.embedding_dim * tables.outputs_per_batch
            loads[:, OUTPUT_BYTES_SENT] = to_parts_of_bytes(outputs)
            loads[:, LAUNCH_MS] = Rates.of(topology.device).launch_ms
            return loads
        return loads_of(table_counts(tables, topology.device), Rates.of(topology.device), self.constants)

    def host_loads(self, shards: Tables, topology: Topology, dense: bool = False) -> FloatArray:
        """(T, H) float64, those of the host policy.

        Raises:
            InvalidOptionError: rows have a scale.
        """
        if np.any(shards.workload.scale_bytes):
            raise InvalidOptionError(
                f"The cost model {self.name!r} does not support rows in host memory with weights in int8. Give devices "
                "without host memory, or another weight dtype."
            )
        return self.host_policy.loads(shards, topology, dense)

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) ms from (..., K) device loads, with all-to-alls of 0."""
        first, end = self.first_load, self.first_load + LOADS
        return self.phases_of(loads[..., first:end], loads[..., end:])

    def phases_of(self, own: FloatArray, behind: FloatArray) -> FloatArray:
        """(..., 4) ms from the (..., 10) `hbm_loads` of devices and the loads behind them, with all-to-alls of 0."""
        host, groups = self.host_and_groups(behind)
        phases = self.hbm_phases(own)
        if groups.shape[-1]:
            self._add_up_groups(phases, own, groups)
        return self.host_policy.with_host(phases, host)

    def host_and_groups(self, behind: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The loads of the host policy and those of groups, of the loads (..., B) behind the others; each may be none.

        Whether there are any of the policy follows from B, as their number is not that of its maxima and a multiple of
        `GROUP_LOADS`.
        """
        count, policy = behind.shape[-1], self.host_policy
        if count in (0, policy.num_loads):
            return behind, behind[..., :0]
        if (count - policy.num_mixed_loads) % GROUP_LOADS == 0:
            return behind[..., : policy.num_mixed_loads], behind[..., policy.num_mixed_loads :]
        return behind[..., :0], behind[..., policy.num_maxima :]

    def _add_up_groups(self, phases: FloatArray, own: FloatArray, groups: FloatArray) -> None:
        """Write the sums over the operators of the groups into the (..., 4) `phases` of one operator for all tables.

        Devices without a table in any group stay as they are: tables of one workload beside tasks of several.
        """
        all_groups, one, of_phase = turned_copy(groups), turned(own), turned(phases)
        found, any_there = zeros((2, *one.shape[1:]), own), zeros(one.shape[1:], own) > 0
        for begin in range(0, len(all_groups), GROUP_LOADS):
            of_group = all_groups[begin : begin + GROUP_LOADS]
            sums, counts = of_group[:SUMS], of_group[SUMS:]
            there = counts.sum(axis=0) > 0
            operator = zeros((LOADS, *one.shape[1:]), own)
            operator[:SUMS] = sums
            operator[LANE_SHARE] = share_of_group(counts, one[LANE_SHARE])
            operator[LAUNCH_MS] = one[LAUNCH_MS]
            found += where(there, self.compute_ms(operator), 0.0)  # without tables rounding errors may be left
            any_there |= there
        for phase, ms in zip(COMPUTE, found, strict=True):
            of_phase[phase] = where(any_there, ms, of_phase[phase])

    def least(self, loads: FloatArray) -> FloatArray:
        """Loads of which sums cost no more than those of the (..., K) `loads`; these themselves for one workload.

        Of several, they are those of one operator in which each table has the lanes of its own width. Phases without
        launches are maxima of linear functions, so the sum over groups is no less than the phase of their sums.
        """
        host, groups = self.host_and_groups(loads[..., self.num_loads :])
        if not groups.shape[-1]:
            return loads
        found = loads[..., : self.num_loads + host.shape[-1]].copy()
        *lanes, share = (self.first_load + self.own_loads[name] for name in (*_LANE_LOADS, LANE_SHARE))
        found[..., lanes] *= found[..., [share]]
        found[..., share] = 1.0
        return found

    def hbm_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) ms from the (..., 10) `hbm_loads` of devices, if all their rows are in HBM."""
        phases: FloatArray = zeros((*loads.shape[:-1], len(PHASES)), loads)
        of_phase = turned(phases)
        of_phase[FORWARD], of_phase[BACKWARD] = self.compute_ms(turned_copy(loads))  # contiguous: strides take longer
        return phases

    def compute_ms(self, columns: FloatArray) -> FloatArray:
        """(2, ...) ms of forward and backward from the (10, ...) columns of `hbm_loads`, which it overwrites."""
        limits, l2, lanes = columns[_DRAM], columns[_L2], columns[_LANES]
        lanes *= columns[LANE_SHARE]
        slowest = larger(larger(limits, l2), lanes)
        limits += l2
        limits += lanes
        limits -= slowest
        limits *= self.constants.overlap_loss
        limits += slowest
        limits[1] += columns[SORT_MS]
        limits[0] += self.constants.forward_launches * columns[LAUNCH_MS]
        limits[1] += self.constants.backward_launches * columns[LAUNCH_MS]
        return limits

    @cached_property
    def launches(self) -> FloatArray:
        """(2,) float64, launches of the forward and of the backward operator."""
        return np.array([self.constants.forward_launches, self.constants.backward_launches])

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write the two all-to-alls, which take the same time, and before the first an exposed exchange of indices."""
        took = all_to_all_ms(shared[..., -1], cluster)
        phases[..., FORWARD_COMM] = took
        phases[..., BACKWARD_COMM] = took
        if self.first_load:
            add_index_exchange(phases, shared[..., 0], cluster)

    @property
    def plain_costs(self) -> PlainCosts:
        """The two methods above and `iteration_cost` on floats, bit for bit (tests/envs/core/test_state.py)."""
        return self._plain_costs

    def _plain_costs(
        self, device: int, loads: list[float], phases: list[list[float]], shared: list[list[float]], cluster: Cluster
    ) -> float:
        constants = self.constants
        if self.first_load:
            loads = loads[self.first_load :]
        share, launch, loss = loads[LANE_SHARE], loads[LAUNCH_MS], constants.overlap_loss
        forward, backward = phases[FORWARD], phases[BACKWARD]
        dram, l2, lanes = loads[FORWARD_DRAM_MS], loads[FORWARD_L2_MS], loads[FORWARD_LANE_MS] * share
        slowest = max(dram, l2, lanes)
        forward[device] = slowest + loss * (dram + l2 + lanes - slowest) + constants.forward_launches * launch
        dram, l2, lanes = loads[BACKWARD_DRAM_MS], loads[BACKWARD_L2_MS], loads[BACKWARD_LANE_MS] * share
        slowest = max(dram, l2, lanes)
        update = slowest + loss * (dram + l2 + lanes - slowest)
        backward[device] = update + loads[SORT_MS] + constants.backward_launches * launch
        if len(loads) not in (LOADS, LOADS + self.host_policy.num_loads):
            own, behind = np.split(np.array(loads), [LOADS])
            forward[device], _, _, backward[device] = self.phases_of(own, behind).tolist()
        elif len(loads) > LOADS:
            added = self.host_policy.plain_added_ms(loads[LOADS:])
            forward[device] += added[0]
            backward[device] += added[1]
        exchange = phases[FORWARD_COMM] = phases[BACKWARD_COMM] = plain_all_to_all_ms(shared[-1], cluster)
        exchanged = max(exchange)
        if self.first_load:
            took, real = plain_index_exchange_ms(shared[0], cluster), cluster.device_mask[0].tolist()
            phases[FORWARD_COMM] = [ms + took if there else ms for ms, there in zip(exchange, real, strict=True)]
            return max(forward) + (exchanged + took) + exchanged + max(backward)
        return max(forward) + exchanged + exchanged + max(backward)

    def costs_with_one(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """O(M + D), with the bits of the inherited method (tests/cost_models/base/test_model.py)."""
        phases, sent = self.device_phases(new_loads), self.first_load + OUTPUT_BYTES_SENT
        took, slowest = all_to_all_ms_with_one(device_loads[:, sent], devices, new_loads[:, sent], cluster)
        phases[:, COMMUNICATION] = took[:, None]
        forward, backward = np.maximum(largest_of_others(own_phases[:, COMPUTE].T)[:, devices], phases[:, COMPUTE].T)
        if self.first_load:
            indices = index_exchange_ms_with_one(device_loads[:, 0], devices, new_loads[:, 0], cluster)
            phases[:, FORWARD_COMM] += indices
            return phases, forward + (slowest + indices) + slowest + backward
        return phases, forward + slowest + slowest + backward

    def linear_costs(self, tables: Tables, topology: Topology) -> LinearCosts | None:
        """`linear_costs_of` with `links_of`; equal to `device_phases` and `fill_communication` but for rounding, and no
        more than these for tables of several workloads (`least`).

        None where phases are no maxima of linear functions: with an overlap loss above 1, and with cached rows. None,
        too, with exposed indices, of which `LinearCosts` has no link.
        """
        cached = topology.host is not None and not self.host_policy.is_linear
        if cached or self.first_load or not 0.0 <= self.constants.overlap_loss <= 1.0:
            return None
        cluster = topology.cluster()
        loads = self.least(self.loads(tables, topology))
        return self.linear_costs_of(loads, links_of(cluster), float(cluster.latency_ms))

    def linear_costs_of(self, loads: FloatArray, links: tuple[Link, ...] = (), latency_ms: float = 0.0) -> LinearCosts:
        """The costs of tables, or of shards, with these (T, K) loads; `links` and `latency_ms` as in `LinearCosts`.

        A phase is max + overlap_loss (sum - max) of its limits. Limit i + overlap_loss (sum of the other limits) is
        (1 - overlap_loss) limit i + overlap_loss sum, so with a loss of at most 1 it is largest for the largest limit,
        and the phase is the maximum of these over i. Each is a sum over the tables of the device once its lane share is
        known, which is the largest of its tables. The fixed costs are those of any table, and some device has one.
        """
        columns = loads.T
        shares, levels = np.unique(columns[LANE_SHARE], return_inverse=True)
        limits = columns[_LIMITS]  # (2, 3, T)
        by_level = np.repeat(limits[:, None], len(shares), axis=1)
        by_level[:, :, -1] *= shares[:, None]
        total = by_level.sum(axis=2, keepdims=True)
        ms = by_level + self.constants.overlap_loss * (total - by_level)
        ms[1] += columns[SORT_MS]
        return LinearCosts(
            lane_shares=shares,
            levels=levels.astype(np.int64),
            ms=ms,
            fixed_ms=self.launches * columns[LAUNCH_MS, 0],
            outputs=columns[OUTPUT_BYTES_SENT],
            links=links,
            latency_ms=latency_ms,
            host=self.host_policy.reads_of(loads[:, LOADS:]),
        )

    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """Bounds in ms: all tables on one device; an even split of the sums with the narrowest lanes."""
        size, cluster = topology.num_devices, topology.cluster()
        least = self.least(loads)
        even = least.sum(axis=0) / size
        even[self.maxima] = least[:, self.maxima].min(axis=0)
        if not self.host_policy.is_linear:
            even[self.num_loads :] = 0.0  # with other rows the mean device could read for longer than the slowest
        costliest_table = self.single_tables(loads, topology)[0].max(axis=0)
        compute = np.maximum(self.device_phases(even), costliest_table)[COMPUTE].sum()
        outputs = loads[:, self.first_load + OUTPUT_BYTES_SENT].sum()
        lower = float(compute + self.exchanges * least_all_to_all_ms(outputs, cluster))
        # Devices of domains of one size do not differ, so two are enough: the first one and the last one.
        which = np.unique([0, size - 1])
        all_on_one = np.zeros((len(which), size, loads.shape[1]))
        all_on_one[np.arange(len(which)), which] = self.reduce(loads, np.zeros(len(loads), np.int64), 1)[0]
        indices = 0.0
        if self.first_load:
            lower += least_index_exchange_ms(loads[:, 0].sum(), cluster)
            indices = float(index_exchange_ms(all_on_one[..., 0], cluster).max())
            all_on_one[..., 0] = 0.0  # another of the two may be the slowest for outputs
        return lower, float(self.device_costs(all_on_one, cluster).max(axis=(0, 1)).sum()) + indices
