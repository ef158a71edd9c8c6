"""Plans as a search changes them: the parts of each table, and the tables on many devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.items import Items
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base import AdditiveCostModel, loads_of_variants
from shard_gym.plans import (
    SHARDING_TYPES,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.column_levels import NONE, ColumnLevels
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.needs import SPLITS
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.plans.variants import Variants, default_max_shards, variants_of
from shard_gym.tasks import Task

NOT_SPREAD = -1  # stands for a spread in a table whose parts have one device each

KEPT = 512  # loads of spread tables that are kept


class Spread(NamedTuple):
    """A way to put a table on many devices: its variant, and the devices, (n,) int64; `host` for table_row_wise."""

    sharding_type: str
    variant: int
    devices: IntArray
    host: int = 0


NO_ROOM_BYTES = 2**46
"""Bytes of a form that constraints do not permit: it fits no device."""


def _units(task: Task) -> tuple[Task, list[IntArray] | None]:
    """The task in which tables that stay together are one, the first; and the tables of each, None if all are single.

    The loads and the memory of the other tables are those of their first one (`SplitOptions`).
    """
    limits = task.constraints
    if limits is None or not limits.together:
        return task, None
    first = {table: members[0] for members in limits.together for table in members}
    units = [np.array(limits.companions.get(table, (table,))) for table in range(task.num_tables)]
    kept = [table for table in range(task.num_tables) if first.get(table, table) == table]
    number = {table: kept.index(first.get(table, table)) for table in range(task.num_tables)}
    sets = [tuple(dict.fromkeys(number[table] for table in members)) for members in limits.apart]
    devices = np.stack([limits.devices[units[table]].all(axis=0) for table in kept])
    types = limits.sharding_types[kept]
    single = np.array([len(units[table]) == 1 for table in kept])
    types[~single] = [name == TABLE_WISE for name in SHARDING_TYPES]
    apart = tuple(each for each in sets if len(each) > 1)
    least_bytes = None if limits.least_bytes is None else limits.least_bytes[kept]
    own = Constraints(
        types,
        limits.min_columns[kept],
        devices,
        apart=apart,
        least_bytes=least_bytes,
        empty_blocks=limits.empty_blocks,
    )
    units = [units[table] for table in kept]
    return Task(task.name, task.tables.select(kept), task.topology, splittable=True, constraints=own), units


class SplitOptions:
    """What the tables of a task can be split into, and what each part costs its device.

    Tables that stay together are one here, which is never split.

    Attributes:
        task: the task, that of `units`.
        origin: the task as it was given.
        units: the tables of the origin that each table of the task stands for; None if each is itself.
        model: the cost model; a one that supports splits unless tables stay whole.
        levels: the L levels that parts of columns have; the first L variants are theirs.
        loads: (T, V, K) float64, of one part of each variant (see `shard_gym.plans.variants.Variants`).
        memory: (T, V) int64, its bytes.
        legal: (T, V) bool, whether the table has the variant.
        part_ms: (T, L) float64, the cost of one part alone on a device, by its level.
        spreads: the ways to put a table on many devices.
        empty_blocks: whether blocks of rows may be empty (`Constraints`).
        sharding_types, every_count: as they were given.
        max_shards: column shards of a table at most; `default_max_shards` where none were given.
    """

    def __init__(
        self,
        task: Task,
        model: AdditiveCostModel,
        sharding_types: Sequence[str] = (TABLE_WISE,),
        max_shards: int | None = None,
        every_count: bool = False,
    ) -> None:
        """With `every_count`, all tables may be cut into every number of parts, see `part_counts`."""
        if max_shards is None:
            max_shards = default_max_shards(task.tables, int(task.topology.memory_cap_bytes.max()))
        self.sharding_types, self.max_shards, self.every_count = tuple(sharding_types), max_shards, every_count
        topology, self.origin = task.topology, task
        task, self.units = _units(task)
        max_shards = max_shards if COLUMN_WISE in sharding_types else 1
        self.levels = ColumnLevels.of(task.tables.embedding_dim, max_shards, every_count)
        self.empty_blocks = task.constraints is not None and task.constraints.empty_blocks
        variants = variants_of(
            task.tables, topology, sharding_types, levels=self.levels, empty_blocks=self.empty_blocks
        ).under(task.constraints)
        self.task, self.model, self.cluster = task, model, topology.cluster()
        self.memory, self.legal = variants.memory, variants.legal
        if SPLITS in model.supports and variants.num_variants > 1:
            self.loads = loads_of_variants(model, variants, topology)
        else:
            self.loads = model.loads(task.tables, topology)[:, None]
        if task.constraints is not None:
            self._constrain(task.constraints, variants)
        parts = self.loads[:, : len(self.levels)]
        self.part_ms = model.single_table_costs(parts.reshape(-1, parts.shape[-1]), topology).reshape(parts.shape[:2])
        self._fixed: dict[bytes, FloatArray] = {}  # the loads of `fixed` by its argument
        every = np.arange(task.num_devices)
        self.spreads: list[Spread] = []
        for variant, name in enumerate(variants.sharding_types):
            if name in (ROW_WISE, DATA_PARALLEL):
                self.spreads.append(Spread(name, variant, every))
            elif name == TABLE_ROW_WISE and self.legal[:, variant].any():
                hosts = every.reshape(-1, int(variants.parts[variant]))
                self.spreads += [Spread(name, variant, devices, host) for host, devices in enumerate(hosts)]

    def under(self, model: AdditiveCostModel) -> SplitOptions:
        """The same options under another model."""
        return SplitOptions(self.origin, model, self.sharding_types, self.max_shards, self.every_count)

    def _constrain(self, limits: Constraints, variants: Variants) -> None:
        """Count the bytes that constraints ask for, join tables that stay together, and leave out illegal forms."""
        forms = zip(variants.sharding_types, variants.tables, self.memory.T, strict=True)
        own = [limits.bytes_of(name, form.embedding_dim, memory) for name, form, memory in forms]
        self.memory = np.stack(own, axis=1)
        if self.units is not None:
            self._join()
        self.memory = np.where(self.legal, self.memory, NO_ROOM_BYTES)
        self.levels = self.levels.restricted(self.legal[:, : len(self.levels)])

    def _join(self) -> None:
        """Give each table that stands for several their loads and bytes."""
        model, origin, units = self.model, self.origin, self.units
        assert units is not None
        loads, memory = model.loads(origin.tables, origin.topology), self.memory.copy()
        self.loads = self.loads.copy()
        whole, limits = origin.tables.memory_bytes, origin.constraints
        if limits is not None:
            whole = limits.bytes_of(TABLE_WISE, origin.tables.embedding_dim, whole)
        for table, members in enumerate(units):
            if len(members) > 1:
                together = model.reduce(loads[members], np.zeros(len(members), np.int64), 1)[0]
                self.loads[table, 0, : len(together)] = together
                memory[table, 0] = whole[members].sum()
        self.memory = memory

    @cached_property
    def may_spread(self) -> NDArray[np.bool_]:
        """(T, S) bool, whether a table may be put on many devices in each of the `spreads`."""
        limits = self.task.constraints
        may = self.legal[:, [spread.variant for spread in self.spreads]]
        if limits is not None and self.spreads:
            may = may & np.stack([limits.may_spread(each.sharding_type, each.devices) for each in self.spreads], axis=1)
        return may

    def ways(self, table: int) -> list[int]:
        """The numbers of the `spreads` that the table may have."""
        return self._ways[table]

    @cached_property
    def _ways(self) -> list[list[int]]:
        return [may.nonzero()[0].tolist() for may in self.may_spread]

    def open_to(self, table: int, held: IntArray, on: IntArray) -> NDArray[np.bool_] | bool:
        """(D,) bool, the devices that may hold a part of `table` beside parts of tables `held`, or True for all."""
        limits = self.task.constraints
        return True if limits is None else limits.open_to([table], held, on)

    def can_halve(self, tables: IntArray, levels: IntArray) -> NDArray[np.bool_]:
        """Whether parts of `tables` with these levels can be halved; broadcasts."""
        return np.asarray(self.levels.halves[tables, levels, 0] != NONE)

    def fixed(self, spread: IntArray) -> tuple[FloatArray, IntArray]:
        """(D, K) loads of the tables that (T,) `spread` puts on many devices, and (D,) bytes that they leave."""
        model, free = self.model, self.task.topology.memory_cap_bytes.copy()
        key = spread.tobytes()
        known = self._fixed.get(key)
        fixed = np.zeros((self.task.num_devices, self.loads.shape[-1])) if known is None else known.copy()
        for number in sorted({*spread.tolist()} - {NOT_SPREAD}):
            _, variant, devices, _ = self.spreads[number]
            tables = (spread == number).nonzero()[0]
            if known is None:
                loads = model.reduce(self.loads[tables, variant], np.zeros(len(tables), np.int64), 1)
                fixed[devices] = model.add(fixed[devices], loads)
            free[devices] -= self.memory[tables, variant].sum()
        if known is None:
            if len(self._fixed) >= KEPT:
                self._fixed.clear()
            self._fixed[key] = fixed.copy()
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
        """No table is split; `placement` is that of the tables of the origin."""
        count = options.task.num_tables
        if options.units is not None:
            placement = placement[[members[0] for members in options.units]]
        nothing = np.full(count, NOT_SPREAD)
        return SplitTables(options, np.arange(count), np.zeros(count, np.int64), placement, nothing)

    @staticmethod
    def of_plan(options: SplitOptions, plan: ShardingPlan) -> SplitTables | None:
        """A valid plan of one group; None if it has a form that is not among the `options`."""
        shardings: Sequence[TableSharding] = plan.tables
        if options.units is not None:
            shardings = [plan.tables[members[0]] for members in options.units]
        table, level, device, spread = [], [], [], np.full(len(shardings), NOT_SPREAD)
        for number, sharding in enumerate(shardings):
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
            self.table,
            task.constraints,
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

    @property
    def placement(self) -> Placement:
        """(T,) int64, the devices of the whole tables of the origin, of a plan in order that splits none."""
        units = self.options.units
        if units is None:
            return self.device
        placement = np.empty(self.options.origin.num_tables, np.int64)
        for members, device in zip(units, self.device.tolist(), strict=True):
            placement[members] = device
        return placement

    def plan(self) -> ShardingPlan:
        """As a plan for anybody: each part is a shard."""
        shardings, units = [self._sharding(table) for table in range(self.options.task.num_tables)], self.options.units
        if units is None:
            return ShardingPlan(tuple(shardings))
        origin, found = self.options.origin, dict[int, TableSharding]()
        for members, sharding in zip(units, shardings, strict=True):
            found[int(members[0])] = sharding
            for member in members[1:].tolist():
                found[member] = table_wise(origin.tables, member, sharding.shards[0].device)
        return ShardingPlan(tuple(found[table] for table in range(origin.num_tables)))

    def _sharding(self, table: int) -> TableSharding:
        tables, topology = self.options.task.tables, self.options.task.topology
        if self.spread[table] != NOT_SPREAD:
            spread, empty = self.options.spreads[self.spread[table]], self.options.empty_blocks
            if spread.sharding_type == TABLE_ROW_WISE:
                return table_row_wise(tables, table, topology, spread.host, empty)
            if spread.sharding_type == ROW_WISE:
                return row_wise(tables, table, topology, empty)
            return data_parallel(tables, table, topology)
        parts = np.flatnonzero(self.table == table)
        if len(parts) == 1:
            return table_wise(tables, table, int(self.device[parts[0]]))
        return column_wise(tables, table, self.device[parts].tolist(), self.widths[parts].tolist())


def on_emptiest(
    options: SplitOptions,
    spread: IntArray,
    ways: list[int],
    tables: IntArray,
    weight: FloatArray,
    held: FloatArray | None = None,
) -> None:
    """Give each of `tables`, the heaviest by (T,) `weight` first, the one of the spreads `ways` that holds least.

    They hold (ways,) `held` before, by default nothing.
    """
    held = np.zeros(len(ways)) if held is None else held.copy()
    may = options.may_spread[:, ways]
    for table in tables[np.argsort(-weight[tables], kind="stable")].tolist():
        host = int(np.where(may[table], held, np.inf).argmin())
        spread[table] = ways[host]
        held[host] += weight[table]
