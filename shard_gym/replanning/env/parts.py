"""The parts of a task's tables that plans place: their bytes and loads on each day."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidTablesError, InvalidTaskError
from shard_gym.common.text import format_bytes
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.hardware import Topology
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import ROW_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.replanning.drift.load_grid import LoadGrid, TableGrid
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.drift.tasks import HEADROOM_DAYS, HISTORY_DAYS, DriftTask
from shard_gym.tables import Tables
from shard_gym.tasks.forms import SplitTask


class Parts:
    """P parts of the tables of a task on m devices, without those on all devices; day 0 is the first of the history."""

    def __init__(self, task: DriftTask, form: SplitTask, model: AdditiveCostModel, devices: int) -> None:
        self.task, self.form, self.model = task, form, model
        whole = task.task.topology
        caps = whole.memory_cap_bytes
        some = caps if devices == whole.num_devices else np.full(devices, caps.min())
        self.topology: Topology = replace(whole, num_devices=devices, memory_cap_bytes=some)
        self._grids: dict[int, tuple[LoadGrid, list[tuple[IntArray, LoadGrid]]]] = {}

    @property
    def count(self) -> int:
        """P."""
        return len(self.form.table)

    def bytes_of(self, day: int) -> IntArray:
        """(P,) bytes, weights and optimizer state of each part on a day."""
        return self._bytes_with(self.task.drift.rows[day])

    def free(self, day: int) -> IntArray:
        """(m,) bytes for parts on a day: the memory caps less the tables that are on all devices."""
        return self._free(self.task.drift.rows[day])

    def bytes_ahead(self, day: int) -> tuple[IntArray, IntArray]:
        """(P,) `bytes_of` and (m,) `free` in `HEADROOM_DAYS` if rows grow on as in the three days before `day`."""
        rows = self.task.drift.rows[day]
        ahead = rows + np.maximum(rows - self.task.drift.rows[day - HISTORY_DAYS], 0.0) * (HEADROOM_DAYS / HISTORY_DAYS)
        return self._bytes_with(ahead), self._free(ahead)

    def fits(self, placements: IntArray, bytes_of: IntArray, free: IntArray) -> NDArray[np.bool_]:
        """(...) whether (..., P) placements leave every device within (m,) `free` bytes, with (P,) bytes of parts."""
        on = placements[..., None] == np.arange(self.topology.num_devices)
        return np.asarray(((on * bytes_of[:, None]).sum(axis=-2) <= free).all(axis=-1))

    @cached_property
    def known(self) -> Placement:
        """(P,) int64, a placement with room on all days, of any cost: largest part first, each where most is free."""
        days = range(self.task.drift.days)
        largest = np.max([self.bytes_of(day) for day in days], axis=0)
        free = np.min([self.free(day) for day in days], axis=0)
        left, placement = free.copy(), np.empty(self.count, np.int64)
        for part in np.argsort(-largest, kind="stable").tolist():
            placement[part] = left.argmax()
            left[placement[part]] -= largest[part]
        if left.min() < 0:
            raise InvalidTaskError(
                f"The tables of task {self.task.name!r} need up to {format_bytes(int(largest.sum()))}, and no "
                f"placement was found on {self.topology.num_devices} devices with {format_bytes(int(free.min()))} for "
                "them. Raise memory_cap_bytes."
            )
        return placement

    def loads(self, day: int, lookups: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(..., P, K) loads of the parts and (..., K) loads on every device, with (..., T) multiples of the lookups."""
        parts, spread = self._grids_of(day)
        everywhere = np.zeros((*lookups.shape[:-1], self.model.num_loads))
        for table, grid in spread:
            for loads in np.moveaxis(grid.at(lookups[..., table]), -2, 0):
                everywhere = self.model.add(everywhere, loads)
        return parts.at(lookups[..., self.form.table]), everywhere

    def highest_ms(self) -> float:
        """Ms that no placement costs more than, in any interval."""
        highest = self.task.drift.lookups.max(axis=0)
        worst = 0.0
        for day in range(self.task.drift.days) if _changes(self.task) else (0,):
            loads, everywhere = self.loads(day, highest)
            every = np.concatenate([loads, everywhere[None]])
            worst = max(worst, self.model.bounds(every, self.topology)[1])
        return worst

    def _bytes_with(self, rows: FloatArray) -> IntArray:
        return self._num_rows(rows)[self.form.table] * _row_bytes(self.form.task.tables)

    def _free(self, rows: FloatArray) -> IntArray:
        num_rows, row_bytes, used = self._num_rows(rows), _row_bytes(self.task.task.tables), 0
        for kind, some in self.form.spread.items():
            on_each = -(-num_rows[some] // self.topology.num_devices) if kind == ROW_WISE else num_rows[some]
            used += int((on_each * row_bytes[some]).sum())
        return np.asarray(self.topology.memory_cap_bytes - used)

    def _num_rows(self, rows: FloatArray) -> IntArray:
        """(T,) whole rows, as `drifted_tables` has them."""
        return np.maximum(np.rint(self.task.task.tables.num_embeddings * rows), 1.0).astype(np.int64)

    def _grids_of(self, day: int) -> tuple[LoadGrid, list[tuple[IntArray, LoadGrid]]]:
        """The grids of the parts, and of the tables on all devices with their numbers."""
        key = day if _changes(self.task) else 0
        if key not in self._grids:
            self._grids[key] = self._new_grids(key)
        return self._grids[key]

    def _new_grids(self, day: int) -> tuple[LoadGrid, list[tuple[IntArray, LoadGrid]]]:
        tables = _table_grid(self.task, day)
        parts = tables.select(self.form.table)
        dims = np.repeat(self.form.task.tables.embedding_dim, parts.needed.sum(axis=1))
        grid = parts.with_loads(self.model.loads(parts.tables.with_dims(dims), self.topology))
        spread = []
        for kind, some in self.form.spread.items():
            assert isinstance(self.model, AdditiveCostModel)  # `split_of` sees to it
            chosen = tables.select(some)
            shards = shard_tables(chosen.tables, kind, self.topology)
            spread.append((some, chosen.with_loads(self.model.loads(shards, self.topology, kind))))
        return grid, spread


def _changes(task: DriftTask) -> bool:
    """Whether tables differ from day to day in more than their lookups."""
    return bool(task.level.growth or task.level.pruned or task.level.skew)


@lru_cache(maxsize=64)
def _table_grid(task: DriftTask, day: int) -> TableGrid:
    """The tables of a day, counted from the first of the history; the same on any number of devices."""
    drift, seen = task.drift, task.drift.lookups
    if _changes(task):  # the windows of the day begin three days before it
        first = max(day - HISTORY_DAYS, 0) * INTERVALS_PER_DAY
        seen = seen[first : (day + 1) * INTERVALS_PER_DAY]
    lowest, highest = seen.min(axis=0), seen.max(axis=0)
    try:
        return TableGrid.of(task.task.tables, task.popularity, lowest, highest, drift.rows[day], drift.exponent[day])
    except InvalidTablesError as error:
        raise InvalidTaskError(
            f"The tables of task {task.name!r} drift beyond what tables may be: {error} Choose a weaker level, or "
            "smaller tables."
        ) from error


def _row_bytes(tables: Tables) -> IntArray:
    """(T,) bytes of a row, with its optimizer state."""
    return tables.memory_bytes // tables.num_embeddings
