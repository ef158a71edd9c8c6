"""The cost of sharded tables on one of several groups of devices: that of the group, and of averaging its replicas.

Every `sync_every` iterations the replicas of each shard, weights and optimizer state, are averaged by an all-reduce,
for which all devices wait (TorchRec, `DMPCollection.sync`). A device with m bytes of shards takes

    max(m 2 (h - 1) / h / b_in, m 2 (1 / h - 1 / G) / b_out)

with G replicas, h of them in a domain, and bandwidths b_in inside and b_out across domains (`all_reduce_bytes`). The
fullest device decides. An iteration has the `sync_every`-th part of it, which is added to the backward exchange.

Assumed: messages are large, as gigabytes of weights are, so links have no knees, and the latency of a collective is
left out; the mean takes no time; nothing hides the averaging, as TorchRec's `sync` blocks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.cost_models.analytical.collectives import all_reduce_bytes
from shard_gym.cost_models.base.model import BACKWARD_COMM, FloatArray
from shard_gym.cost_models.base.one_more import largest_of_others
from shard_gym.cost_models.base.sharding import ShardingCostModel
from shard_gym.hardware.topology import Cluster, Topology
from shard_gym.plans.variants import Variants
from shard_gym.tables.tables import Tables


class GroupedShardingModel(ShardingCostModel):
    """The model described at the top of this file: one more load than `model`, the ms of averaging the shards.

    Args:
        model: of the devices of a group. Without replicas, its costs are these, but for rounding.
    """

    knows_replicas = knows_compression = knows_sequences = True

    def __init__(self, model: ShardingCostModel) -> None:
        self.model = model
        self.name, self.version = model.name, model.version
        self.num_loads, self.num_sum_loads = model.num_loads + 1, model.num_sum_loads
        self._shared = model.shared_loads
        self.shared_loads = slice(model.shared_loads.start, None)

    @property
    @override
    def maxima(self) -> slice:
        return slice(self.num_sum_loads, self.model.num_loads)

    @property
    @override
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @override
    def with_replicas(self) -> ShardingCostModel:
        return self

    @override
    def table_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        return self.shard_loads(tables, "table_wise", topology)

    @override
    def shard_loads(self, shards: Tables, sharding_type: str, topology: Topology) -> FloatArray:
        loads = self.model.shard_loads(shards, sharding_type, _without_replicas(topology))
        sync = shards.memory_bytes.astype(np.float64) * sync_ms_per_byte(topology)
        return np.concatenate([loads, sync[:, None]], axis=1)

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        return self.model.device_phases(loads[..., :-1])

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write the exchanges; the backward one of every device has the averaging of the fullest."""
        own = shared[..., : self._shared.stop - self._shared.start]
        self.model.fill_communication(phases, own, cluster)
        longest = shared[..., -1].max(axis=-1, keepdims=True)
        phases[..., BACKWARD_COMM] += np.where(cluster.device_mask, longest, 0.0)

    @override
    def costs_with_one(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        phases, costs = self.model.costs_with_one(cluster, device_loads[:, :-1], own_phases, devices, new_loads[:, :-1])
        longest = np.maximum(largest_of_others(device_loads[:, -1])[devices], new_loads[:, -1])
        phases[:, BACKWARD_COMM] += longest
        return phases, costs + longest

    @override
    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        phases, costs = self.model.single_tables(loads[:, :-1], _without_replicas(topology))
        phases[:, BACKWARD_COMM] += loads[:, -1]
        return phases, costs + loads[:, -1]

    @override
    def cost_bounds(self, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        low, high = self.model.cost_bounds(loads[:, :-1], _without_replicas(topology))
        total = float(loads[:, -1].sum())
        return low + total / topology.num_devices, high + total

    @override
    def variant_bounds(self, variants: Variants, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        low, high = self.model.variant_bounds(variants, loads[..., :-1], _without_replicas(topology))
        total = np.where(variants.legal, loads[..., -1] * variants.parts, np.nan)  # of all parts of a variant
        least, most = np.nanmin(total, axis=1).sum(), np.nanmax(total, axis=1).sum()
        return low + float(least) / topology.num_devices, high + float(most)


def model_of(topology: Topology, model: ShardingCostModel) -> ShardingCostModel:
    """The cost model of the devices of a group; `model` itself where their shards have no replicas."""
    return model if topology.replicas is None else model.with_replicas()


def sync_ms_per_byte(topology: Topology) -> float:
    """Ms that averaging adds to an iteration for each byte of the fullest device; 0 without replicas."""
    if topology.replicas is None:
        return 0.0
    of_shard = topology.replicas
    cluster = Topology(topology.device, topology.links, of_shard.count, of_shard.in_host).cluster()
    near, far = all_reduce_bytes(np.ones(of_shard.count), cluster)
    slowest = max(near[0] / cluster.intra_bytes_per_ms, far[0] / cluster.inter_bytes_per_ms)
    return float(slowest / of_shard.sync_every)


def _without_replicas(topology: Topology) -> Topology:
    return topology if topology.replicas is None else replace(topology, replicas=None)
