"""Wrappers that count the evaluations of a cost model: `counted(model)` is the one that fits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import wrong_kind
from shard_gym.cost_models.base.linear import LinearCosts
from shard_gym.cost_models.base.model import AdditiveCostModel, CostEstimate, CostModel, PlainCosts
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans import ShardingPlan
from shard_gym.plans.needs import SPLITS, require_supported
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables


class CountedCostModel(AdditiveCostModel):
    """A wrapper around an additive cost model, its `model`, that counts the evaluated placements in `queries`."""

    def __init__(self, model: AdditiveCostModel) -> None:
        self.model = model
        self.queries = 0
        self.name = model.name
        self.version = model.version
        self.num_loads = model.num_loads
        self.num_sum_loads = model.num_sum_loads
        self.group_loads, self.shared_loads = model.group_loads, model.shared_loads
        self.supports = model.supports
        self.host_policy, self.exchanges = model.host_policy, model.exchanges

    @property
    @override
    def maxima(self) -> slice:
        return self.model.maxima

    @override
    def num_loads_with(self, host_memory: bool, num_groups: int = 1) -> int:
        return self.model.num_loads_with(host_memory, num_groups)

    @property
    @override
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @override
    def fingerprint_for(self, num_devices: Collection[int]) -> str:
        return self.model.fingerprint_for(num_devices)

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """Those of the model."""
        return self.model.loads(shards, topology, sharding_type)

    @override
    def device_phases(self, loads: FloatArray) -> FloatArray:
        return self.model.device_phases(loads)

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Counts one evaluation for each placement in the leading shape."""
        self.queries += math.prod(phases.shape[:-2])
        self.model.fill_communication(phases, shared, cluster)

    @override
    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        return self.model.iteration_cost(phases, shared, cluster)

    def costs_with_one(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Counts one evaluation for each changed device."""
        self.queries += len(devices)
        return self.model.costs_with_one(cluster, device_loads, own_phases, devices, new_loads)

    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """Counts one evaluation for each table."""
        self.queries += len(loads)
        return self.model.single_tables(loads, topology)

    @property
    def plain_costs(self) -> PlainCosts | None:
        """Counts one evaluation for each call."""
        costs = self.model.plain_costs
        return None if costs is None else partial(self._counted_costs, costs)

    def _counted_costs(self, costs: PlainCosts, *arguments: Any) -> float:
        self.queries += 1
        return costs(*arguments)

    @override
    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        return penalty_of(self.model, tables, topology, splits)

    @override
    def linear_costs(self, tables: Tables, topology: Topology) -> LinearCosts | None:
        return self.model.linear_costs(tables, topology)

    @override
    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        return self.model.bounds(loads, topology, variants)


class CountedEstimates(CostModel):
    """A wrapper that counts the estimates of a cost model that is not additive, such as a measured one, in `queries`.

    `on_estimate` is called with every estimate, or with None after one that failed, to show progress.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.queries = 0
        self.on_estimate: Callable[[CostEstimate | None], None] = lambda estimate: None
        self.name, self.version, self.detail_names = model.name, model.version, model.detail_names
        self.supports = model.supports

    @property
    @override
    def fingerprint(self) -> str:
        return self.model.fingerprint

    @override
    def fingerprint_for(self, num_devices: Collection[int]) -> str:
        return self.model.fingerprint_for(num_devices)

    def estimate(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
        """Counts one evaluation."""
        return self._counted(lambda: self.model.estimate(answer, tables, topology))

    def _counted(self, cost: Callable[[], CostEstimate]) -> CostEstimate:
        self.queries += 1
        estimate: CostEstimate | None = None
        try:
            estimate = cost()
        finally:
            self.on_estimate(estimate)
        return estimate

    @override
    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        return penalty_of(self.model, tables, topology, splits)


def penalty_of(model: CostModel, tables: Tables, topology: Topology, splits: bool) -> float:
    """`penalty_ms` of a model, which need have no argument `splits` if it does not support them."""
    if splits:
        require_supported(f"The cost model {model.name!r}", {SPLITS}, model.supports, costs=True)
    return model.penalty_ms(tables, topology, splits=True) if splits else model.penalty_ms(tables, topology)


def counted(model: CostModel) -> CountedCostModel | CountedEstimates:
    """`model` in the wrapper that counts its evaluations.

    Raises:
        InvalidOptionError: it is no cost model.
    """
    if not isinstance(model, CostModel):
        raise wrong_kind("model", model, "a CostModel, such as make_cost_model('analytical')")
    return CountedCostModel(model) if isinstance(model, AdditiveCostModel) else CountedEstimates(model)
