"""Cost models without costs, for placing with a policy that sees none."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.base.counted import CountedCostModel
from shard_gym.cost_models.base.model import PHASES, AdditiveCostModel, PlainCosts
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.needs import COMPRESSION, HOST_MEMORY, MIXED, SEQUENCES, SERVING, SPLITS, TRAINING, WEIGHTED
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables


class NoCosts(AdditiveCostModel):
    """Every placement and every plan costs 0 ms. An environment steps under it without evaluating anything."""

    name = "no-costs"
    version = 1
    num_loads = 1
    num_sum_loads = 1
    supports = frozenset({TRAINING, SERVING, SEQUENCES, WEIGHTED, MIXED, HOST_MEMORY, COMPRESSION, SPLITS})

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(S, 1) zeros."""
        return np.zeros((len(shards), self.num_loads))

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) zeros."""
        return np.zeros((*loads.shape[:-1], len(PHASES)))

    @property
    @override
    def plain_costs(self) -> PlainCosts:
        return _nothing

    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """0, and 1, so that a failure is charged more than nothing."""
        return 0.0, 1.0


class _WithoutCosts(CountedCostModel):
    def device_phases(self, loads: FloatArray) -> FloatArray:
        return np.zeros((*loads.shape[:-1], len(PHASES)))

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Nothing; the phases are zero."""

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        return np.zeros(phases.shape[:-2])


def without_costs(model: AdditiveCostModel) -> AdditiveCostModel:
    """A model with the loads of `model`, under which an environment steps without evaluating anything.

    The costs at the end follow from the loads of the devices then: `model.costs(state.device_loads, cluster)`.
    """
    return _WithoutCosts(model)


def _nothing(
    device: int, loads: list[float], phases: list[list[float]], shared: list[list[float]], cluster: Cluster
) -> float:
    return 0.0
