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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import largest, where
from shard_gym.cost_models.analytical.collectives import all_reduce_bytes
from shard_gym.cost_models.base import AdditiveCostModel, CostModel
from shard_gym.cost_models.base.model import BACKWARD_COMM
from shard_gym.cost_models.base.one_more import largest_of_others
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.needs import (
    COMPRESSION,
    GROUPS,
    MIXED,
    REPLICAS,
    SEQUENCES,
    SPLITS,
    TRAINING,
    WEIGHTED,
    require_supported,
)
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables


class GroupedShardingModel(AdditiveCostModel):
    """The model described at the top of this file: one more load than `model`, the ms of averaging the shards.

    Args:
        model: of the devices of a group. Without replicas, its costs are these, but for rounding.

    Raises:
        InvalidOptionError: the model does not support groups, as those of serving, whose copies are never averaged.
    """

    supports = frozenset({TRAINING, SEQUENCES, WEIGHTED, MIXED, COMPRESSION, REPLICAS, SPLITS, GROUPS})

    def __init__(self, model: CostModel) -> None:
        require_supported(f"The cost model {model.name!r}", {GROUPS}, model.supports, costs=True)
        assert isinstance(model, AdditiveCostModel)
        self.model = model
        self.name, self.version = model.name, model.version
        self.num_loads, self.num_sum_loads = model.num_loads + 1, model.num_sum_loads
        self.group_loads, self._shared = model.group_loads, model.shared_loads
        self.shared_loads = slice(model.shared_loads.start, None)

    @property
    @override
    def maxima(self) -> slice:
        return slice(self.num_sum_loads, self.model.num_loads)

    @override
    def num_loads_with(self, host_memory: bool, num_groups: int = 1) -> int:
        return self.model.num_loads_with(host_memory, num_groups) + 1

    @property
    @override
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """Those of the model, and the ms of averaging."""
        loads = self.model.loads(shards, _without_replicas(topology), sharding_type)
        sync = shards.memory_bytes.astype(np.float64) * sync_ms_per_byte(topology)
        return np.concatenate([loads, sync[:, None]], axis=1)

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        return self.model.device_phases(loads[..., :-1])

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write the exchanges; the backward one of every device has the averaging of the fullest."""
        own = shared[..., : self._shared.stop - self._shared.start]
        self.model.fill_communication(phases, own, cluster)
        longest = largest(shared[..., -1], -1, keepdims=True)
        phases[..., BACKWARD_COMM] += where(cluster.device_mask, longest, 0.0)

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
    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        low, high = self.model.bounds(loads[..., :-1], _without_replicas(topology), variants)
        if variants is None:
            every = float(loads[:, -1].sum())
            return low + every / topology.num_devices, high + every
        total = np.where(variants.legal, loads[..., -1] * variants.parts, np.nan)  # of all parts of a variant
        least, most = np.nanmin(total, axis=1).sum(), np.nanmax(total, axis=1).sum()
        return low + float(least) / topology.num_devices, high + float(most)


ModelT = TypeVar("ModelT", bound=CostModel)


def model_of(topology: Topology, model: ModelT) -> ModelT | GroupedShardingModel:
    """The cost model of the devices of a group; `model` itself where their shards have no replicas.

    Raises:
        InvalidOptionError: it does not support groups.
    """
    if topology.replicas is None or REPLICAS in model.supports:
        return model
    return GroupedShardingModel(model)


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
