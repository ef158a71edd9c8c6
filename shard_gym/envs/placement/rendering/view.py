"""Views: placements and sharding plans, complete or under way, with their costs, as pictures and texts show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidPlacementError
from shard_gym.common.text import format_bytes, format_percent
from shard_gym.cost_models.analytical.traffic import total_sent_bytes
from shard_gym.cost_models.base import critical_devices
from shard_gym.plans import ShardingPlan, TableSharding, plan_memory_used, plan_of_placement, table_wise
from shard_gym.plans.hbm_rows import split_bytes, split_of_plan
from shard_gym.plans.placement import memory_used
from shard_gym.plans.text import describe_plan, describe_sharding
from shard_gym.tasks import Task

MAX_ROWS = 16  # devices shown one by one; of more, the most loaded
MAX_SPLITS = 8  # split tables, or those with rows in host memory, shown one by one; of more, the largest


@dataclass(frozen=True, eq=False)
class PlacementView:
    """A placement, complete or under way, and what it costs."""

    unit: ClassVar[str] = "tables"  # the word for what is counted on each device

    task: Task
    # (T,) int64, device of each table in the task's own order; -1 for a table that is not placed.
    placement: NDArray[np.int64]
    phases_ms: FloatArray  # (D, 4) float64, ms each device takes in each phase (`shard_gym.cost_models.PHASES`)
    cost_ms: float  # cost of the tables placed so far in ms
    failure: str = ""  # why the placement failed, a sentence; empty if it did not
    next_table: int = -1  # the table to be placed next; -1 if there is none or the order is not known
    own_caps: NDArray[np.int64] | None = None  # (D,) int64, memory caps in bytes where not those of the task
    # Rows for `splits` in a picture, and devices for which a frame has room, at least; so all frames of an environment
    # have one size.
    split_rows: int = 0
    frame_devices: int = 0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.phases_ms).all() and np.isfinite(self.cost_ms)):
            raise InvalidPlacementError(f"The costs of a view of {self.task!r} must be finite numbers of ms.")

    @property
    def unplaced(self) -> NDArray[np.int64]:
        """Indices of the tables without a device, int64, ascending."""
        return np.flatnonzero(self.placement < 0)

    @property
    def tables_per_device(self) -> NDArray[np.int64]:
        """(D,) int64, tables on each device."""
        return np.bincount(self.placement[self.placement >= 0], minlength=self.task.num_devices).astype(np.int64)

    @property
    def memory_used(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of the tables on each device."""
        placed = np.flatnonzero(self.placement >= 0)
        if not placed.size:
            return np.zeros(self.task.num_devices, np.int64)
        return memory_used(self.placement[placed], self.task.tables.select(placed), self.task.num_devices)

    @property
    def shardings(self) -> dict[int, TableSharding]:
        """Those of the tables that are placed, by the number of the table."""
        placed = np.flatnonzero(self.placement >= 0).tolist()
        return {table: table_wise(self.task.tables, table, int(self.placement[table])) for table in placed}

    @cached_property
    def hbm_rows(self) -> dict[int, list[int]]:
        """Rows in HBM of each shard of the tables that are placed, by the number of the table; of tasks with host
        memory, otherwise empty."""
        found, topology = self.shardings, self.task.topology
        if topology.host is None or not found:
            return {}
        plan = ShardingPlan(tuple(found.values()))
        rows = iter(split_of_plan(plan, self.task.tables.select(list(found)), topology).hbm_rows.tolist())
        return {table: [next(rows) for _ in sharding.shards] for table, sharding in found.items()}

    def host_bytes(self, table: int) -> list[int]:
        """Bytes of each shard of a placed table that are in host memory."""
        own, shards = self.task.tables.workload.select(np.array([table])), self.shardings[table].shards
        each = int(np.max(split_bytes(own)))
        rows = self.hbm_rows.get(table, [shard.num_rows for shard in shards])
        return [each * shard.num_columns * (shard.num_rows - kept) for shard, kept in zip(shards, rows, strict=True)]

    @property
    def host_memory_used(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of the tables of each device that are in host memory."""
        used = np.zeros(self.task.num_devices, np.int64)
        for table in self.hbm_rows:
            np.add.at(used, self.shardings[table].devices, self.host_bytes(table))
        return used

    @property
    def memory_cap_bytes(self) -> NDArray[np.int64]:
        """(D,) int64, the memory cap of each device."""
        return self.task.topology.memory_cap_bytes if self.own_caps is None else self.own_caps

    @property
    def sent_bytes(self) -> FloatArray:
        """(D, 2) float64, bytes an iteration that each device sends inside its domain, and to others."""
        placed = np.flatnonzero(self.placement >= 0)
        if not placed.size:
            return np.zeros((self.task.num_devices, 2))
        plan = plan_of_placement(self.placement[placed], self.task.tables.select(placed))
        return total_sent_bytes(plan, self.task.tables.select(placed), self.task.topology)

    @property
    def spans_ms(self) -> FloatArray:
        """(4,) float64, how long each phase lasts: as long as its slowest device takes."""
        return np.asarray(np.maximum(self.phases_ms, 0.0).max(axis=0))

    @property
    def slowest(self) -> NDArray[np.bool_]:
        """(D, 4) bool, the slowest devices of each phase; none for a phase that takes no time."""
        return critical_devices(self.phases_ms)

    def most_loaded(self) -> NDArray[np.int64]:
        """At most `MAX_ROWS` devices, ascending: the slowest of each phase first, then those busy for longest."""
        busy = self.phases_ms.sum(axis=1)
        busy[self.phases_ms.argmax(axis=0)] = np.inf
        return np.sort(np.argsort(-busy, kind="stable")[:MAX_ROWS])

    def memory_unit(self) -> tuple[str, int]:
        """GiB or MiB, whichever suits the devices, and its bytes."""
        return ("GiB", 2**30) if self.memory_cap_bytes.max() >= 2**30 else ("MiB", 2**20)

    def splits(self) -> list[tuple[int, str]]:
        """The tables whose shards are shown, and a line about each: with host memory those with most bytes there,
        otherwise the largest split ones."""
        away = {table: sum(self.host_bytes(table)) for table in self.hbm_rows}
        chosen = [table for table in away if away[table]] if self.task.topology.host is not None else self._split_tables
        size, names = self.task.tables.memory_bytes, self.task.tables.names
        largest = sorted(chosen, key=lambda table: -away.get(table, int(size[table])))[:MAX_SPLITS]
        return [
            (
                table,
                f"{shorten(names[table], 24)} ({format_bytes(int(size[table]))}): {self._in_hbm(table)}"
                f"{describe_sharding(self.shardings[table])}",
            )
            for table in largest
        ]

    @property
    def _split_tables(self) -> list[int]:
        return []

    def _in_hbm(self, table: int) -> str:
        """Which share of its rows' bytes is in HBM, for `splits`."""
        if table not in self.hbm_rows:
            return ""
        shards = self.shardings[table].shards
        cells = sum(shard.num_rows * shard.num_columns for shard in shards)
        kept = sum(rows * shard.num_columns for rows, shard in zip(self.hbm_rows[table], shards, strict=True))
        return f"{format_percent(kept / cells)} in HBM; "

    def describe_unplaced(self) -> str:
        """One line: how many tables have no device yet, their bytes, and the next one (or the largest)."""
        left, tables = self.unplaced, self.task.tables
        total = format_bytes(int(tables.memory_bytes.sum()))
        if not left.size:
            return f"All {len(tables)} tables are placed ({total})"
        if self.next_table >= 0:
            word, shown = "next", self.next_table
        else:
            word, shown = "largest", int(left[tables.memory_bytes[left].argmax()])
        return (
            f"{left.size} of {len(tables)} tables not placed yet ({format_bytes(int(tables.memory_bytes[left].sum()))} "
            f"of {total}); {word}: {shorten(tables.names[shown], 28)} ({format_bytes(int(tables.memory_bytes[shown]))})"
        )


@dataclass(frozen=True, eq=False)
class PlanView(PlacementView):
    """A checked sharding plan and what it costs, shown like a placement; `placement` is that of the first shards."""

    unit: ClassVar[str] = "shards"

    # A table without shards is not placed yet
    plan: ShardingPlan = field(default_factory=lambda: ShardingPlan(()))

    @property
    @override
    def tables_per_device(self) -> NDArray[np.int64]:
        return np.bincount(self.plan.shard_arrays()[:, 1], minlength=self.task.num_devices).astype(np.int64)

    @property
    @override
    def memory_used(self) -> NDArray[np.int64]:
        return plan_memory_used(self.plan, self.task.tables, self.task.num_devices)

    @property
    @override
    def sent_bytes(self) -> FloatArray:
        return total_sent_bytes(self.plan, self.task.tables, self.task.topology)

    @override
    def describe_unplaced(self) -> str:
        return super().describe_unplaced() if self.unplaced.size else describe_plan(self.plan)

    @property
    @override
    def shardings(self) -> dict[int, TableSharding]:
        return {table: sharding for table, sharding in enumerate(self.plan.tables) if sharding.shards}

    @property
    @override
    def _split_tables(self) -> list[int]:
        return self.plan.split_tables


def shorten(name: str, width: int) -> str:
    """`name` in at most `width` characters; characters that move a cursor or break a line become "?"."""
    safe = "".join(char if char.isprintable() else "?" for char in name)
    return safe if len(safe) <= width else f"{safe[: width - 9]}...{safe[-6:]}"
