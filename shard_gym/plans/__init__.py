"""Plans: placements and sharding plans, their check, their files, the memory of a step, and rows in host memory."""

from __future__ import annotations

from shard_gym.plans.check import check_answer, check_plan, plan_memory_used
from shard_gym.plans.files import plan_from_json, plan_to_json, read_plan, write_plan
from shard_gym.plans.plan import (
    SHARDING_TYPES,
    Shard,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)

__all__ = [
    "SHARDING_TYPES",
    "Shard",
    "ShardingPlan",
    "TableSharding",
    "check_answer",
    "check_plan",
    "column_wise",
    "data_parallel",
    "plan_from_json",
    "plan_memory_used",
    "plan_of_placement",
    "plan_to_json",
    "read_plan",
    "row_wise",
    "table_row_wise",
    "table_wise",
    "write_plan",
]
