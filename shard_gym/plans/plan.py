"""Sharding plans: sharding types, shards, and a plan as one sharding for each table. Words are those of TorchRec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.checks import checked_count, is_integer, is_iterable
from shard_gym.common.errors import InvalidPlanError, short_repr, wrong_kind
from shard_gym.hardware import Topology
from shard_gym.plans.placement import Placement
from shard_gym.tables import Tables

TABLE_WISE, COLUMN_WISE, ROW_WISE = "table_wise", "column_wise", "row_wise"
TABLE_ROW_WISE, DATA_PARALLEL = "table_row_wise", "data_parallel"
TABLE_COLUMN_WISE, GRID_SHARD = "table_column_wise", "grid_shard"

SHARDING_TYPES: tuple[str, ...] = (TABLE_WISE, COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL)
"""The sharding types, with TorchRec's names (meta-pytorch/torchrec, torchrec/distributed/types.py, ShardingType):

- table_wise: one shard, the table.
- column_wise: shards of some columns and all rows, on any devices.
- row_wise: one block of ceil(rows / D) rows on every device; the last block holds what is left. Where a table has few
  rows, the last blocks are empty; plans that are read may have such blocks, and of those that are searched the plans of
  a task whose constraints say so (`Constraints.empty_blocks`).
- table_row_wise: the same over the devices of one host.
- data_parallel: a replica on every device.
"""

READ_TYPES: Mapping[str, str] = {TABLE_COLUMN_WISE: COLUMN_WISE, GRID_SHARD: TABLE_ROW_WISE}
"""The other sharding types that TorchRec's planner writes, which a plan may have and no search looks for, and the type
whose shards theirs are: to their device, and on the links.

- table_column_wise: column shards. The planner keeps those of a table on one host; they are looked up and exchanged as
  those of column_wise (torchrec/distributed/sharding/twcw_sharding.py, which is cw_sharding.py by another name).
- grid_shard: column shards, each of which is table_row_wise on a host; partial sums are added up inside the host, and
  pass between hosts in an all-to-all (grid_sharding.py, `GridPooledEmbeddingDist`).
