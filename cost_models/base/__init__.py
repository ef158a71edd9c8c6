"""What a cost model is: interfaces, additive loads, rows in host memory, and counted evaluations."""

from shard_gym.cost_models.base.linear import LinearCosts
from shard_gym.cost_models.base.model import (
    COMMUNICATION,
    COMPUTE,
    PHASES,
    AdditiveCostModel,
    CostEstimate,
    CostModel,
    PlainCosts,
    bounds_of_plans,
    critical_devices,
    loads_of_plan,
    loads_of_shards,
    loads_of_variants,
    placement_order,
)

__all__ = [
    "COMMUNICATION",
    "COMPUTE",
    "PHASES",
    "AdditiveCostModel",
    "CostEstimate",
    "CostModel",
    "LinearCosts",
    "PlainCosts",
    "bounds_of_plans",
    "critical_devices",
    "loads_of_plan",
    "loads_of_shards",
    "loads_of_variants",
    "placement_order",
]
