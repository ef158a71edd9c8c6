"""The numbers behind the placement explorer: what each placement costs where, rounded for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.cost_models import AdditiveCostModel
from shard_gym.explain import critical_devices
from shard_gym.leaderboard.site.data import TaskData
from shard_gym.placement import check_placement, memory_used
from shard_gym.tasks import Task

DIGITS = 5
"""Significant digits of costs; the page shows four."""

SCORE_DIGITS = 9
"""The same of an entry's scores: rounded twice, the last digit shown would sometimes be another than elsewhere."""

TABLE_DIGITS = 4
"""The same of single tables, most of what a page loads."""

MIB = 2**20


class TaskSheet(TypedDict):
    """A task as the page shows it, and what does not depend on a placement; lists of T tables or D devices.

    Attributes:
        name: of the task.
        devices_per_host: device d stands in host d // devices_per_host.
        caps_mib: (D) memory caps, MiB.
        best_known_ms: see `TaskData`.
        lower_bound_ms: see `TaskData`.
        tables: (T) names.
        costs_ms: (T) cost of each table alone on a device, ms.
        memory_mib: (T) weights and optimizer state, MiB.
        dims: (T) columns.
        rows: (T) rows.
        pooling: (T) mean lookups for each sample.
    """

    name: str
    devices_per_host: int
    caps_mib: list[float]
    best_known_ms: float | None
    lower_bound_ms: float | None
    tables: list[str]
    costs_ms: list[float]
    memory_mib: list[float]
    dims: list[int]
    rows: list[int]
    pooling: list[float]


class PlacementSheet(TypedDict):
    """A valid placement taken apart.

    Attributes:
        cost_ms: under the cost model, ms.
        phases_ms: D lists of four, ms (`shard_gym.cost_models.PHASES`).
        critical: for each of the four phases, the devices it waits for.
        memory_mib: (D) used, MiB.
        placement: (T) device of each table.
    """

    cost_ms: float
    phases_ms: list[list[float]]
    critical: list[list[int]]
    memory_mib: list[float]
    placement: list[int]


def significant(values: ArrayLike, digits: int = DIGITS) -> NDArray[np.float64]:
    """`values` rounded to so many significant digits, as the nearest float64 to that decimal number."""
    given = np.asarray(values, np.float64)
    return np.array([float(f"{value:.{digits}g}") for value in given.ravel()]).reshape(given.shape)


def shortened(value: float | None, digits: int = DIGITS) -> float | None:
    """One number rounded as `significant` does; None stays."""
    return None if value is None else float(significant(value, digits))


class Explorer:
    """One task under one cost model; its tables are costed once, however many placements are taken apart."""

    def __init__(self, task: Task, model: AdditiveCostModel) -> None:
        self.task = task
        self.model = model
        self._loads = model.table_loads(task.tables, task.topology)
        self._cluster = task.topology.cluster()

    def sheet(self, known: TaskData) -> TaskSheet:
        """The task, with the costs known of it."""
        tables, topology = self.task.tables, self.task.topology
        return {
            "name": self.task.name,
            "devices_per_host": topology.devices_per_host,
            "caps_mib": _numbers(topology.memory_cap_bytes / MIB),
            "best_known_ms": shortened(known["best_known_ms"]),
            "lower_bound_ms": shortened(known["lower_bound_ms"]),
            "tables": list(tables.names),
            "costs_ms": _numbers(self.model.single_table_costs(self._loads, topology), TABLE_DIGITS),
            "memory_mib": _numbers(tables.memory_bytes / MIB, TABLE_DIGITS),
            "dims": [int(dim) for dim in tables.embedding_dim],
            "rows": [int(rows) for rows in tables.num_embeddings],
            "pooling": _numbers(tables.pooling_factor, TABLE_DIGITS),
        }

    def take_apart(self, placement: Sequence[int] | None) -> PlacementSheet | None:
        """A placement; None stays None.

        Raises:
            InvalidPlacementError: it is not valid (see `check_placement`).
        """
        if placement is None:
            return None
        task = self.task
        checked = check_placement(placement, task.tables, task.topology)
        phases, cost = self.model.costs(self.model.reduce(self._loads, checked, task.num_devices), self._cluster)
        return {
            "cost_ms": float(significant(cost)),
            "phases_ms": [_numbers(row) for row in phases],
            "critical": [np.flatnonzero(column).tolist() for column in critical_devices(phases).T],
            "memory_mib": _numbers(memory_used(checked, task.tables, task.num_devices) / MIB),
            "placement": checked.tolist(),
        }


def _numbers(values: ArrayLike, digits: int = DIGITS) -> list[float]:
    """Rounded numbers, whole ones without ".0": they are most of what a page loads."""
    return [int(value) if value.is_integer() else value for value in significant(values, digits).tolist()]
