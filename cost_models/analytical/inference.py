"""The cost of serving: the forward of the analytical model alone, of whole tables and of plans.

No gradient is sent, no row is updated, and replicas exchange nothing, so they cost memory alone. What a device reads
from its host is that of the forward (`host_rows.py`), and rows of replicas compete by their reads, as all others do.
The workload of the tables has `training=False`, so that no optimizer keeps anything.
"""

from __future__ import annotations

from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical.model import BACKWARD_DRAM_MS, BACKWARD_L2_MS, BACKWARD_LANE_MS, SORT_MS
from shard_gym.cost_models.analytical.sharding import GRADIENT_BYTES, AnalyticalShardingModel
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.needs import GROUPS, SERVING, TRAINING
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tables import Tables

_OF_TRAINING = [BACKWARD_DRAM_MS, BACKWARD_L2_MS, BACKWARD_LANE_MS, SORT_MS, GRADIENT_BYTES]


class InferenceCostModel(AnalyticalShardingModel):
    """The model described at the top of this file; backward and its exchange take no time. Arguments: see its base."""

    name = "analytical-inference"
    exchanges = 1
    supports = AnalyticalShardingModel.supports - {TRAINING, GROUPS} | {SERVING}  # copies are never averaged

    @override
    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        loads = super().loads(shards, topology, sharding_type)
        loads[:, self.columns(_OF_TRAINING)] = 0.0
        return loads

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        phases = super().device_phases(loads)
        phases[..., BACKWARD] = 0.0
        return phases

    @override
    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        super().fill_communication(phases, shared, cluster)
        phases[..., BACKWARD_COMM] = 0.0

    single_tables = AnalyticalShardingModel.single_tables
