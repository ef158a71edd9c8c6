"""The check of sharding plans, from tables and topology alone, without the mask of an environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import InvalidPlanError, MemoryExceededError, short_repr
from shard_gym.common.text import counted, format_bytes
from shard_gym.hardware import Topology
from shard_gym.plans.caps import devices_over, require_room_of_memories
from shard_gym.plans.common_plans import is_common_valid_plan
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    PLAN_TYPES,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    Groups,
    Shard,
    ShardingPlan,
    TableSharding,
    devices_of_hosts,
    rows_per_block,
)
from shard_gym.tables import Tables


def plan_memory_used(plan: ShardingPlan, tables: Tables, num_devices: int) -> NDArray[np.int64]:
    """(D,) int64, bytes of weights and optimizer state on each device under a valid `plan`.

    A column shard has the optimizer state of all its rows (`Workload.row_bytes`).
    """
    used = np.zeros(num_devices, np.int64)
    table, devices, _, num_rows, _, columns = plan.shard_arrays().T
    np.add.at(used, devices, num_rows * tables.workload.select(table).row_bytes(columns))
    return used


def check_plan(
    plan: ShardingPlan, tables: Tables, topology: Topology, sharding_types: Collection[str] = PLAN_TYPES
) -> ShardingPlan:
    """`plan` itself, if every cell of every table is where its sharding type wants it and no memory cap is exceeded.

    - table_wise: one shard, the table.
    - column_wise: every column in one shard, with all rows; widths are multiples of 4, as FBGEMM needs.
    - row_wise: block i of ceil(rows / D) rows is on device i (see `rows_per_block`). Where a table has few rows, the
      last blocks are empty; `check_answer` refuses these.
    - table_row_wise: the same over the W devices of one host; all hosts have W devices, and the table is pooled.
    - data_parallel: the table is on every device once.
    - table_column_wise: the same as column_wise. TorchRec's planner uses the devices of one host, and TorchRec any.
    - grid_shard: every column in one column shard, each of which is table_row_wise.

    Of a plan with groups, tables and topology are those of one group (`shard_gym.tasks.groups.task_of_group`), for
    which one without groups is valid, too.

    Args:
        sharding_types: those that the plan may have.

    Raises:
        InvalidPlanError: it is not such a plan; the message names the table.
        MemoryExceededError: the shards of a device need more bytes than its memory cap, or the states of their rows
            more than its HBM.
    """
    is_plan = isinstance(plan, ShardingPlan)
    if not is_plan or not isinstance(plan.tables, (tuple, list)):
        wrong = short_repr(plan.tables if is_plan else plan)
        raise InvalidPlanError(f"A plan is a ShardingPlan with a TableSharding for each table, not {wrong}.")
    if len(plan) != len(tables):
        raise InvalidPlanError(f"The plan has {counted(len(plan), 'sharding')}, but there are {len(tables)} tables.")
    replicas = 1 if topology.replicas is None else topology.replicas.count
    if not isinstance(plan.groups, Groups) or plan.groups.count not in (1, replicas):
        raise InvalidPlanError(
            f"The plan has the groups {short_repr(plan.groups)}, but these are the devices of one of "
            f"{counted(replicas, 'group')}. task_of_group has the tables and devices of a plan with groups."
        )
    plain = _is_plain(plan)
    if not (plain and is_common_valid_plan(plan, tables, topology, sharding_types)):
        _check_cells(plan, tables, topology, sharding_types, plain)
    table, devices, _, num_rows, _, columns = plan.shard_arrays().T
    used = plan_memory_used(plan, tables, topology.num_devices)
    over = devices_over(used, topology)
    if over.size:
        device = int(over[0])
        cap = topology.memory_cap_bytes[device]
        shards = int((devices == device).sum())
        raise MemoryExceededError(
            f"Device {device} is given {counted(shards, 'shard')} that need {used[device]} bytes "
            f"({format_bytes(used[device])}), but its cap is {cap} bytes ({format_bytes(cap)})."
        )
    rows_in = None if tables.rows_in is None else tables.rows_in[table]
    require_room_of_memories(devices, num_rows, columns, tables.workload.select(table), topology, rows_in)
    return plan


def _check_cells(
    plan: ShardingPlan, tables: Tables, topology: Topology, sharding_types: Collection[str], plain: bool
) -> None:
    """Raise the error of the first table that is not split as `check_plan` wants it; `plain`: see `_problem`."""
    shapes = zip(tables.num_embeddings.tolist(), tables.embedding_dim.tolist(), strict=True)
    for table, (sharding, shape) in enumerate(zip(plan.tables, shapes, strict=True)):
        problem = _problem(sharding, *shape, topology, sharding_types, plain)
        if not problem and sharding.shard_type == TABLE_ROW_WISE and not tables.pooled[table]:
            problem = (
                f"is a sequence table, which TorchRec does not split {sharding.sharding_type}; row_wise is over all "
                "devices"
            )
        if problem:
            raise InvalidPlanError(f"Table {table} ({tables.names[table]}) {problem}.")


def check_answer(plan: ShardingPlan, tables: Tables, topology: Topology, empty_blocks: bool = False) -> ShardingPlan:
    """`plan` itself, if it is valid (`check_plan`) and an answer to a task: in forms that environments offer.

    Their actions, and the bounds of costs, know `SHARDING_TYPES` alone, and no blocks without rows; plans that are read
    may have others. Blocks without rows are permitted with `empty_blocks`, as constraints may do.

    Raises:
        InvalidPlanError, MemoryExceededError: see `check_plan`; or it has another type, or a block has no rows.
    """
    shards = check_plan(plan, tables, topology, SHARDING_TYPES).shard_arrays()
    empty = np.flatnonzero(shards[:, 3] == 0)
    if empty.size and not empty_blocks:
        table, device = shards[empty[0], :2].tolist()
        raise InvalidPlanError(
            f"Table {table} ({tables.names[table]}) is {plan.tables[table].sharding_type} with "
            f"{tables.num_embeddings[table]} rows, which leaves device {device} without any. TorchRec runs such plans, "
            "but no answer to a task may be one; split the table by columns, or do not split it."
        )
    return plan


def _is_plain(plan: ShardingPlan) -> bool:
    """Whether all shards are of Python's integers, as those of files. No line runs for each shard."""
    if set(map(type, plan.tables)) != {TableSharding}:
        return False
    of_tables = [sharding.shards for sharding in plan.tables]
    if set(map(type, of_tables)) != {tuple}:
        return False
    shards = list(chain.from_iterable(of_tables))
    return set(map(type, shards)) == {Shard} and set(map(type, chain.from_iterable(shards))) == {int}


