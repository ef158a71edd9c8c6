"""A roofline model of FBGEMM's table-batched embedding and its all-to-alls, in additive-load form.

Forward, per device: the slowest of three limits, plus a fixed cost of the fused op.
- DRAM: indices (8 B) and offsets (8 B) read, rows read on cache misses, pooled FP32 outputs written
  (pytorch/FBGEMM, bench/tbe counts rows and outputs; Lin et al., HiPC 2022, add indices, offsets and the cache).
- L2: every row read passes through it.
- Lanes: a lookup occupies a group of 8, 16 or 32 threads, chosen for the widest table of the whole fused op
  (FBGEMM forward template), so lookups of narrow tables in its op leave lanes idle.
Backward, per device (FBGEMM exact backward template): a sort of the indices, then the slowest of gradient rows through
the L2, a random read-modify-write of every distinct row with its optimizer state, and lanes, plus a fixed cost.
All-to-all: each device sends its pooled outputs to all others; the slowest of sending and receiving, inside the host
and across hosts, plus a latency. The gradients are sent back in the same time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.all_to_all import all_to_all_ms, plain_all_to_all_ms
from shard_gym.cost_models.base import (
    BACKWARD,
    BACKWARD_COMM,
    COMPUTE,
    FORWARD,
    FORWARD_COMM,
    PHASES,
    AdditiveCostModel,
    FloatArray,
    PlainCosts,
)
from shard_gym.cost_models.l2_cache import SECTOR_BYTES, l2_bytes_per_table, l2_hits, to_sectors
from shard_gym.cost_models.linear import LinearCosts, linear_costs, links_of
from shard_gym.tables import Tables
from shard_gym.topology import Cluster, DeviceSpec, Topology

INDEX_BYTES = 8
OFFSET_BYTES = 8
OUTPUT_BYTES = 4
"""Pooled outputs and their gradients are FP32, FBGEMM's default output_dtype."""

LINEARIZE_BYTES = 8 + 8 + 4
"""Per lookup: an index is read, its position among all rows of the op (8 B) and its bag (4 B) are written."""

RUN_LENGTH_BYTES = 2 * 8
"""Per lookup: the sorted keys are read to find the runs of equal rows, and again to find the long ones."""

SORT_BYTES = 4 * (8 + 2 * (8 + 4))
"""Per lookup: four passes of seven bits (2^21 to 2^28 rows in one op); each reads the 8-byte keys to count digits, then
reads and writes keys and 4-byte bags (NVIDIA/cub, dispatch_radix_sort.cuh)."""

SORT_EFFICIENCY = 0.57
"""Share of the DRAM bandwidth the sort reaches: the same file notes 1.92e9 pairs of 4 + 4 bytes per second on a Titan X
(five passes of 20 bytes, 192 of 337 GB/s) and 7.62e9 4-byte keys on a GV100 (five of 12, 457 of 870 GB/s)."""

FORWARD_KERNELS = 2
BACKWARD_KERNELS = 12
"""Kernels of one fused op: bounds check and lookup; sort, run lengths, long runs, two update kernels and others."""

RANDOM_UPDATE_EFFICIENCY = 0.55
"""Share of the DRAM bandwidth for random reads and writes of rows: 446 to 466 of 817 GB/s on a V100 (ml_perf_model,
backward SGD rows of its notebook)."""

CYCLES_PER_WARP_ROW = 26.0
"""SM cycles of a warp for one row: 16 x 131072 x 10 lookups at D=16 in 0.59 ms (pytorch/torchrec pull request 2365)
is 26 cycles if its unnamed GPU is an H100; the same constant then gives 1.2 ms at D=64 (1.29 measured)."""

FULL_WARP_DIM = 128
"""32 threads of four elements each."""

# The columns of the loads: first sums, then maxima.
(
    FORWARD_DRAM_MS,
    FORWARD_L2_MS,
    LANE_MS,
    SORT_MS,
    BACKWARD_DRAM_MS,
    BACKWARD_L2_MS,
    OUTPUT_BYTES_SENT,
    LANE_SHARE,
    FORWARD_FIXED_MS,
    BACKWARD_FIXED_MS,
) = range(10)


def lane_share(embedding_dim: NDArray[np.int64]) -> FloatArray:
    """(T,) share of a warp that FBGEMM assigns to a lookup, by embedding dim: 8, 16 or 32 of 32 threads."""
    return np.select([embedding_dim <= 32, embedding_dim <= 64], [0.25, 0.5], 1.0)


