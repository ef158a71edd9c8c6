"""The analytical cost model of sharded tables.

A shard costs its device what a table with its rows, columns and lookups costs (`shard_tables`). A plan
of whole tables costs exactly what the model `analytical` says of the placement. What the sharding types add:

| type | exchange | source |
|---|---|---|
| table_wise, column_wise | all-to-all of the pooled outputs of the shards | all_to_all.py |
| row_wise | reduce-scatter of partial sums, as wide as the table, of all samples | collectives.py |
| row_wise, of a sequence table | all-to-all of the rows looked up in each block | all_to_all.py |
| table_row_wise | reduce-scatter inside the host, then an all-to-all across hosts | collectives.py |
| data_parallel | all-reduce of dense FP32 gradients, 4 bytes for each cell of the table | collectives.py |

- The collectives run one after another, each with its own latency, and back in the same time; the all-reduce is part of
  the backward exchange. Partial sums come back as an all-gather, which takes as long as the reduce-scatter.
- A table that is data-parallel on several devices has a dense gradient, which is zeroed, divided and applied to all
  rows: `DENSE_UPDATE_PASSES` times its bytes at DRAM speed (TorchRec, planner/constants.py,
  DP_ELEMENTWISE_KERNELS_PERF_FACTOR, "empirical studies"). It is added to the time of the backward. An optimizer with
  numbers for each weight, such as Adam, then reads and writes those of all rows, not only of the rows that the batch
  reads (assumed, at DRAM speed; TorchRec's factor knows no optimizer).
- With a communication dtype other than FP32, pooled outputs and partial sums have fewer bytes (`COMMUNICATION_BYTES`).
  A codec reads the four bytes of every number that a device sends and writes those of the dtype, and the reverse of
  what it receives, at DRAM speed (assumed; MX4 is slower, `CODEC_PASSES`). FP16 and BF16 cost the same here. Numbers
  that a collective adds up are not narrower than two bytes: TorchRec sends those of a reduce-scatter in FP16 or BF16
  where FP8 or MX4 is asked for, and so does the model for INT8, for which TorchRec has no such rule. Gradients of
  replicas stay FP32, because the codecs do not cover them (pytorch/torchrec, distributed/fbgemm_qcomm_codec.py).
- On one device nothing is exchanged, coded or reduced, so all types of one shard cost the same.

Not in the model: copies before and after collectives; and unless it is told that they are exposed, the indices on their
way to the shards (index_exchange.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import some
from shard_gym.common.errors import unknown_name
from shard_gym.cost_models.analytical import collectives
from shard_gym.cost_models.analytical.all_to_all import (
    all_to_all_ms,
    all_to_all_ms_with_one,
    least_all_to_all_ms,
    one_of_each,
)
from shard_gym.cost_models.analytical.constants import Constants
from shard_gym.cost_models.analytical.index_exchange import (
    HIDDEN,
    add_index_exchange,
    index_bytes,
    index_exchange_ms_with_one,
    least_index_exchange_ms,
)
from shard_gym.cost_models.analytical.mixed import SUMS, group_loads
from shard_gym.cost_models.analytical.model import (
    LANE_SHARE,
    OUTPUT_BYTES,
    OUTPUT_BYTES_SENT,
    SORT_MS,
    AnalyticalCostModel,
)
from shard_gym.cost_models.analytical.one_more_in_domain import OneMoreInDomain
from shard_gym.cost_models.analytical.work_rates import MS
from shard_gym.cost_models.base import COMPUTE, AdditiveCostModel
from shard_gym.cost_models.base.model import BACKWARD_COMM, FORWARD_COMM
from shard_gym.cost_models.base.one_more import OneMore, OneMoreOnAll, largest_of_others
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.needs import GROUPS, SPLITS
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    has_dense_gradient,
)
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables

COMMUNICATION_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0 + 8 / 32,
    "mx4": 0.5 + 1 / 32,
}
"""Bytes of one number of pooled outputs and their gradients on the links.

INT8 has a scale and an offset of 4 bytes each for every 32 numbers, MX4 an exponent of one byte for every 32 (FBGEMM
v1.8.0, fbgemm_gpu/quantize_comm.py and quantize_utils.py, defaults). FP8 has none, unless `fp8_quantize_dim` asks for
a scale of each row.
"""

LEAST_SUMMED_BYTES = 2.0  # of one number that a collective adds up

CODEC_PASSES: Mapping[str, float] = {"mx4": 2.05}
"""How long a codec takes, in times of its bytes at DRAM speed; 1, assumed, for those that nobody measured.