"""

PLAN_TYPES: tuple[str, ...] = (*SHARDING_TYPES, *READ_TYPES)
"""All sharding types of plans."""


def has_dense_gradient(sharding_type: str, tables: Tables, num_devices: int) -> bool:
    """Whether a batch updates every row of a shard, read or not: in training, that of a replica on several devices."""
    return sharding_type == DATA_PARALLEL and num_devices > 1 and tables.workload.training


class Shard(NamedTuple):
    """A rectangle of cells of a table, on one device.

    TorchRec's `ShardMetadata` has the same numbers: shard_offsets is (first_row, first_column), shard_sizes is
    (num_rows, num_columns).
    """

    device: int
    first_row: int
    num_rows: int
    first_column: int
    num_columns: int


@dataclass(frozen=True)
class TableSharding:
    """How one table is split, and where its shards are.

    Attributes:
        sharding_type: one of `PLAN_TYPES`.
    """

    sharding_type: str
    shards: tuple[Shard, ...]

    @property
    def shard_type(self) -> str:
        """What each shard is to its device: one of `SHARDING_TYPES`."""
        return READ_TYPES.get(self.sharding_type, self.sharding_type)

    @property
    def devices(self) -> list[int]:
        """The device of each shard."""
        return [shard.device for shard in self.shards]


STRIDED, CONTIGUOUS = LAYOUTS = "strided", "contiguous"
"""Which devices form a group, see `shard_gym.tasks.groups`."""


@dataclass(frozen=True)
class Groups:
    """How many groups of devices hold all tables each, and which devices form one (`LAYOUTS`)."""

    count: int = 1
    layout: str = STRIDED

    def __post_init__(self) -> None:
        if self.count == 1 and self.layout in LAYOUTS:  # both are then the same
            object.__setattr__(self, "layout", STRIDED)


ONE_GROUP = Groups()


@dataclass(frozen=True)
class ShardingPlan:
    """One sharding for each of T tables; `check_plan` says whether it is valid for tables and a topology.

    Attributes:
        tables: T shardings, in the order of the tables.
        groups: of devices with a copy of all tables each; the devices of the shards are then those of one group.
    """

    tables: tuple[TableSharding, ...]
    groups: Groups = ONE_GROUP

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        of = f", {self.groups.count} {self.groups.layout} groups" if self.groups.count > 1 else ""
        return f"ShardingPlan({len(self)} tables, {self.num_shards} shards{of})"

    @property
    def num_shards(self) -> int:
        """Shards of all tables; a replica counts as one."""
        return sum(len(sharding.shards) for sharding in self.tables)

    @property
    def split_tables(self) -> list[int]:
        """The tables with more than one shard, ascending."""
        return [table for table, sharding in enumerate(self.tables) if len(sharding.shards) > 1]

    @property
    def placement(self) -> Placement | None:
        """(T,) int64, the device of each table, if every table is one shard; None otherwise."""
        if self.split_tables:
            return None
        return np.array([sharding.shards[0].device for sharding in self.tables], np.int64)

    def shard_arrays(self) -> NDArray[np.int64]:
        """(S, 6) int64, table, device, first row, rows, first column and columns of each shard."""
        shards = [sharding.shards for sharding in self.tables]
        numbers = np.fromiter(chain.from_iterable(chain.from_iterable(shards)), np.int64).reshape(-1, 5)
        table = np.repeat(np.arange(len(shards)), [len(each) for each in shards])
        return np.column_stack([table, numbers])


def rows_per_block(num_embeddings: int, blocks: int) -> int:
    """Rows of every block but the last, ceil(rows / blocks).

    TorchRec finds the block of a row by dividing by this number, whatever the plan says; it accepts other blocks and
    then computes wrong results (torchrec/distributed/sharding/rw_sharding.py).
    """
    return -(-num_embeddings // blocks)


def filled_blocks(num_embeddings: ArrayLike, blocks: int) -> NDArray[np.int64]:
    """How many of `blocks` blocks have rows; broadcasts. Five rows in four blocks of two fill three."""
    rows = np.asarray(num_embeddings, np.int64)
    return np.asarray(-(-rows // -(-rows // blocks)))


def has_equal_blocks(num_embeddings: ArrayLike, blocks: int) -> NDArray[np.bool_]:
    """Whether every one of `blocks` blocks has a row; broadcasts."""
    return np.asarray(filled_blocks(num_embeddings, blocks) == blocks)


def blocks_of_rows(shards: NDArray[np.int64]) -> NDArray[np.int64]:
    """(S,) int64, how many shards of its table have the columns of each of (S, 6) `shard_arrays`, and any rows.

    It is the number of blocks or replicas of a table, 1 for a whole table and a column shard, and 0 for a block that is
    empty itself.
    """
    table, _, _, rows, first_column, _ = shards.T
    _, which = np.unique(table * (first_column.max(initial=0) + 1) + first_column, return_inverse=True)
    filled = rows > 0
    return np.where(filled, np.bincount(which, filled)[which], 0).astype(np.int64)


def devices_of_hosts(topology: Topology) -> int:
    """W, the devices of a host if all hosts have as many; 0 otherwise, and table_row_wise is then impossible."""
    size = min(topology.devices_per_host, topology.num_devices)
    return size if topology.num_devices % size == 0 else 0


def table_wise(tables: Tables, table: int, device: int) -> TableSharding:
    """The whole table on `device`."""
    rows, dim = _shape(tables, table)
    return TableSharding(TABLE_WISE, (Shard(checked_count("device", device, 0), 0, rows, 0, dim),))


def column_wise(
    tables: Tables, table: int, devices: Sequence[int], widths: Sequence[int] | None = None
) -> TableSharding:
    """Column shards from left to right, one for each of `devices`, which may repeat.

    Args:
        widths: columns of each shard, multiples of 4 with the dim as their sum; by default equal.

    Raises:
        InvalidPlanError: the dim cannot be split so.
    """
    rows, dim = _shape(tables, table)
    for name, values in (("devices", devices), ("widths", devices if widths is None else widths)):
        if not isinstance(values, (Sequence, np.ndarray)) or not is_iterable(values):
            raise wrong_kind(name, values, "a list of integers")
    if widths is None:
        widths = [dim // len(devices)] * len(devices) if len(devices) else []
    given = list(widths)
    valid = len(given) == len(devices) > 0 and all(is_integer(width) and width > 0 for width in given)
    if not valid or sum(given) != dim or any(width % 4 for width in given):
        raise InvalidPlanError(
            f"Table {table} ({tables.names[table]}) has {dim} columns, which are not {len(devices)} shards with widths "
            f"{short_repr(given)}. Give one width for each device: multiples of 4 that add up to {dim}."
        )
    first, shards = 0, []
    for device, width in zip(devices, given, strict=True):
        shards.append(Shard(checked_count("device", device, 0), 0, rows, first, int(width)))
        first += int(width)
    return TableSharding(COLUMN_WISE, tuple(shards))


def row_wise(tables: Tables, table: int, topology: Topology, empty_blocks: bool = False) -> TableSharding:
    """A block of rows on every device.

    Args:
        empty_blocks: whether the last blocks of a table with few rows may be empty.

    Raises:
        InvalidPlanError: the table has so few rows that a block would be empty, and none may be.
    """
    return TableSharding(ROW_WISE, _blocks(tables, table, range(topology.num_devices), empty_blocks))


def table_row_wise(
    tables: Tables, table: int, topology: Topology, host: int, empty_blocks: bool = False
) -> TableSharding:
    """A block of rows on every device of `host`.

    Args:
        empty_blocks: whether the last blocks of a table with few rows may be empty.

    Raises:
        InvalidPlanError: there is no such host, hosts differ in size, or a block would be empty, and none may be.
    """
    size = devices_of_hosts(topology)
    hosts = topology.num_devices // size if size else 0
    if not is_integer(host) or not 0 <= host < hosts:
        raise InvalidPlanError(
            f"Table {table} ({tables.names[table]}) cannot be table_row_wise on host {short_repr(host)}: "
            + (f"the hosts are 0 to {hosts - 1}." if size else "the hosts have different numbers of devices.")
        )
    return TableSharding(TABLE_ROW_WISE, _blocks(tables, table, range(host * size, (host + 1) * size), empty_blocks))


def data_parallel(tables: Tables, table: int, topology: Topology) -> TableSharding:
    """A replica on every device."""
    rows, dim = _shape(tables, table)
    return TableSharding(DATA_PARALLEL, tuple(Shard(device, 0, rows, 0, dim) for device in range(topology.num_devices)))


def plan_of_placement(placement: Iterable[int], tables: Tables) -> ShardingPlan:
    """The plan that puts every whole table on its device; `placement` has one device for each table.

    Raises:
        InvalidOptionError: it is no list of device numbers.
    """
    if not is_iterable(placement):
        raise wrong_kind("placement", placement, "a device for each table")
    return ShardingPlan(tuple(table_wise(tables, table, device) for table, device in enumerate(placement)))


def _shape(tables: Tables, table: int) -> tuple[int, int]:
    checked = checked_count("table", table, 0)
    if checked >= len(tables):
        raise InvalidPlanError(f"There is no table {checked}; the tables are 0 to {len(tables) - 1}.")
    return int(tables.num_embeddings[checked]), int(tables.embedding_dim[checked])


def _blocks(tables: Tables, table: int, devices: range, empty: bool) -> tuple[Shard, ...]:
    rows, dim = _shape(tables, table)
    if not empty and not has_equal_blocks(rows, len(devices)):
        raise InvalidPlanError(
            f"Table {table} ({tables.names[table]}) has {rows} rows, so {len(devices)} blocks of "
            f"{rows_per_block(rows, len(devices))} leave some empty. Split it by columns, or do not split it."
        )
    size = rows_per_block(rows, len(devices))
    first = [min(index * size, rows) for index in range(len(devices))]
    return tuple(
        Shard(device, begin, min(size, rows - begin), 0, dim) for device, begin in zip(devices, first, strict=True)
    )
