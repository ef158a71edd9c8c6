"""Plans as a search changes them: the parts of each table, and the tables on many devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.items import Items
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base import AdditiveCostModel, loads_of_variants
from shard_gym.plans import (
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.column_levels import NONE, ColumnLevels
from shard_gym.plans.needs import SPLITS
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.plans.variants import variants_of
from shard_gym.tasks import Task

NOT_SPREAD = -1  # stands for a spread in a table whose parts have one device each


class Spread(NamedTuple):
    """A way to put a table on many devices: its variant, and the devices, (n,) int64; `host` for table_row_wise."""

    sharding_type: str
    variant: int
    devices: IntArray
    host: int = 0


class SplitOptions:
    """What the tables of a task can be split into, and what each part costs its device.

    Attributes:
        task: the task.
        model: the cost model; a one that supports splits unless tables stay whole.
        levels: the L levels that parts of columns have; the first L variants are theirs.
        loads: (T, V, K) float64, of one part of each variant (see `shard_gym.plans.variants.Variants`).
        memory: (T, V) int64, its bytes.
        legal: (T, V) bool, whether the table has the variant.
        part_ms: (T, L) float64, the cost of one part alone on a device, by its level.
        spreads: the ways to put a table on many devices.
    """

    def __init__(
        self,
        task: Task,
        model: AdditiveCostModel,
        sharding_types: Sequence[str] = (TABLE_WISE,),
        max_shards: int = 1,
        every_count: bool = False,
    ) -> None:
        """With `every_count`, all tables may be cut into every number of parts, see `part_counts`."""
        topology = task.topology
        max_shards = max_shards if COLUMN_WISE in sharding_types else 1
        self.levels = ColumnLevels.of(task.tables.embedding_dim, max_shards, every_count)
        variants = variants_of(task.tables, topology, sharding_types, levels=self.levels)
        self.task, self.model, self.cluster = task, model, topology.cluster()
        self.memory, self.legal = variants.memory, variants.legal
        if SPLITS in model.supports and variants.num_variants > 1:
            self.loads = loads_of_variants(model, variants, topology)
        else:
            self.loads = model.loads(task.tables, topology)[:, None]
        parts = self.loads[:, : len(self.levels)]
        self.part_ms = model.single_table_costs(parts.reshape(-1, parts.shape[-1]), topology).reshape(parts.shape[:2])
        every = np.arange(task.num_devices)
        self.spreads: list[Spread] = []
        for variant, name in enumerate(variants.sharding_types):
            if name in (ROW_WISE, DATA_PARALLEL):
                self.spreads.append(Spread(name, variant, every))
            elif name == TABLE_ROW_WISE and self.legal[:, variant].any():
                hosts = every.reshape(-1, int(variants.parts[variant]))
                self.spreads += [Spread(name, variant, devices, host) for host, devices in enumerate(hosts)]

    def can_halve(self, tables: IntArray, levels: IntArray) -> NDArray[np.bool_]:
        """Whether parts of `tables` with these levels can be halved; broadcasts."""
        return np.asarray(self.levels.halves[tables, levels, 0] != NONE)

    def fixed(self, spread: IntArray) -> tuple[FloatArray, IntArray]:
        """(D, K) loads of the tables that (T,) `spread` puts on many devices, and (D,) bytes that they leave."""
        model, free = self.model, self.task.topology.memory_cap_bytes.copy()
        fixed = np.zeros((self.task.num_devices, self.loads.shape[-1]))
        for number in np.unique(spread[spread != NOT_SPREAD]).tolist():
            _, variant, devices, _ = self.spreads[number]
            tables = np.flatnonzero(spread == number)
            loads = model.reduce(self.loads[tables, variant], np.zeros(len(tables), np.int64), 1)
            fixed[devices] = model.add(fixed[devices], loads)
            free[devices] -= self.memory[tables, variant].sum()
        return fixed, free


@dataclass(frozen=True, eq=False)
class SplitTables:
    """A plan: I parts of tables with a device each, and tables that are spread over many devices."""

    options: SplitOptions  # what is possible
    table: IntArray  # (I,) int64, the table of each part
    level: IntArray  # (I,) int64, which of `options.levels` it has
    device: IntArray  # (I,) int64, where it is
    spread: IntArray  # (T,) int64, which of `options.spreads` a table has, or NOT_SPREAD

    @staticmethod
    def whole(options: SplitOptions, placement: Placement) -> SplitTables:
        """No table is split; `placement` is (T,)."""
        count = options.task.num_tables
        nothing = np.full(count, NOT_SPREAD)
        return SplitTables(options, np.arange(count), np.zeros(count, np.int64), placement, nothing)

    @staticmethod
    def of_plan(options: SplitOptions, plan: ShardingPlan) -> SplitTables | None:
        """A valid plan of one group; None if it has a form that is not among the `options`."""
        table, level, device, spread = [], [], [], np.full(len(plan), NOT_SPREAD)
        for number, sharding in enumerate(plan.tables):
            kind, first = sharding.sharding_type, sharding.shards[0].device
            if kind not in (TABLE_WISE, COLUMN_WISE):
                ways = enumerate(options.spreads)
                same = [way for way, each in ways if each.sharding_type == kind and first == each.devices[0]]
                if not same or sharding.devices != options.spreads[same[0]].devices.tolist():
                    return None
                spread[number] = same[0]
                continue
            for shard in sharding.shards:
                of_width = options.levels.legal[number] & (options.levels.width[number] == shard.num_columns)
                if not of_width.any():
                    return None
                table.append(number)
                level.append(int(of_width.argmax()))
                device.append(shard.device)
        parts = np.array([table, level, device], np.int64)
        return SplitTables(options, parts[0], parts[1], parts[2], spread)

    @staticmethod
    def in_parts(options: SplitOptions, spread: IntArray, level: IntArray) -> SplitTables:
        """The tables that are not spread, in the forms of their (T,) `level`; no part has a device yet (0)."""
        table = np.flatnonzero(spread == NOT_SPREAD)
        table, level = options.levels.in_form(table, level[table])
        return SplitTables(options, table, level, np.zeros(len(table), np.int64), spread)

    @property
    def widths(self) -> IntArray:
        """(I,) int64, the columns of each part."""
        return self.options.levels.width[self.table, self.level]

    @property
    def key(self) -> bytes:
        """Equal for equal plans with their parts in one order."""
        return b"|".join(array.tobytes() for array in (self.table, self.level, self.device, self.spread))

    def items(self) -> Items:
        """The parts as items; the spread tables are fixed."""
        options, task = self.options, self.options.task
        fixed, free = None, task.topology.memory_cap_bytes
        if (self.spread != NOT_SPREAD).any():
            fixed, free = self.fixed()
        return Items(
            options.model,
            options.cluster,
            options.loads[self.table, self.level],
            options.memory[self.table, self.level],
            free,
            fixed,
        )

    def fixed(self) -> tuple[FloatArray, IntArray]:
        """(D, K) loads of the spread tables, and (D,) bytes that they leave."""
        return self.options.fixed(self.spread)

    def in_order(self) -> SplitTables:
        """The same plan with its parts in the order of the tables; without splits, `device` is then a placement."""
        order = np.lexsort((self.device, self.level, self.table))
        return replace(self, table=self.table[order], level=self.level[order], device=self.device[order])

    def moved(self, device: IntArray) -> SplitTables:
        """The same parts on other devices."""
        return replace(self, device=device)

    def halved(self, part: int, device: int) -> SplitTables:
        """The wider half of `part` stays, the other one, a new last part, goes to `device`."""
        level = self.level.copy()
        level[part], other = self.options.levels.halves[self.table[part], level[part]]
        return replace(
            self,
            table=np.append(self.table, self.table[part]),
            level=np.append(level, other),
            device=np.append(self.device, device),
        )

    def merged(self, part: int, other: int, device: int) -> SplitTables:
        """Two parts of a table that are halves of one become that one, on `device`."""
        level, where = self.level.copy(), self.device.copy()
        level[part] = self.options.levels.merged(self.table[part], level[part], level[other])
        where[part] = device
        keep = np.arange(len(level)) != other
        return replace(self, table=self.table[keep], level=level[keep], device=where[keep])

    def spread_over(self, table: int, number: int) -> SplitTables:
        """`table` is spread instead of what it is."""
        keep, spread = self.table != table, self.spread.copy()
        spread[table] = number
        return SplitTables(self.options, self.table[keep], self.level[keep], self.device[keep], spread)

    def gathered(self, table: int, device: int) -> SplitTables:
        """A spread table is whole again, a new last part on `device`."""
        spread = self.spread.copy()
        spread[table] = NOT_SPREAD
        return SplitTables(
            self.options,
            np.append(self.table, table),
            np.append(self.level, 0),
            np.append(self.device, device),
            spread,
        )

    def plan(self) -> ShardingPlan:
        """As a plan for anybody: each part is a shard."""
        return ShardingPlan(tuple(self._sharding(table) for table in range(self.options.task.num_tables)))

    def _sharding(self, table: int) -> TableSharding:
        tables, topology = self.options.task.tables, self.options.task.topology
        if self.spread[table] != NOT_SPREAD:
            spread = self.options.spreads[self.spread[table]]
            if spread.sharding_type == TABLE_ROW_WISE:
                return table_row_wise(tables, table, topology, spread.host)
            return {ROW_WISE: row_wise, DATA_PARALLEL: data_parallel}[spread.sharding_type](tables, table, topology)
        parts = np.flatnonzero(self.table == table)
        if len(parts) == 1:
            return table_wise(tables, table, int(self.device[parts[0]]))
        return column_wise(tables, table, self.device[parts].tolist(), self.widths[parts].tolist())