MX4 on a GB300, groups of 16: quantised at 2.17 and dequantised at 5.2 TB/s of FP32 (pytorch/FBGEMM, pull requests 6083
and 6148), where DRAM at 0.895 of 8 TB/s allows 6.3 TB/s.
"""

DENSE_UPDATE_PASSES = 9.22  # times that the bytes of a dense gradient pass the DRAM for the update
_OWN_SUMS, _OWN_LOADS = AnalyticalCostModel.num_sum_loads, AnalyticalCostModel.num_loads

# The loads: the sums of the analytical model, sums of bytes, a maximum of our own, the maxima of the analytical model.
PARTIAL_BYTES = _OWN_SUMS
HOST_PARTIAL_BYTES = _OWN_SUMS + 1
GRADIENT_BYTES = _OWN_SUMS + 2
CODEC_MS_PER_BYTE = _OWN_SUMS + 3
_ADDED = 4
OWN_LOADS = [*range(_OWN_SUMS), *range(_OWN_SUMS + _ADDED, _OWN_LOADS + _ADDED)]  # the columns of the analytical model
_OWN_ROWS = np.array(OWN_LOADS)  # the same of arrays whose first axis is that of the loads


class AnalyticalShardingModel(AnalyticalCostModel):
    """The model described at the top of this file.

    Args:
        communication_dtype: a name in `COMMUNICATION_BYTES`, of pooled outputs and their gradients on the links.
        constants, host_policy, index_exchange: see `AnalyticalCostModel`.

    Raises:
        UnknownNameError: there is no such communication dtype.
    """

    supports = AnalyticalCostModel.supports | {SPLITS, GROUPS}
    num_loads = _OWN_LOADS + _ADDED
    num_sum_loads = _OWN_SUMS + 3
    shared_loads = slice(OUTPUT_BYTES_SENT, CODEC_MS_PER_BYTE + 1)
    own_loads = OWN_LOADS
    dense_update_scale: float = 1.0  # of the passes of dense gradients; others are those of variants (assumptions.py)

    def __init__(
        self,
        communication_dtype: str = "fp32",
        constants: Constants | None = None,
        host_policy: str = "static",
        index_exchange: str = HIDDEN,
    ) -> None:
        super().__init__(constants, host_policy, index_exchange)
        if not isinstance(communication_dtype, str) or communication_dtype not in COMMUNICATION_BYTES:
            raise unknown_name("communication dtype", communication_dtype, COMMUNICATION_BYTES)
        self.communication_dtype = communication_dtype
        self.sent_bytes = COMMUNICATION_BYTES[communication_dtype]  #: of one number that no collective adds up
        self.summed_bytes = max(self.sent_bytes, LEAST_SUMMED_BYTES)  #: of one number that a collective adds up

    @property
    def fingerprint(self) -> str:
        """That of the analytical model; a communication dtype other than FP32 is added."""
        return super().fingerprint + ("" if self.communication_dtype == "fp32" else f"-{self.communication_dtype}")

    def with_replicas(self) -> AdditiveCostModel:
        """This model, on devices whose shards have replicas in other groups (`Topology.replicas`).

        Raises:
            InvalidOptionError: it does not support groups.
        """
        from shard_gym.cost_models.analytical.grouped import GroupedShardingModel  # it is made of this class

        return GroupedShardingModel(self)

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(S, K) float64, see `AdditiveCostModel`; ms, but bytes in the columns of bytes."""
        groups = len(shards.workloads)
        all_loads = np.zeros((len(shards), self.num_loads_with(topology.host is not None, groups)))
        loads = all_loads[:, self.first_load :]
        if self.first_load:
            all_loads[:, 0] = index_bytes(shards, sharding_type)
        several = topology.num_devices > 1
        dense = has_dense_gradient(sharding_type, shards, topology.num_devices)
        dense_state = shards.workload.state.per_weight if dense else 0
        # The moments of the dense update are not those of the rows of the batch.
        updated = shards.without_moments() if np.any(dense_state) else shards
        loads[:, OWN_LOADS] = self.hbm_loads(updated, topology)
        if topology.host is not None:
            of_host = self.host_loads(shards, topology, dense)
            all_loads[:, self.num_loads : self.num_loads + of_host.shape[1]] = of_host
        numbers = loads[:, OUTPUT_BYTES_SENT] / OUTPUT_BYTES
        summed = np.where(shards.pooled, numbers, 0.0)  # by a collective, if the shards are blocks of rows
        loads[:, OUTPUT_BYTES_SENT] = 0.0
        dram_bytes_per_ms = topology.device.dram_gb_per_s * 1e6
        if sharding_type == DATA_PARALLEL:
            gradient = OUTPUT_BYTES * (shards.num_embeddings * shards.embedding_dim).astype(np.float64)
            loads[:, GRADIENT_BYTES] = gradient
            if dense:
                passes = DENSE_UPDATE_PASSES + 2 * dense_state  # FP32 like the gradient; one to read, one to write
                took = passes * gradient / dram_bytes_per_ms
                if topology.device.rates is not None and topology.device.rates.dense_update is not None:
                    took = MS * topology.device.rates.dense_update * gradient / OUTPUT_BYTES
                loads[:, SORT_MS] += self.dense_update_scale * took
        elif sharding_type in (ROW_WISE, TABLE_ROW_WISE):
            across = sharding_type == TABLE_ROW_WISE and topology.num_devices > topology.devices_per_host
            loads[:, HOST_PARTIAL_BYTES if across else PARTIAL_BYTES] = summed * self.summed_bytes
            loads[:, OUTPUT_BYTES_SENT] = (numbers - summed) * self.sent_bytes
        else:
            loads[:, OUTPUT_BYTES_SENT] = numbers * self.sent_bytes
        if several and self.sent_bytes != OUTPUT_BYTES:
            loads[:, CODEC_MS_PER_BYTE] = self._coded_bytes(self.sent_bytes) / dram_bytes_per_ms
        if groups > 1:
            of_groups = all_loads[:, self.begin_of_groups(topology.host is not None) :]
            of_groups[:] = group_loads(loads[:, :SUMS], loads[:, OWN_LOADS[LANE_SHARE]], shards.workload)
        return all_loads

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) ms from (..., K) device loads, without the exchange."""
        return self.phases_of(loads[..., self.columns(OWN_LOADS)], loads[..., self.num_loads :])

    def columns(self, names: list[int]) -> list[int]:
        """Where the loads of these names are; behind the bytes of exposed indices, they are one further."""
        return [self.first_load + name for name in names] if self.first_load else names

    def exchanged(self, shared: FloatArray) -> list[FloatArray]:
        """The (...) outputs, partial sums, partial sums on a host, gradients and codec of (..., C) `shared_loads`."""
        return [shared[..., column] for column in range(shared.shape[-1] - 5, shared.shape[-1])]

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write the exchanges of the forward and the backward; the latter has the all-reduce, too."""
        outputs, partial, host_partial, gradient, codec = self.exchanged(shared)
        took = all_to_all_ms(outputs, cluster)
        # An exchange that no topology of a batch has would add zeros, which take time but change no bit.
        if some(partial):
            took = took + collectives.reduce_scatter_ms(partial, cluster)
        if some(host_partial):
            took = took + self._host_reduce_scatter_ms(host_partial, cluster)
        if some(codec):
            passed = outputs + self._coded * (partial + host_partial)
            blocks = partial.sum(axis=-1) / cluster.num_devices
            blocks = blocks + host_partial.sum(axis=-1) / cluster.host_size
            summed = outputs.sum(axis=-1) + self._coded * blocks
            took = took + collectives.codec_ms(passed, summed, codec, cluster)
        phases[..., FORWARD_COMM] = took
        if some(gradient):
            took = took + collectives.all_reduce_ms(gradient, cluster)
        phases[..., BACKWARD_COMM] = took
        if self.first_load:
            add_index_exchange(phases, shared[..., 0], cluster)

    def _host_reduce_scatter_ms(self, partial_bytes: FloatArray, cluster: Cluster) -> FloatArray:
        """(..., D) ms; what was added up inside the hosts passes between them as pooled outputs do."""
        return collectives.host_reduce_scatter_ms(partial_bytes, cluster, self.sent_bytes / self.summed_bytes)

    @property
    def _coded(self) -> float:
        """How long the codec takes for a byte of partial sums, in times of a byte of outputs."""
        return self._coded_bytes(self.summed_bytes) / self._coded_bytes(self.sent_bytes)

    def _coded_bytes(self, of_number: float) -> float:
        """How many bytes could pass the DRAM while a codec makes one byte, of numbers of so many."""
        passes = CODEC_PASSES.get(self.communication_dtype, 1.0) if of_number == self.sent_bytes else 1.0
        return passes * (OUTPUT_BYTES + of_number) / of_number

    def costs_with_one(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """O(M + D) where all-to-alls alone change and take no codec.

        The other exchanges must also take all devices equally long; then the slowest device is that of the all-to-all.
        """
        shared = self.exchanged(device_loads[:, self.shared_loads])
        outputs, partial, host_partial, gradient, codec = shared
        exchanges = (
            (collectives.reduce_scatter_ms, partial),
            (self._host_reduce_scatter_ms, host_partial),
            (collectives.all_reduce_ms, gradient),
        )
        times = [exchange(sent, cluster) if sent.any() else np.zeros(1) for exchange, sent in exchanges]
        new = self.exchanged(new_loads[:, self.shared_loads])
        others_change = any((after != before[devices]).any() for after, before in zip(new[1:], shared[1:], strict=True))
        if others_change or codec.any() or any(took.min() < took.max() for took in times):
            return AdditiveCostModel.costs_with_one(self, cluster, device_loads, own_phases, devices, new_loads)
        reduce, host_reduce, all_reduce = (took[0] for took in times)
        phases = self.device_phases(new_loads)
        took, slowest = (
            each + reduce + host_reduce for each in all_to_all_ms_with_one(outputs, devices, new[0], cluster)
        )
        phases[:, FORWARD_COMM], phases[:, BACKWARD_COMM] = took, took + all_reduce
        forward, backward = np.maximum(largest_of_others(own_phases[:, COMPUTE].T)[:, devices], phases[:, COMPUTE].T)
        there = slowest
        if self.first_load:
            indices = index_exchange_ms_with_one(device_loads[:, 0], devices, new_loads[:, 0], cluster)
            phases[:, FORWARD_COMM] += indices
            there = slowest + indices
        return phases, forward + there + (slowest + all_reduce) + backward

    def one_more(self, cluster: Cluster, device_loads: FloatArray) -> OneMore:
        """Faster on one domain, if all devices wait equally long for what tables do not change."""
        _, partial, host_partial, gradient, codec = self.exchanged(device_loads[..., self.shared_loads])
        sums = (collectives.reduce_scatter_ms, partial), (self._host_reduce_scatter_ms, host_partial)
        scatters = [took(sent, cluster) for took, sent in sums if sent.any()]
        gathers = [collectives.all_reduce_ms(gradient, cluster)] if gradient.any() else []
        uneven = any((took != took[:, :1]).any() for took in scatters + gathers)
        others = self.first_load or device_loads.shape[-1] > self.num_loads or self.communication_dtype != "fp32"
        if uneven or others or codec.any() or cluster.crosses_domains:
            return OneMoreOnAll(self, cluster, device_loads)
        scatters, gathers = ([took[:, :1] for took in each] for each in (scatters, gathers))
        return OneMoreInDomain(
            cluster,
            device_loads,
            self.num_sum_loads,
            OUTPUT_BYTES_SENT,
            lambda loads: self.compute_ms(loads[_OWN_ROWS]),
            scatters,
            gathers,
        )

    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """O(M + D), with the bits of the inherited method, whatever the loads are."""
        alone = partial(AdditiveCostModel.costs_with_one, self)
        return self._first_alone(loads, one_of_each(topology.cluster()), alone)

    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """Bounds in ms, without variants those of the analytical model.

        Columns halved h times have loads f(h), and a table is halved so that the sum of 2^-h over its shards is 1. So a
        load of all its shards together lies between the least and the largest 2^h f(h), and `parts` times the load of a
        variant bounds it. The upper bound gives every device at once the largest of every table; the lower one splits
        the least evenly.
        """
        if variants is None:
            return super().bounds(loads, topology)
        legal, maxima, cluster = variants.legal[..., None], self.maxima, topology.cluster()
        halves = np.array([kind == COLUMN_WISE for kind in variants.sharding_types])
        on_one = np.where(halves, variants.parts, 1)[..., None] * loads  # all halves may be on one device
        on_one[..., maxima] = loads[..., maxima]
        largest = np.where(legal, on_one, 0.0).max(axis=1)
        device = self.reduce(largest, np.zeros(len(largest), np.int64), 1)
        high = float(self.costs(np.repeat(device, topology.num_devices, axis=0), cluster)[1])

        one = self.least(loads)
        total = one * variants.parts[..., None]
        least = np.where(legal, total, np.inf).min(axis=1)
        even = least.sum(axis=0) / topology.num_devices
        even[maxima] = np.where(legal, one[..., maxima], np.inf).min(axis=(0, 1))
        if not self.host_policy.is_linear:
            even[self.num_loads :] = 0.0  # as in the bounds of placements
        phases = np.where(legal, self.device_phases(loads), np.inf).min(axis=1).max(axis=0)
        compute = np.maximum(self.device_phases(even), phases)[COMPUTE].sum()
        # Whatever its type, a table sends at least its outputs once, unless it is data-parallel; links take no longer
        # for two exchanges together than for one after the other.
        may_be_replicated = DATA_PARALLEL in variants.sharding_types
        sent = self.first_load + OUTPUT_BYTES_SENT
        outputs = 0.0 if may_be_replicated else float(loads[:, 0, sent].sum())
        exchange = self.exchanges * least_all_to_all_ms(outputs, cluster)
        if self.first_load:
            exchange += least_index_exchange_ms(float(least[:, 0].sum()), cluster)
        return float(compute + exchange), high
