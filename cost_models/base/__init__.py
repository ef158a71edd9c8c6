"""What a cost model is: interfaces, additive loads, rows in host memory, and counted evaluations."""

from shard_gym.cost_models.base.linear import LinearCosts
from shard_gym.cost_models.base.model import (
    COMMUNICATION,
    COMPUTE,
    PHASES,
    AdditiveCostModel,
    CostEstimate,
    CostModel,
    FloatArray,
    PlainCosts,
    critical_devices,
    placement_order,
)
from shard_gym.cost_models.base.sharding import PlanCosts, ShardingCostModel

__all__ = [
    "COMMUNICATION",
    "COMPUTE",
    "PHASES",
    "AdditiveCostModel",
    "CostEstimate",
    "CostModel",
    "FloatArray",
    "LinearCosts",
    "PlainCosts",
    "PlanCosts",
    "ShardingCostModel",
    "critical_devices",
    "placement_order",
]