def fixed_ms(device: DeviceSpec, kernels: int) -> float:
    """Ms of a fused op without any bytes: its kernel launches and the ramp of the bandwidth.

    The ramp: n bytes at the rate peak * n / (n + n_half) take (n + n_half) / peak. With n_half = 11 MB this matches
    the fitted A100 curve of ml_perf_model (364/865/1200/1329 GB/s at 2^22/24/26/28 bytes) within 6%.
    """
    return kernels * device.kernel_launch_us * 1e-3 + device.ramp_bytes / (device.dram_gb_per_s * 1e6)


class AnalyticalCostModel(AdditiveCostModel):
    """The roofline model described at the top of this file; costs never decrease when a table is added to a device."""

    name = "analytical"
    version = 1
    num_loads = 10
    num_sum_loads = 7
    shared_loads = slice(OUTPUT_BYTES_SENT, OUTPUT_BYTES_SENT + 1)

    def table_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        """(T, 10) float64, in the order of the constants above; ms, but OUTPUT_BYTES_SENT in bytes."""
        device = topology.device
        dram, l2 = device.dram_gb_per_s * 1e6, device.l2_gb_per_s * 1e6  # bytes per ms
        lookups = tables.lookups_per_batch
        row = to_sectors(tables.row_bytes)
        output = OUTPUT_BYTES * tables.embedding_dim * tables.num_features * tables.workload.batch_size
        warp_rows_per_ms = device.num_sms * device.clock_ghz * 1e6 / CYCLES_PER_WARP_ROW
        loads = np.empty((len(tables), self.num_loads))
        loads[:, FORWARD_DRAM_MS] = self._forward_dram_bytes(tables, device, row, output) / dram
        loads[:, FORWARD_L2_MS] = lookups * row / l2
        loads[:, LANE_MS] = lookups * np.ceil(tables.embedding_dim / FULL_WARP_DIM) / warp_rows_per_ms
        loads[:, SORT_MS] = lookups * (LINEARIZE_BYTES + SORT_BYTES / SORT_EFFICIENCY + RUN_LENGTH_BYTES) / dram
        loads[:, BACKWARD_DRAM_MS] = self._backward_dram_bytes(tables, device, row, output) / dram
        loads[:, BACKWARD_L2_MS] = lookups * to_sectors(OUTPUT_BYTES * tables.embedding_dim) / l2
        loads[:, OUTPUT_BYTES_SENT] = output
        loads[:, LANE_SHARE] = lane_share(tables.embedding_dim)
        loads[:, FORWARD_FIXED_MS] = fixed_ms(device, FORWARD_KERNELS)
        loads[:, BACKWARD_FIXED_MS] = fixed_ms(device, BACKWARD_KERNELS)
        return loads

    @staticmethod
    def _forward_dram_bytes(
        tables: Tables, device: DeviceSpec, row: NDArray[np.int64], output: NDArray[np.int64]
    ) -> FloatArray:
        lookups = tables.lookups_per_batch
        offsets = OFFSET_BYTES * tables.workload.batch_size * tables.num_features
        return INDEX_BYTES * lookups + offsets + (lookups - l2_hits(tables, device)) * row + output

    @staticmethod
    def _backward_dram_bytes(
        tables: Tables, device: DeviceSpec, row: NDArray[np.int64], output: NDArray[np.int64]
    ) -> FloatArray:
        """Gradients and row updates; the updates are divided by the efficiency of random access."""
        lookups = tables.lookups_per_batch
        bags = tables.workload.batch_size * tables.num_features
        gradient = to_sectors(OUTPUT_BYTES * tables.embedding_dim)
        in_l2 = np.minimum(1.0, l2_bytes_per_table(tables, device) / output)
        gradients = output + np.maximum(lookups - bags, 0.0) * gradient * (1.0 - in_l2)
        state = 2 * SECTOR_BYTES if tables.workload.optimizer_bytes_per_row else 0
        updates = tables.distinct_rows * (2 * row + state) / RANDOM_UPDATE_EFFICIENCY
        return gradients + updates

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) ms from (..., 10) device loads, with all-to-alls of 0."""
        lanes = loads[..., LANE_MS] * loads[..., LANE_SHARE]
        forward = np.maximum(loads[..., FORWARD_DRAM_MS], loads[..., FORWARD_L2_MS])
        backward = np.maximum(loads[..., BACKWARD_DRAM_MS], loads[..., BACKWARD_L2_MS])
        phases = np.zeros((*loads.shape[:-1], len(PHASES)))
        phases[..., FORWARD] = np.maximum(forward, lanes) + loads[..., FORWARD_FIXED_MS]
        phases[..., BACKWARD] = np.maximum(backward, lanes) + loads[..., SORT_MS] + loads[..., BACKWARD_FIXED_MS]
        return phases

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write the two all-to-alls, which take the same time."""
        phases[..., FORWARD_COMM] = all_to_all_ms(shared[..., 0], cluster)
        phases[..., BACKWARD_COMM] = phases[..., FORWARD_COMM]

    @property
    def plain_costs(self) -> PlainCosts:
        """The two methods above and `iteration_cost` on floats, bit for bit (tests/envs/core/test_state.py)."""
        return self._plain_costs

    @staticmethod
    def _plain_costs(
        device: int, loads: list[float], phases: list[list[float]], shared: list[list[float]], cluster: Cluster
    ) -> float:
        lanes = loads[LANE_MS] * loads[LANE_SHARE]
        forward, backward = phases[FORWARD], phases[BACKWARD]
        forward[device] = max(loads[FORWARD_DRAM_MS], loads[FORWARD_L2_MS], lanes) + loads[FORWARD_FIXED_MS]
        slowest = max(loads[BACKWARD_DRAM_MS], loads[BACKWARD_L2_MS], lanes)
        backward[device] = slowest + loads[SORT_MS] + loads[BACKWARD_FIXED_MS]
        exchange = phases[FORWARD_COMM] = phases[BACKWARD_COMM] = plain_all_to_all_ms(shared[0], cluster)
        exchanged = max(exchange)
        return max(forward) + exchanged + exchanged + max(backward)

    def linear_costs(self, tables: Tables, topology: Topology) -> LinearCosts:
        """See `AdditiveCostModel`: `device_phases` and `fill_communication` restated."""
        loads, cluster = self.table_loads(tables, topology).T, topology.cluster()
        return linear_costs(
            loads[LANE_SHARE],
            loads[[FORWARD_DRAM_MS, FORWARD_L2_MS, LANE_MS]],
            loads[[BACKWARD_DRAM_MS, BACKWARD_L2_MS, LANE_MS]],
            sort=loads[SORT_MS],
            fixed_ms=loads[[FORWARD_FIXED_MS, BACKWARD_FIXED_MS]].max(axis=1),
            outputs=loads[OUTPUT_BYTES_SENT],
            links=links_of(cluster),
            latency_ms=float(cluster.latency_ms),
        )

    def cost_bounds(self, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        """Bounds in ms: all tables on one device; an even split of the sums with the narrowest lanes."""
        return self._lower_bound(loads, topology), self._upper_bound(loads, topology)

    def _upper_bound(self, loads: FloatArray, topology: Topology) -> float:
        size = topology.num_devices
        all_on_one = np.zeros((size, size, self.num_loads))
        all_on_one[np.arange(size), np.arange(size)] = self.reduce(loads, np.zeros(len(loads), np.int64), 1)[0]
        return float(self.device_costs(all_on_one, topology.cluster()).max(axis=(0, 1)).sum())

    def _lower_bound(self, loads: FloatArray, topology: Topology) -> float:
        size, split = topology.num_devices, self.num_sum_loads
        even = np.concatenate([loads[:, :split].sum(axis=0) / size, loads[:, split:].min(axis=0)])
        even_split = self.device_costs(np.broadcast_to(even, (size, self.num_loads)), topology.cluster())[0]
        costliest_table = self.single_table_phases(loads, topology).max(axis=0)
        compute = np.maximum(even_split, costliest_table)[COMPUTE].sum()
        return float(compute + 2 * self._least_all_to_all(loads[:, OUTPUT_BYTES_SENT].sum(), topology))

    @staticmethod
    def _least_all_to_all(total_bytes: float, topology: Topology) -> float:
        """Lower bound in ms for any split of the bytes: with x_d on device d, max x_d a_d >= sum x_d / sum 1/a_d."""
        cluster = topology.cluster()
        if topology.num_devices == 1:
            return 0.0
        others = cluster.num_devices - 1 - cluster.num_peers
        ms_per_byte = np.maximum(cluster.num_peers / cluster.intra_bytes_per_ms, others / cluster.inter_bytes_per_ms)
        return float(total_bytes / cluster.num_devices / (1.0 / ms_per_byte).sum() + cluster.latency_ms)
