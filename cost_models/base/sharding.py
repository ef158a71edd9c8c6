"""The interface of cost models of sharded tables: `ShardingCostModel`, additive over the shards of a device."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.base.model import PENALTY_MARGIN, AdditiveCostModel, CostEstimate, CostModel, FloatArray
from shard_gym.hardware.topology import Topology
from shard_gym.plans.check import check_plan
from shard_gym.plans.plan import COLUMN_WISE, SHARDING_TYPES, TABLE_ROW_WISE, ShardingPlan, blocks_of_rows
from shard_gym.plans.statistics import shard_tables
from shard_gym.plans.variants import Variants, variants_of, with_all_widths
from shard_gym.tables.tables import Tables


class PlanCosts(CostModel):
    """A cost model of plans: an estimate of a `ShardingCostModel`, or a measurement."""

    @abstractmethod
    def estimate_plan(self, plan: ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a plan.

        Raises:
            InvalidPlanError, MemoryExceededError: it is not valid; see `check_plan`.
        """

    @abstractmethod
    def plan_penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """Ms charged for a task without a valid plan; of an estimate, above the cost of every valid one."""


class ShardingCostModel(AdditiveCostModel, PlanCosts):
    """An `AdditiveCostModel` in which shards have loads like tables.

    The loads of a device are the sums and maxima over its shards, so `add`, `reduce`, `costs` and everything that steps
    with them serve plans as they serve placements. A whole table is a shard: `estimate_plan` of a plan of whole tables
    is `estimate` of the placement, bit for bit.
    """

    @abstractmethod
    def shard_loads(self, shards: Tables, sharding_type: str, topology: Topology) -> FloatArray:
        """(S, K) float64 loads of shards of one sharding type on one device each, as `shard_tables` describes them."""

    def with_replicas(self) -> ShardingCostModel:
        """This model, on devices whose shards have replicas in other groups (`Topology.replicas`).

        Raises:
            InvalidOptionError: there is no such model.
        """
        raise InvalidOptionError(
            f"The cost model {self.name!r} does not cost groups of devices. Name 'analytical', or plan for one group."
        )

    @abstractmethod
    def variant_bounds(self, variants: Variants, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        """Lower and upper bound in ms on the cost of every plan of these variants with (T, V, K) `variant_loads`."""

    def variant_loads(self, variants: Variants, topology: Topology) -> FloatArray:
        """(T, V, K) float64, the loads that one part of each variant adds to a device; also of those not legal."""
        pairs = zip(variants.tables, variants.sharding_types, strict=True)
        return np.stack([self.shard_loads(tables, kind, topology) for tables, kind in pairs], axis=1)

    def plan_loads(self, plan: ShardingPlan, tables: Tables, topology: Topology) -> FloatArray:
        """(D, K) float64 loads of the devices under a checked plan."""
        loads, arrays = self.each_shard(plan, tables, topology)
        return self.reduce(loads, arrays[:, 1], topology.num_devices)

    def each_shard(
        self, plan: ShardingPlan, tables: Tables, topology: Topology
    ) -> tuple[FloatArray, NDArray[np.int64]]:
        """(S, K) float64 loads of each shard of a checked plan, and the (S, 6) `shard_arrays` of the plan."""
        arrays = plan.shard_arrays()
        kinds = np.array([SHARDING_TYPES.index(sharding.shard_type) for sharding in plan.tables])[arrays[:, 0]]
        wanted = np.column_stack([arrays[:, [0, 5]], blocks_of_rows(arrays)])
        loads = np.empty((len(arrays), self.num_loads_with(topology.host is not None)))
        for kind in np.unique(kinds):
            name, chosen = SHARDING_TYPES[kind], np.flatnonzero(kinds == kind)
            # The shards of a table that differ in their device alone have equal loads, which are computed once.
            different, which = np.unique(wanted[chosen], axis=0, return_inverse=True)
            widths = different[:, 1] if name in (COLUMN_WISE, TABLE_ROW_WISE) else None
            shards = shard_tables(tables.select(different[:, 0]), name, topology, widths, different[:, 2])
            loads[chosen] = self.shard_loads(shards, name, topology)[which.reshape(-1)]
        return loads, arrays

    @override
    def estimate_plan(self, plan: ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
        loads = self.plan_loads(check_plan(plan, tables, topology), tables, topology)
        phases, cost = self.costs(loads, topology.cluster())
        return CostEstimate(phases, float(cost))

    def plan_bounds(self, tables: Tables, topology: Topology) -> tuple[float, float]:
        """Lower and upper bound in ms on the cost of every valid plan, without a solver."""
        return _plan_bounds(self, tables, topology)

    @override
    def plan_penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """PENALTY_MARGIN times the upper bound."""
        return PENALTY_MARGIN * self.plan_bounds(tables, topology)[1]


@lru_cache(maxsize=1024)
def _plan_bounds(model: ShardingCostModel, tables: Tables, topology: Topology) -> tuple[float, float]:
    dims = tables.embedding_dim
    variants = variants_of(tables, topology, max_halvings=int(dims.max() // 4).bit_length() - 1)
    if (dims & (dims - 1)).any():  # halves of other dims are not the cheapest and costliest columns
        variants = with_all_widths(variants, topology)
    return model.variant_bounds(variants, model.variant_loads(variants, topology), topology)
