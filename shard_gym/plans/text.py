"""Shardings in words, for messages, texts and pictures."""

from __future__ import annotations

from shard_gym.common.text import counted
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    ShardingPlan,
    TableSharding,
)

MAX_LISTED = 8  # shards listed one by one; of more, the widths or devices are summed up


def describe_sharding(sharding: TableSharding) -> str:
    """One line: "column_wise, 32 + 16 + 16 columns on devices 0, 2, 2"."""
    shards, kind = sharding.shards, sharding.sharding_type
    where = _devices(sharding.devices)
    if kind == TABLE_WISE:
        return f"{kind} on {where}"
    if kind == DATA_PARALLEL:
        return f"{kind}, a replica on each of {counted(len(shards), 'device')}"
    if kind in (COLUMN_WISE, TABLE_COLUMN_WISE):
        ordered = sorted(shards, key=lambda shard: shard.first_column)
        widths = [shard.num_columns for shard in ordered]
        if len(widths) <= MAX_LISTED:
            return f"{kind}, {' + '.join(map(str, widths))} columns on {_devices([s.device for s in ordered])}"
        return f"{kind}, {len(widths)} shards of {min(widths)} to {max(widths)} columns on {where}"
    blocks = f"{counted(len(shards), 'block')} of {max(shard.num_rows for shard in shards):,} rows"
    if kind == GRID_SHARD:
        widths = sorted({shard.num_columns for shard in shards})
        blocks += f" and {' or '.join(map(str, widths))} columns"
    return f"{kind}, {blocks} on {'all devices' if kind == ROW_WISE else where}"


def brief_sharding(sharding: TableSharding) -> str:
    """The same where cells are few: how many parts, but not their rows: "table_row_wise, 8 parts on devices 0 to 7"."""
    count, kind = len(sharding.shards), sharding.sharding_type
    if sharding.shard_type in (TABLE_WISE, COLUMN_WISE):
        return describe_sharding(sharding)
    parts = f"{kind}, {counted(count, 'replica' if kind == DATA_PARALLEL else 'part')}"
    return f"{parts} on {_devices(sharding.devices)}" if sharding.shard_type == TABLE_ROW_WISE else parts


def describe_plan(plan: ShardingPlan) -> str:
    """One line: how many tables are split, and by which types."""
    split = [plan.tables[table].sharding_type for table in plan.split_tables]
    if not split:
        return f"All {len(plan)} tables are whole"
    types = ", ".join(f"{split.count(name)} {name}" for name in sorted(set(split)))
    return f"{len(split)} of {counted(len(plan), 'table')} split ({types}), {plan.num_shards:,} shards"


def _devices(devices: list[int]) -> str:
    if len(devices) == 1:
        return f"device {devices[0]}"
    if len(devices) > 2 and devices == list(range(devices[0], devices[0] + len(devices))):
        return f"devices {devices[0]} to {devices[-1]}"
    if len(devices) <= MAX_LISTED:
        return f"devices {', '.join(map(str, devices))}"
    return counted(len(set(devices)), "device")