def _problem(
    sharding: Any, rows: int, dim: int, topology: Topology, sharding_types: Collection[str], plain: bool
) -> str:
    """What is wrong with the sharding of one table, as the end of a sentence; empty if nothing is.

    Args:
        sharding: of the table.
        rows, dim: of the table.
        topology: the devices.
        sharding_types: that it may have.
        plain: whether its shards are known to be of Python's integers; others are checked, and converted.
    """
    if not isinstance(sharding, TableSharding):
        return f"needs a TableSharding, not {short_repr(sharding)}"
    if sharding.sharding_type not in sharding_types:
        return f"has the sharding type {short_repr(sharding.sharding_type)}; known are {', '.join(sharding_types)}"
    shards = sharding.shards
    if not isinstance(shards, (tuple, list)) or not shards:
        return f"has no shards: {short_repr(shards)}"
    if not plain:
        for shard in shards:
            if not isinstance(shard, Shard) or not all(map(is_integer, shard)):
                return f"has a shard that is not a Shard of integers: {short_repr(shard)}"
        exact = tuple(Shard(*map(int, shard)) for shard in shards)  # integers of NumPy overflow
        sharding = TableSharding(sharding.sharding_type, exact)
    return _problem_of_cells(sharding, rows, dim, topology)


@lru_cache(maxsize=2**15)
def _problem_of_cells(sharding: TableSharding, rows: int, dim: int, topology: Topology) -> str:
    """`_problem` of shards of Python's integers; kept, because plans of a suite have many shardings in common."""
    for shard in sharding.shards:
        if not 0 <= shard.device < topology.num_devices:
            return f"has a shard on device {shard.device}, but the devices are 0 to {topology.num_devices - 1}"
        least_rows = 0 if sharding.shard_type in (ROW_WISE, TABLE_ROW_WISE) else 1
        if min(shard[1:]) < 0 or shard.num_rows < least_rows or shard.num_columns < 1:
            return f"has a shard of no cells or with a negative number: {short_repr(shard)}"
        if shard.first_row + shard.num_rows > rows or shard.first_column + shard.num_columns > dim:
            return f"has {rows} rows and {dim} columns, but a shard beyond them: {short_repr(shard)}"
    return _OF_TYPE[sharding.sharding_type](sharding.shards, rows, dim, topology)


def _table_wise(shards: tuple[Shard, ...], rows: int, dim: int, topology: Topology) -> str:
    if len(shards) != 1:
        return f"is table_wise, which is one shard, but has {len(shards)}"
    return "" if shards[0][1:] == (0, rows, 0, dim) else _partial(TABLE_WISE, shards[0], rows, dim)


def _partial(sharding_type: str, shard: Shard, rows: int, dim: int) -> str:
    return (
        f"is {sharding_type}, so a shard is all {rows} rows and {dim} columns, but that of device {shard.device} "
        f"is {_range('row', shard.first_row, shard.num_rows)} and "
        f"{_range('column', shard.first_column, shard.num_columns)}"
    )


