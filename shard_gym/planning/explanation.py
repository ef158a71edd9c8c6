"""Explanation of a placement or a sharding plan: the phases, memory and shards of each device, the gain of each split
and of moving a shard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import wrong_kind
from shard_gym.cost_models import (
    AdditiveCostModel,
    AnalyticalShardingModel,
    CostEstimate,
    CostModel,
    additive_estimate,
    make_cost_model,
)
from shard_gym.cost_models.analytical.grouped import model_of, sync_ms_per_byte
from shard_gym.cost_models.analytical.index_exchange import HIDDEN
from shard_gym.cost_models.analytical.traffic import index_exchange_of_plan_ms, total_sent_bytes
from shard_gym.cost_models.base import critical_devices, loads_of_plan, loads_of_shards
from shard_gym.cost_models.base.whole_tables import WholeTables
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.envs.placement.rendering.view import PlacementView, PlanView
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, check_plan, plan_memory_used, plan_of_placement
from shard_gym.plans.hbm_rows import HbmSplit, host_bytes, split_of_plan
from shard_gym.plans.placement import check_placement, memory_used
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, TABLE_WISE
from shard_gym.tables import Tables
from shard_gym.tasks import Task
from shard_gym.tasks.groups import task_of_plan


@dataclass(frozen=True)
class Move:
    """One shard that goes to another device while all others stay."""

    shard: int  #: its number; in a placement that of the table
    source: int
    target: int
    gain_ms: float  #: cost now less the cost afterwards, in ms; negative if the answer gets worse


@dataclass(frozen=True)
class Split:
    """A table with more than one shard."""

    table: int  #: index of the table
    #: Cost with the table whole on the best device where it fits, less the cost now; negative if the split makes the
    #: plan worse. None if the whole table fits nowhere, and under a model that is not additive.
    gain_ms: float | None
    device: int | None  #: that device; None if there is none, or the gain is not known


@dataclass(frozen=True, eq=False)
class Explanation:
    """The costs of S shards of T tables on D devices. In a placement, each table is one shard.

    Of a plan with groups of devices, task, devices and numbers are those of one group.
    """

    task: Task
    plan: ShardingPlan  #: the plan; of a placement that of whole tables
    cost_model: str  #: fingerprint of the model that costed it
    phases_ms: FloatArray  #: (D, 4) float64, ms each device takes in each phase (`shard_gym.cost_models.PHASES`)
    total_ms: float
    memory_used: NDArray[np.int64]  #: (D,) int64, bytes of the shards on each device
    shards: NDArray[np.int64]  #: (S, 6) int64, see `ShardingPlan.shard_arrays`
    #: (S,) float64, cost of each shard alone on a device; estimated under a model that is not additive.
    single_shard_ms: FloatArray
    #: For each shard of whole and column-wise tables on a critical device that fits elsewhere, its best move; the
    #: largest gain first. None under a model that is not additive: the estimates of another model do not fit its costs.
    moves: tuple[Move, ...] | None
    #: Each split table and what its split gains; the largest gain first, then those that fit nowhere whole.
    splits: tuple[Split, ...] = ()
    lower_bound_ms: float | None = None  #: no answer costs less; None if no bound is known
    best_known_ms: float | None = None  #: cost of the best answer known; None if none is
    noun: str = "placement"  #: what the answer is called, "placement" or "plan"
    communication_dtype: str = "fp32"  #: of pooled outputs and their gradients on the links
    index_exchange: str = (
        HIDDEN  #: whether the cost has that of the indices (`shard_gym.cost_models.analytical.index_exchange`)
    )
    #: (D,) int64, what the memory caps are where the task has higher ones, because the answer exceeds them.
    own_caps: NDArray[np.int64] | None = None
    all_in_hbm_ms: float | None = None  #: the cost if all rows were in HBM; None without host memory
    #: The cost with each replicated table whole on the best device, chosen one after the other; None without replicas,
    #: where one fits nowhere, and under a model that is not additive.
    without_replicas_ms: float | None = None

    @property
    def memory_cap_bytes(self) -> NDArray[np.int64]:
        """(D,) int64, the memory cap of each device; an answer may exceed it."""
        return self.task.topology.memory_cap_bytes if self.own_caps is None else self.own_caps

    @cached_property
    def traffic(self) -> FloatArray:
        """(D, 2) float64, bytes an iteration that each device sends inside its domain, and to others
        (`shard_gym.cost_models.analytical.traffic`)."""
        return total_sent_bytes(self.plan, self.task.tables, self.task.topology, self.communication_dtype)

    @cached_property
    def index_exchange_ms(self) -> float:
        """Ms of the exchange of the indices, which a pipeline hides; it is in the cost only if that is exposed."""
        return index_exchange_of_plan_ms(self.plan, self.task.tables, self.task.topology)

    @property
    def sync_ms(self) -> float:
        """What averaging the shards of the groups adds to an iteration; 0 for one group."""
        return float(self.memory_used.max() * sync_ms_per_byte(self.task.topology))

    @cached_property
    def split(self) -> HbmSplit:
        """Which rows of each of the S shards are in HBM."""
        return split_of_plan(self.plan, self.task.tables, self.task.topology)

    @cached_property
    def host_bytes(self) -> NDArray[np.int64]:
        """(S,) int64, bytes of each shard in host memory; 0 without any."""
        if self.task.topology.host is None:
            return np.zeros(len(self.shards), np.int64)
        return host_bytes(self.split.hbm_rows, self.plan, self.task.tables)

    @property
    def hosts(self) -> NDArray[np.int64]:
        """(D,) int64, the host of each device."""
        return self.task.topology.hosts

    @property
    def devices(self) -> NDArray[np.int64]:
        """(S,) int64, the device of each shard."""
        return self.shards[:, 1]

    @property
    def critical(self) -> NDArray[np.bool_]:
        """(D, 4) bool, the devices each phase waits for; none for a phase that takes no time."""
        return critical_devices(self.phases_ms)

    def shards_on(self, device: int) -> NDArray[np.int64]:
        """Numbers (int64) of the shards on `device`, the costliest first."""
        shards = np.flatnonzero(self.devices == device)
        return shards[np.argsort(-self.single_shard_ms[shards], kind="stable")]

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
    answer: ArrayLike | ShardingPlan,
    model: str | CostModel = "analytical",
    *,
    best_known_ms: float | None = None,
    lower_bound_ms: float | None = None,
) -> Explanation:
    """Explain a placement or a sharding plan of `task` under `model`.

    Args:
        answer: (T,) ints, the device of each table; or a sharding plan.
        model: the cost model, or its name. If it is not additive, such as a measured one, the costs of single shards
            are those of the analytical model, and there are no moves and no gains of splits.
        best_known_ms: cost of the best answer known, in ms, under the same model.
        lower_bound_ms: a lower bound known of the task, in ms, under the same model; a higher one of the model counts.

    Raises:
        InvalidPlacementError: the answer is not valid (see `check_placement` and `check_plan`).
        InvalidOptionError, UnknownNameError: there is no such cost model, or it costs no plans.
    """
    if not isinstance(task, Task):
        raise wrong_kind("task", task, "a Task of placement or sharding")
    if isinstance(answer, ShardingPlan):
        return _explain_plan(task, answer, make_cost_model(model, splits=True), best_known_ms, lower_bound_ms)
    model, tables, topology = make_cost_model(model), task.tables, task.topology
    placement = check_placement(answer, tables, topology)
    in_hbm = _all_in_hbm(task)
    plan, additive = plan_of_placement(placement, tables), additive_estimate(model)
    loads, estimate = additive.loads(tables, topology), model.estimate(placement, tables, topology)
    # The bound of a network is a share of its tables' costs, which says nothing of a placement.
    tells_bounds = additive is model and not isinstance(model, NeuralCostModel)
    own_bound_ms = additive.bounds(loads, topology)[0] if tells_bounds else None
    moves = best_moves(loads, placement, tables.memory_bytes, topology, additive) if additive is model else None
    return Explanation(
        task=task,
        plan=plan,
        cost_model=model.fingerprint,
        phases_ms=estimate.phases_ms,
        total_ms=estimate.total_ms,
        memory_used=memory_used(placement, tables, task.num_devices),
        shards=plan.shard_arrays(),
        single_shard_ms=additive.single_table_costs(loads, topology),
        moves=moves,
        lower_bound_ms=max(filter(None, (own_bound_ms, lower_bound_ms)), default=None),
        best_known_ms=best_known_ms,
        communication_dtype=getattr(model, "communication_dtype", "fp32"),
        index_exchange=getattr(model, "index_exchange", HIDDEN),
        all_in_hbm_ms=None if in_hbm is None else model.estimate(placement, tables, in_hbm).total_ms,
    )


def _all_in_hbm(task: Task) -> Topology | None:
    """The devices of a task with enough HBM for all rows; None if they have no host memory."""
    return None if task.topology.host is None else replace(task.topology, host=None)


def _explain_plan(
    task: Task, plan: ShardingPlan, model: CostModel, best_known_ms: float | None, lower_bound_ms: float | None
) -> Explanation:
    task = task_of_plan(plan, task)
    tables, topology = task.tables, task.topology
    dtype, index_exchange = getattr(model, "communication_dtype", "fp32"), getattr(model, "index_exchange", HIDDEN)
    own = model_of(topology, model) if isinstance(model, AdditiveCostModel) else None
    additive, model = own or AnalyticalShardingModel(), own or model
    checked = check_plan(plan, tables, topology)
    in_hbm = _all_in_hbm(task)
    estimate = estimate_of_checked(model, checked, tables, topology)
    loads, shards = loads_of_shards(additive, checked, tables, topology)
    devices = shards[:, 1]
    memory = shards[:, 3] * tables.workload.select(shards[:, 0]).row_bytes(shards[:, 5])
    moves, without_replicas_ms, splits = None, None, tuple(Split(table, None, None) for table in checked.split_tables)
    if own is not None:
        types = np.array([SHARDING_TYPES.index(sharding.shard_type) for sharding in checked.tables])
        free_to_move = [SHARDING_TYPES.index(name) for name in (TABLE_WISE, COLUMN_WISE)]
        moves = best_moves(loads, devices, memory, topology, own, np.isin(types[shards[:, 0]], free_to_move))
        wholes = WholeTables(checked, tables, topology, own)
        splits = _splits(wholes, estimate.total_ms)
        without_replicas_ms = _without_replicas_ms(wholes)
    return Explanation(
        task=task,
        plan=checked,
        cost_model=model.fingerprint,
        phases_ms=estimate.phases_ms,
        total_ms=estimate.total_ms,
        memory_used=plan_memory_used(checked, tables, topology.num_devices),
        shards=shards,
        single_shard_ms=additive.single_table_costs(loads, topology),
        moves=moves,
        splits=splits,
        lower_bound_ms=lower_bound_ms,
        best_known_ms=best_known_ms,
        noun="plan",
        communication_dtype=dtype,
        index_exchange=index_exchange,
        all_in_hbm_ms=None if in_hbm is None else estimate_of_checked(model, checked, tables, in_hbm).total_ms,
        without_replicas_ms=without_replicas_ms,
    )


def estimate_of_checked(model: CostModel, plan: ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
    """`CostModel.estimate` of a checked plan, which an additive model does not check again."""
    if not isinstance(model, AdditiveCostModel):
        return model.estimate(plan, tables, topology)
    phases, cost = model.costs(loads_of_plan(model, plan, tables, topology), topology.cluster())
    return CostEstimate(phases, float(cost))


def best_moves(
    loads: FloatArray,
    devices: NDArray[np.int64],
    memory: NDArray[np.int64],
    topology: Topology,
    model: AdditiveCostModel,
    movable: NDArray[np.bool_] | None = None,
) -> tuple[Move, ...]:
    """The best move of each shard on a critical device, the largest gain first, without those that fit nowhere else.

    Shards of other devices are not tried, because moving them makes no critical device faster.

    Args:
        loads: (S, K) float64.
        devices: (S,) int64, of a valid answer.
        memory: (S,) int64, bytes.
        movable: (S,) bool, the shards that are tried; all by default.
    """
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
        staying, without = np.setdiff1d(np.flatnonzero(devices == source), [one]), device_loads.copy()
        without[source] = model.reduce(loads[staying], np.zeros(staying.size, np.int64), 1)[0]
        costs = _costs_with(model, cluster, without, targets, loads[one])
        best = int(costs.argmin())
        moves.append(Move(int(one), int(source), int(targets[best]), cost_ms - float(costs[best])))
    return tuple(sorted(moves, key=lambda move: -move.gain_ms))


def _costs_with(
    model: AdditiveCostModel, cluster: Cluster, device_loads: FloatArray, targets: NDArray[np.int64], loads: FloatArray
) -> FloatArray:
    """(M,) ms, the costs with one more shard of (K,) `loads` on each of M devices, where they hold `device_loads`."""
    own_phases, new = model.device_phases(device_loads), model.add(device_loads[targets], loads)
    return model.costs_with_one(cluster, device_loads, own_phases, targets, new)[1]


def _splits(wholes: WholeTables, cost_ms: float) -> tuple[Split, ...]:
    """Each split table, taken off all devices and put whole on each of them."""
    found = []
    for table in wholes.plan.split_tables:
        fits = np.flatnonzero(wholes.left_bytes(table) >= 0)
        if not fits.size:
            found.append(Split(table, None, None))
            continue
        costs = wholes.costs_ms(table, fits)
        best = int(costs.argmin())
        found.append(Split(table, float(costs[best]) - cost_ms, int(fits[best])))
    return tuple(sorted(found, key=lambda one: -np.inf if one.gain_ms is None else one.gain_ms, reverse=True))


def _without_replicas_ms(wholes: WholeTables) -> float | None:
    """Each replicated table put whole on the best device, one after the other; None if there is none, or no room."""
    cost_ms = None
    for table, sharding in enumerate(wholes.plan.tables):
        if sharding.sharding_type != DATA_PARALLEL:
            continue
        fits = np.flatnonzero(wholes.left_bytes(table) >= 0)
        if not fits.size:
            return None
        costs = wholes.costs_ms(table, fits)
        cost_ms = float(costs.min())
        wholes.make_whole(table, int(fits[costs.argmin()]))
    return cost_ms


def view_of(explanation: Explanation) -> PlacementView:
    """The view of an explained placement or plan."""
    first = np.array([sharding.shards[0].device for sharding in explanation.plan.tables], np.int64)
    kind = PlacementView if explanation.noun == "placement" else partial(PlanView, plan=explanation.plan)
    costs = explanation.phases_ms, explanation.total_ms
    return kind(explanation.task, first, *costs, own_caps=explanation.own_caps)
