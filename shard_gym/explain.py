"""Explanation of a placement: each device's phases, memory and tables, and the gain of moving a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.cost_models import additive_estimate, make_cost_model
from shard_gym.cost_models.base import AdditiveCostModel, CostModel, FloatArray
from shard_gym.placement import Placement, check_placement, memory_used
from shard_gym.tasks import Task
from shard_gym.topology import Topology

SAME = 1e-9
"""Devices whose times differ by less than this share are equally slow."""


@dataclass(frozen=True)
class Move:
    """One table that goes to another device while all others stay; in a plan, one shard.

    Attributes:
        table: index of the table, or of the shard.
        source: the device it is on.
        target: the device it would go to.
        gain_ms: cost now less the cost afterwards, in ms; negative if the placement gets worse.
    """

    table: int
    source: int
    target: int
    gain_ms: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """The costs of a placement of T tables on D devices.

    Attributes:
        task: the task.
        placement: (T,) int64, the placement.
        cost_model: fingerprint of the model that costed it.
        phases_ms: (D, 4) float64, ms each device takes in each phase (`shard_gym.cost_models.PHASES`).
        total_ms: its cost.
        lower_bound_ms: no placement costs less; None under a model that is not additive, which knows no bound.
        best_known_ms: cost of the best placement known; None if none is.
        single_table_ms: (T,) float64, cost of each table alone; estimated under a model that is not additive.
        moves: for each table on a critical device that fits elsewhere, its best move; the largest gain first. None
            under a model that is not additive: the estimates of another model do not fit its costs.
    """

    task: Task
    placement: Placement
    cost_model: str
    phases_ms: FloatArray
    total_ms: float
    lower_bound_ms: float | None
    best_known_ms: float | None
    single_table_ms: FloatArray
    moves: tuple[Move, ...] | None

    @property
    def critical(self) -> NDArray[np.bool_]:
        """(D, 4) bool, the devices each phase waits for; none for a phase that takes no time."""
        return critical_devices(self.phases_ms)

    @property
    def memory_used(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of the tables on each device."""
        return memory_used(self.placement, self.task.tables, self.task.num_devices)

    @property
    def tables_per_device(self) -> NDArray[np.int64]:
        """(D,) int64, tables on each device."""
        return np.bincount(self.placement, minlength=self.task.num_devices).astype(np.int64)

    def tables_on(self, device: int) -> NDArray[np.int64]:
        """Indices (int64) of the tables on `device`, the costliest first."""
        tables = np.flatnonzero(self.placement == device)
        return tables[np.argsort(-self.single_table_ms[tables], kind="stable")]

    def busiest(self, count: int) -> NDArray[np.int64]:
        """At most `count` devices (int64), ascending.

        Chosen first is one critical device of each phase, then the other critical ones, then those busy for longest.
        """
        slowest = np.zeros(self.task.num_devices, np.bool_)
        slowest[self.phases_ms.argmax(axis=0)] = True
        order = np.lexsort((-self.phases_ms.sum(axis=1), ~self.critical.any(axis=1), ~slowest))
        return np.sort(order[: max(count, 0)])


def explain(
    task: Task,
    placement: ArrayLike,
    model: str | CostModel,
    *,
    best_known_ms: float | None = None,
    lower_bound_ms: float | None = None,
) -> Explanation:
    """Explain `placement` of `task` under `model`.

    Args:
        task: the task.
        placement: (T,) ints, the device of each table.
        model: the cost model, or its name. If it is not additive, such as a measured one, the costs of single tables
            are those of the analytical model, and there are no moves.
        best_known_ms: cost of the best placement known, in ms, under the same model.
        lower_bound_ms: a lower bound known of the task, in ms, under the same model; a higher one of the model counts.

    Raises:
        InvalidPlacementError: the placement is not valid (see `check_placement`).
        InvalidOptionError, UnknownNameError: there is no such cost model.
    """
    model = make_cost_model(model)
    checked = check_placement(placement, task.tables, task.topology)
    additive = additive_estimate(model)
    loads = additive.table_loads(task.tables, task.topology)
    estimate = model.estimate(checked, task.tables, task.topology)
    own_bound_ms = additive.cost_bounds(loads, task.topology)[0] if additive is model else None
    return Explanation(
        task=task,
        placement=checked,
        cost_model=model.fingerprint,
        phases_ms=estimate.phases_ms,
        total_ms=estimate.total_ms,
        lower_bound_ms=max(filter(None, (own_bound_ms, lower_bound_ms)), default=None),
        best_known_ms=best_known_ms,
        single_table_ms=additive.single_table_costs(loads, task.topology),
        moves=best_moves(task, checked, additive) if additive is model else None,
    )


def critical_devices(phases_ms: FloatArray) -> NDArray[np.bool_]:
    """(D, 4) bool, the slowest device or devices of each phase, from (D, 4) ms; none where no device takes any time."""
    slowest = phases_ms.max(axis=0)
    return np.asarray((phases_ms >= slowest * (1.0 - SAME)) & (slowest > 0.0))


def best_moves(task: Task, placement: Placement, model: AdditiveCostModel) -> tuple[Move, ...]:
    """The best move of each table on a critical device, the largest gain first, without those that fit nowhere else.

    Tables of other devices are not tried, because moving them makes no critical device faster.
    `placement` must be valid.
    """
    loads = model.table_loads(task.tables, task.topology)
    return best_moves_of(loads, placement, task.tables.memory_bytes, task.topology, model)


def best_moves_of(
    loads: FloatArray,
    devices: NDArray[np.int64],
    memory: NDArray[np.int64],
    topology: Topology,
    model: AdditiveCostModel,
    movable: NDArray[np.bool_] | None = None,
) -> tuple[Move, ...]:
    """`best_moves` of S tables or shards with (S, K) loads and (S,) bytes on (S,) devices; of the movable ones."""
    cluster, num_devices = topology.cluster(), topology.num_devices
    device_loads = model.reduce(loads, devices, num_devices)
    phases, cost = model.costs(device_loads, cluster)
    cost_ms = float(cost)
    used = np.zeros(num_devices, np.int64)
    np.add.at(used, devices, memory)
    free = topology.memory_cap_bytes - used
    tried_ones = np.isin(devices, np.flatnonzero(critical_devices(phases).any(axis=1)))
    moves = []
    for one in np.flatnonzero(tried_ones if movable is None else tried_ones & movable):
        source = devices[one]
        targets = np.flatnonzero((free >= memory[one]) & (np.arange(num_devices) != source))
        if not targets.size:
            continue
        # A maximum cannot be subtracted, so the loads of the source are computed from those that stay.
        staying = np.setdiff1d(np.flatnonzero(devices == source), [one])
        tried = np.repeat(device_loads[None], targets.size, axis=0)
        tried[:, source] = model.reduce(loads[staying], np.zeros(staying.size, np.int64), 1)[0]
        tried[np.arange(targets.size), targets] = model.add(device_loads[targets], loads[one])
        _, costs = model.costs(tried, cluster)
        best = int(costs.argmin())
        moves.append(Move(int(one), int(source), int(targets[best]), cost_ms - float(costs[best])))
    return tuple(sorted(moves, key=lambda move: -move.gain_ms))
