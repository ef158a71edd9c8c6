"""Sharding plans from the actions that made them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.sharding.plan import (
    COLUMN_WISE,
    Shard,
    TableSharding,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.tasks import Task


def shardings_of(
    task: Task, order: NDArray[Any], actions: Iterable[int], rules: SplitRules
) -> dict[int, TableSharding]:
    """The sharding of each table that has shards on devices after legal `actions`, by the number of the table.

    Only the last one may be incomplete: a column_wise table of which parts wait. If all T tables are there and no part
    waits, `ShardingPlan(tuple(shardings[table] for table in range(T)))` is the plan.

    Args:
        task: the task.
        order: (T,) ints, the table that is current first, second, ...
        actions: what was done; see `SplitRules`.
        rules: the rules of the episode.
    """
    found: dict[int, TableSharding] = {}
    tables, topology, position = task.tables, task.topology, 0
    waiting: list[tuple[int, int]] = []  # first column and columns of each part, the next one last
    for action in actions:
        table = int(order[position])
        whole = (0, int(tables.embedding_dim[table]))
        first, columns = waiting.pop() if waiting else whole
        if action == rules.halve:
            half = columns // 2
            waiting += [(first + half, half), (first, half)]
            continue
        if action < rules.max_devices:
            if (first, columns) == whole:
                found[table] = table_wise(tables, table, action)
            else:
                before = found[table].shards if table in found else ()
                shard = Shard(action, 0, int(tables.num_embeddings[table]), first, columns)
                found[table] = TableSharding(COLUMN_WISE, (*before, shard))
        elif action == rules.row_wise:
            found[table] = row_wise(tables, table, topology)
        elif action == rules.data_parallel:
            found[table] = data_parallel(tables, table, topology)
        else:
            found[table] = table_row_wise(tables, table, topology, action - rules.host_row_wise)
        position += not waiting
    return found
