"""Sharding plans from what an episode records of them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.plans import Shard, ShardingPlan, TableSharding, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.plans.plan import COLUMN_WISE, TABLE_WISE
from shard_gym.tasks import Task


def plan_of(
    task: Task, placement: NDArray[Any], rules: SplitRules, current: int | None = None, begun: int = 0
) -> ShardingPlan:
    """The plan that an episode recorded; a table of which no part has a device is table_wise without shards.

    Args:
        placement: (T or more, U) integers in the task's own order of tables: the action that gave a shard to devices,
            at the U-th of the columns where the shard begins, -1 elsewhere. Infos have it as `placement`.
        current: the table of which parts wait, if there is one.
        begun: U-ths of its columns that have devices.
    """
    ends = [rules.max_shards] * task.num_tables
    if current is not None:
        ends[current] = begun
    rows = placement[: task.num_tables].tolist()
    return ShardingPlan(
        tuple(_sharding(task, table, row, end, rules) for table, (row, end) in enumerate(zip(rows, ends, strict=True)))
    )


def _sharding(task: Task, table: int, actions: list[int], end: int, rules: SplitRules) -> TableSharding:
    tables, topology, first = task.tables, task.topology, actions[0]
    begins = [unit for unit, action in enumerate(actions) if action >= 0]
    if not begins:
        return TableSharding(TABLE_WISE, ())
    if first == rules.row_wise:
        return row_wise(tables, table, topology)
    if first == rules.data_parallel:
        return data_parallel(tables, table, topology)
    if first >= rules.max_devices:
        return table_row_wise(tables, table, topology, first - rules.host_row_wise)
    if begins == [0] and end == rules.max_shards:
        return table_wise(tables, table, first)
    rows, dim = int(tables.num_embeddings[table]), int(tables.embedding_dim[table])
    columns = [dim * unit // rules.max_shards for unit in (*begins, end)]
    return TableSharding(
        COLUMN_WISE,
        tuple(
            Shard(actions[unit], 0, rows, low, high - low)
            for unit, low, high in zip(begins, columns, columns[1:], strict=False)
        ),
    )
