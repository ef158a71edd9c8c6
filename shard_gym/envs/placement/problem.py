"""A task made ready for stepping: everything that stays the same during an episode, as padded arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray, placement_order
from shard_gym.errors import InvalidTaskError
from shard_gym.tasks import Task
from shard_gym.topology import Cluster

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass
class Problem:
    """N tasks as arrays. Axis T is padded to max_tables and runs in placement order; axis D is padded to max_devices.

    Attributes:
        order: (N, T) int64, the task's table that is placed at each step; 0 in the padding.
        table_loads: (N, T, K) float64, loads of the cost model; 0 in the padding.
        table_memory: (N, T) int64, bytes.
        table_features: (N, T, 21) float32, see `Tables.features`; 0 in the padding.
        table_costs: (N, T, 4) float32, ms of each phase with the table alone on a device.
        num_tables: (N,) int64, the true T.
        memory_cap: (N, D) int64, bytes; 0 where there is no device.
        cluster: the topologies, leading shape (N,).
        penalty_ms: (N,) float64, cost of a failed episode; above the cost of every valid placement.
        lower_bound_ms: (N,) float64, no placement costs less.
    """

    order: NDArray[np.int64]
    table_loads: FloatArray
    table_memory: NDArray[np.int64]
    table_features: NDArray[np.float32]
    table_costs: NDArray[np.float32]
    num_tables: NDArray[np.int64]
    memory_cap: NDArray[np.int64]
    cluster: Cluster
    penalty_ms: FloatArray
    lower_bound_ms: FloatArray

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.num_tables)

    @staticmethod
    def stack(problems: Sequence[Problem]) -> Problem:
        """Several problems of equal padding as one."""
        arrays = {
            f.name: np.concatenate([getattr(p, f.name) for p in problems])
            for f in fields(Problem)
            if f.name != "cluster"
        }
        clusters = [
            Cluster(**{f.name: getattr(p.cluster, f.name)[i] for f in fields(Cluster)})
            for p in problems
            for i in range(p.num_envs)
        ]
        return Problem(**arrays, cluster=Cluster.stack(clusters))

    def placement_of(self, assignment: NDArray[np.int64], row: int = 0) -> NDArray[np.int64]:
        """(T,) int64, row `row`'s assignment (in placement order) in the task's own order of tables."""
        count = int(self.num_tables[row])
        placement = np.empty(count, np.int64)
        placement[self.order[row, :count]] = assignment[row, :count]
        return placement


def prepare(task: Task, model: AdditiveCostModel, max_tables: int, max_devices: int) -> Problem:
    """`task` as a problem with N = 1.

    Raises:
        InvalidTaskError: the task has more tables or devices than the padding holds.
    """
    if task.num_tables > max_tables or task.num_devices > max_devices:
        raise InvalidTaskError(
            f"Task {task.name!r} has {task.num_tables} tables and {task.num_devices} devices, but this environment "
            f"holds at most {max_tables} tables and {max_devices} devices. Raise max_tables or max_devices."
        )
    loads = model.table_loads(task.tables, task.topology)
    order = placement_order(loads, task.topology, model)
    alone = model.single_table_phases(loads, task.topology)
    return Problem(
        order=_padded(order, max_tables),
        table_loads=_padded(loads[order], max_tables),
        table_memory=_padded(task.tables.memory_bytes[order], max_tables),
        table_features=_padded(task.tables.features()[order], max_tables),
        table_costs=_padded(alone[order].astype(np.float32), max_tables),
        num_tables=np.array([task.num_tables]),
        memory_cap=_padded(task.topology.memory_cap_bytes, max_devices),
        cluster=Cluster.stack([task.topology.cluster(max_devices)]),
        penalty_ms=np.array([model.penalty(loads, task.topology)]),
        lower_bound_ms=np.array([model.cost_bounds(loads, task.topology)[0]]),
    )


def _padded(array: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    """`array` with a leading axis of 1, its first axis filled with zeros up to `length`."""
    padded = np.zeros((1, length, *array.shape[1:]), array.dtype)
    padded[0, : len(array)] = array
    return padded