def _column_wise(shards: tuple[Shard, ...], rows: int, dim: int, topology: Topology) -> str:
    for shard in shards:
        if (shard.first_row, shard.num_rows) != (0, rows):
            return (
                f"is split by columns, so a shard has all {rows} rows, but that of "
                f"{_range('column', *shard[3:])} has {_range('row', shard.first_row, shard.num_rows)}"
            )
    return _columns([(shard.first_column, shard.num_columns) for shard in shards], dim)


def _columns(ranges: Iterable[tuple[int, int]], dim: int) -> str:
    """Every column is in one of the ranges, each a first column and a number of columns."""
    holders = np.zeros(dim, np.int64)
    for first, width in ranges:
        if width % 4:
            return (
                f"has a shard of {_range('column', first, width)}, whose width {width} is not a multiple of 4 as "
                "FBGEMM needs"
            )
        holders[first : first + width] += 1
    wrong = np.flatnonzero(holders != 1)
    if not wrong.size:
        return ""
    first, held = int(wrong[0]), int(holders[wrong[0]])
    count = int((np.append(holders[first:], -1) != held).argmax())
    return f"has {_range('column', first, count)} in {held or 'no'} shard{'s' * (held > 1)}"


def _row_wise(shards: tuple[Shard, ...], rows: int, dim: int, topology: Topology) -> str:
    return _blocks(ROW_WISE, shards, rows, (0, dim), range(topology.num_devices))


def _table_row_wise(shards: tuple[Shard, ...], rows: int, dim: int, topology: Topology) -> str:
    return _host_blocks(TABLE_ROW_WISE, shards, rows, (0, dim), topology)


def _grid_shard(shards: tuple[Shard, ...], rows: int, dim: int, topology: Topology) -> str:
    of_columns: dict[tuple[int, int], list[Shard]] = {}
    for shard in shards:
        of_columns.setdefault((shard.first_column, shard.num_columns), []).append(shard)
    problems = (_host_blocks(GRID_SHARD, tuple(held), rows, columns, topology) for columns, held in of_columns.items())
    return _columns(of_columns, dim) or next(filter(None, problems), "")


def _host_blocks(
    sharding_type: str, shards: tuple[Shard, ...], rows: int, columns: tuple[int, int], topology: Topology
) -> str:
    """Block i of the columns is on the i-th device of a host."""
    size = devices_of_hosts(topology)
    if not size:
        return (
            f"is {sharding_type}, but {topology.num_devices} devices in hosts of {topology.devices_per_host} leave the "
            "last host with fewer; use a topology whose hosts are equal, or another sharding type"
        )
    first = min(shard.device for shard in shards) // size * size
    return _blocks(sharding_type, shards, rows, columns, range(first, first + size))


def _blocks(sharding_type: str, shards: tuple[Shard, ...], rows: int, columns: tuple[int, int], devices: range) -> str:
    """Block i of `rows_per_block` rows and of the columns, a first one and a number, is on the i-th of `devices`."""
    where = f"devices {devices[0]} to {devices[-1]}"
    if sorted(shard.device for shard in shards) != list(devices):
        return (
            f"is {sharding_type}, so each of {where} has one block, but its shards are on devices "
            f"{short_repr([shard.device for shard in shards])}"
        )
    size = rows_per_block(rows, len(devices))
    for shard in shards:
        first = min((shard.device - devices[0]) * size, rows)
        if shard[1:] != (first, min(size, rows - first), *columns):
            return (
                f"is {sharding_type}, so device {shard.device} has {_range('row', first, min(size, rows - first))} and "
                f"{_range('column', *columns)} (blocks of ceil({rows} / {len(devices)}) = {size} rows), but it has "
                f"{_range('row', shard.first_row, shard.num_rows)} and "
                f"{_range('column', shard.first_column, shard.num_columns)}"
            )
    return ""


def _data_parallel(shards: tuple[Shard, ...], rows: int, dim: int, topology: Topology) -> str:
    if sorted(shard.device for shard in shards) != list(range(topology.num_devices)):
        return (
            f"is data_parallel, so each of the {topology.num_devices} devices has one replica, but its replicas are on "
            f"devices {short_repr([shard.device for shard in shards])}"
        )
    return next((_partial(DATA_PARALLEL, s, rows, dim) for s in shards if s[1:] != (0, rows, 0, dim)), "")


def _range(noun: str, first: int, count: int) -> str:
    if not count:
        return f"no {noun}s"
    return f"{noun} {first}" if count == 1 else f"{noun}s {first} to {first + count - 1}"


_OF_TYPE: dict[str, Callable[[tuple[Shard, ...], int, int, Topology], str]] = {
    TABLE_WISE: _table_wise,
    COLUMN_WISE: _column_wise,
    ROW_WISE: _row_wise,
    TABLE_ROW_WISE: _table_row_wise,
    DATA_PARALLEL: _data_parallel,
    TABLE_COLUMN_WISE: _column_wise,
    GRID_SHARD: _grid_shard,
}
