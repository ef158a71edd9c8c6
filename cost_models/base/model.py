"""The interface of cost models: `CostModel`, and `AdditiveCostModel` for models fast enough to train in.

A placement is a plan of whole tables, so one interface costs both.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import is_array, larger, largest
from shard_gym.common.errors import unknown_name
from shard_gym.cost_models.base.host_policy import HostPolicy
from shard_gym.cost_models.base.host_rows import STATIC
from shard_gym.cost_models.base.linear import LinearCosts
from shard_gym.cost_models.base.one_more import OneMore, OneMoreOnAll
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, check_plan
from shard_gym.plans.needs import HOST_MEMORY, NEEDS, SPLITS, TRAINING, needs_of, require_supported
from shard_gym.plans.placement import Placement, check_placement
from shard_gym.plans.plan import COLUMN_WISE, TABLE_ROW_WISE, TABLE_WISE, blocks_of_rows
from shard_gym.plans.statistics import shard_tables
from shard_gym.plans.variants import Variants, variants_of, with_all_widths
from shard_gym.tables import Tables

PHASES: tuple[str, ...] = ("forward", "forward_comm", "backward_comm", "backward")
"""The four phases of an iteration's embedding part, in the order in which they run and arrays hold them."""

FORWARD, FORWARD_COMM, BACKWARD_COMM, BACKWARD = range(len(PHASES))
"""Positions of the phases along the last axis of an array (..., 4)."""

COMPUTE = [FORWARD, BACKWARD]
COMMUNICATION = slice(FORWARD_COMM, BACKWARD_COMM + 1)
"""Both compute phases and both all-to-alls, as indices of the last axis: `phases[..., COMPUTE]`."""

PENALTY_MARGIN = 1.1
"""The cost of a task without a valid placement, in multiples of the upper bound on all placements' costs."""

MAX_NUMBERS = 2**22  # numbers in an array of loads of many placements at once


@dataclass(frozen=True)
class CostEstimate:
    """The cost of one placement.

    Attributes:
        phases_ms: (D, 4) float64, ms of each device in each of `PHASES`.
        total_ms: ms of the iteration: the sum over the phases of the slowest device's time.
    """

    phases_ms: FloatArray
    total_ms: float

    @property
    def details(self) -> dict[str, float]:
        """Further numbers about this cost, by the `detail_names` of its model; environments show them in infos."""
        return {}


class CostModel(ABC):
    """Computes the cost of an answer: of a placement, or of a sharding plan.

    `estimate`, `loads` and `measure_again` of a subclass raise InvalidOptionError where tables, devices or the plan
    need something that it does not support.

    Attributes:
        name: its name in `COST_MODELS` and in result files.
        version: raised whenever a change alters a cost.
        detail_names: names of the `details` of its estimates.
        supports: names in `shard_gym.plans.needs.NEEDS` of what it computes costs of; with "splits", it costs plans.
    """

    name: str
    version: int
    detail_names: tuple[str, ...] = ()
    supports: frozenset[str] = frozenset({TRAINING})

    def __init_subclass__(cls) -> None:
        """Let the methods that get tables and a topology refuse what the model does not support.

        Raises:
            TypeError: `supports` are no names in `NEEDS`; or they have "splits", but a method lacks the argument of it.
        """
        cls.supports = _checked_supports(cls)
        for name in ("estimate", "measure_again", "loads"):
            if name in vars(cls):
                setattr(cls, name, _at_the_door(vars(cls)[name]))

    @property
    def fingerprint(self) -> str:
        """Identifies the model and its constants; models with equal fingerprints compute equal costs."""
        return f"{self.name}-v{self.version}"

    def fingerprint_for(self, num_devices: Collection[int]) -> str:
        """The fingerprint for tasks with so many devices; of a model whose way depends on them, that of this way."""
        return self.fingerprint

    @abstractmethod
    def estimate(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a checked (T,) placement, or of a plan.

        Raises:
            InvalidPlanError, MemoryExceededError: the plan is not valid; see `check_plan`.
        """

    @abstractmethod
    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        """Ms charged for a task without a valid answer: finite, and above the cost of every valid placement.

        With `splits`, above that of every valid plan.
        """


def _checked_supports(cls: type[CostModel]) -> frozenset[str]:
    """What a class supports, if its methods have the arguments for it; see `CostModel.__init_subclass__`."""
    supports = cls.supports
    if isinstance(supports, str) or not isinstance(supports, Collection) or not set(supports) <= set(NEEDS):
        raise TypeError(f"supports of {cls.__name__} must be a set of names in {sorted(NEEDS)}, not {supports!r}.")
    if SPLITS in supports:
        for name, argument in (("penalty_ms", "splits"), ("loads", "sharding_type")):
            method = getattr(cls, name, None)
            if callable(method) and not _takes(method, argument):
                raise TypeError(f"{cls.__name__} supports splits, so its {name} must have an argument {argument}.")
    return frozenset(supports)


def _takes(method: Callable[..., Any], argument: str) -> bool:
    parameters = inspect.signature(method).parameters.values()
    return any(each.name == argument or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters)


def _at_the_door(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` of a cost model, which gets tables, a topology and perhaps a plan or the type of a shard.

    Of whole tables the type is left out where the method has no argument for it.
    """
    whole_only = method.__name__ == "loads" and not _takes(method, "sharding_type")

    @wraps(method)
    def checked(model: CostModel, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        for each in given:
            if isinstance(each, str) and each not in SHARDING_TYPES:
                raise unknown_name("sharding type", each, SHARDING_TYPES)
        tables = next((each for each in given if isinstance(each, Tables)), None)
        topology = next((each for each in given if isinstance(each, Topology)), None)
        if tables is not None and topology is not None:
            needs = needs_of(tables, topology)
            if SPLITS not in model.supports and any(map(_splits, given)):
                needs |= {SPLITS}
            if not needs <= model.supports:
                of = tables, topology
                require_supported(f"The cost model {model.name!r}", needs, model.supports, of, costs=True)
        if whole_only:
            args = tuple(each for each in args if not isinstance(each, str))
            kwargs = {name: each for name, each in kwargs.items() if not isinstance(each, str)}
        return method(model, *args, **kwargs)

    return checked


def _splits(given: Any) -> bool:
    """Whether an argument is a plan with split tables, or the sharding type of a part of a table."""
    if isinstance(given, ShardingPlan):
        return given.placement is None
    return isinstance(given, str) and given != TABLE_WISE


class PlainCosts(Protocol):
    """The cost update of one step on Python floats instead of arrays.

    A NumPy call takes at least a third of a microsecond, however small its arrays, so this is several times faster for
    a few devices. The results must equal those of `device_phases`, `fill_communication` and `iteration_cost` in every
    bit.
    """

    def __call__(
        self, device: int, loads: list[float], phases: list[list[float]], shared: list[list[float]], cluster: Cluster
    ) -> float:
        """The cost in ms of the placement after the loads of one device have changed.

        Args:
            device: the device that received a table.
            loads: its K loads, with that table.
            phases: four lists of D, ms, from before the change; updated in place.
            shared: C lists of D, the `shared_loads` after the change.
            cluster: the topology; leading shape (1,).
        """


class AdditiveCostModel(CostModel):
    """A cost model in additive-load form.

    Every table has K loads, and if the model supports splits, so has every shard. The loads of a device are the sums
    (the first `num_sum_loads` columns) or the maxima (the others up to `num_loads`) of the loads of its tables or
    shards, and zero if it is empty. All costs follow from the device loads. So placing a table or a shard updates one
    device in O(K), for any number of environments or candidate moves at once.
    Of a topology with host memory there are more loads behind these, those of `host_policy`: `maxima` says which
    columns are reduced by maximum in either case. Of tables of several workloads there are more behind those, sums of
    each group.

    Attributes:
        num_loads: K without host memory, of tables of one workload.
        num_sum_loads: number of columns that are summed, of those.
        group_loads: further columns for each group of tables, if there are several; all are summed.
        shared_loads: the C columns that `fill_communication` and `iteration_cost` read; the default is all K.
        host_policy: which rows are in HBM with host memory, and what the others cost.
        exchanges: how often outputs are exchanged in an iteration: 2 in training, where their gradients come back.
    """

    num_loads: int
    num_sum_loads: int
    group_loads: int = 0
    shared_loads: slice = slice(None)
    host_policy: HostPolicy = STATIC
    exchanges: int = 2

    @property
    def maxima(self) -> slice:
        """The columns that are reduced by maximum; all others are summed."""
        return slice(self.num_sum_loads, self.num_loads + self.host_policy.num_maxima)

    def num_loads_with(self, host_memory: bool, num_groups: int = 1) -> int:
        """K, of topologies with host memory or without, and of tables of so many workloads; a model that does not
        support them has no more loads.
        """
        if num_groups > 1 and self.group_loads:
            return self.begin_of_groups(host_memory) + num_groups * self.group_loads
        return self.num_loads + (self.host_policy.num_loads if host_memory and HOST_MEMORY in self.supports else 0)

    def begin_of_groups(self, host_memory: bool) -> int:
        """The first load of a group of tables: they are behind all `maxima`, of which host memory may need no more."""
        hosted = host_memory and HOST_MEMORY in self.supports
        behind = self.num_loads + (self.host_policy.num_mixed_loads if hosted else 0)
        return max(behind, int(self.maxima.stop))

    def __init_subclass__(cls) -> None:
        """Drop inherited fast versions of formulas of which the subclass overrides one."""
        super().__init_subclass__()

        def depth(name: str) -> int:
            return next(depth for depth, base in enumerate(cls.__mro__) if name in vars(base))

        formulas = min(map(depth, ("device_phases", "fill_communication", "iteration_cost")))
        for name in ("plain_costs", "linear_costs", "costs_with_one", "one_more", "single_tables"):
            if depth(name) > formulas:
                setattr(cls, name, vars(AdditiveCostModel)[name])

    @property
    def plain_costs(self) -> PlainCosts | None:
        """The optional fast path of a single environment, or None; the environment then steps on arrays."""
        return None

    def linear_costs(self, tables: Tables, topology: Topology) -> LinearCosts | None:
        """The costs of a task as maxima of linear functions, for tighter bounds and exact solvers; None if unknown."""
        return None

    @abstractmethod
    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(T, K) float64 loads of tables, none negative; computed once per task.

        Of another sharding type, those of shards on one device each, as `shard_tables` describes them; a model that
        does not support splits is not asked for any.
        """

    @abstractmethod
    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) ms of a device with (..., K) loads; 0 in a phase that depends on the other devices."""

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write, in place, the phases that depend on all devices of a topology; by default there are none.

        It is called after every step and must overwrite the values of the step before.

        Args:
            phases: (..., D, 4) float64, ms; the `device_phases` of each device.
            shared: (..., D, C) float64, the `shared_loads` of the devices.
            cluster: the topologies; broadcasts against the leading shape.
        """

    @abstractmethod
    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """Lower and upper bound in ms on the cost of every placement of tables with these (T, K) loads.

        With `variants`, on that of every plan of these variants; `loads` are their (T, V, K) `loads_of_variants`.
        """

    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        """PENALTY_MARGIN times the upper bound."""
        if splits:
            return PENALTY_MARGIN * bounds_of_plans(self, tables, topology)[1]
        return PENALTY_MARGIN * self.bounds(self.loads(tables, topology), topology)[1]

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """(...) ms: the sum over the phases of the slowest device's time; `phases` is (..., D, 4).

        A learned model may override this with its own head over the (..., D, C) `shared` loads.
        """
        slowest = largest(phases, -2)
        forward = slowest[..., FORWARD] + slowest[..., FORWARD_COMM]
        cost = forward + slowest[..., BACKWARD_COMM] + slowest[..., BACKWARD]
        return np.asarray(cost) if is_array(cost) else cost

    def add(self, device_loads: FloatArray, table_loads: FloatArray) -> FloatArray:
        """(..., K) loads of a device after a table with (..., K) loads is added to it."""
        maxima = self.maxima
        total = device_loads + table_loads
        total[..., maxima] = larger(device_loads[..., maxima], table_loads[..., maxima])
        return total

    def device_costs(self, loads: FloatArray, cluster: Cluster) -> FloatArray:
        """(..., D, 4) ms from (..., D, K) device loads; `cluster` broadcasts against the leading shape."""
        phases = self.device_phases(loads)
        self.fill_communication(phases, loads[..., self.shared_loads], cluster)
        return phases

    def costs(self, loads: FloatArray, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
        """(..., D, 4) phases and (...) iteration cost, ms, from (..., D, K) device loads."""
        phases = self.device_costs(loads, cluster)
        return phases, self.iteration_cost(phases, loads[..., self.shared_loads], cluster)

    def costs_with(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """The (M, D, 4) phases and (M,) iteration costs, ms, of M variants of a placement, with C changed devices each.

        Args:
            cluster: the topology.
            device_loads: (D, K) of the placement.
            own_phases: (D, 4) ms, `device_phases(device_loads)`; the phases that `fill_communication` writes do not
                matter.
            devices: (C, M) int64, the devices that change; those of a variant differ.
            new_loads: (C, M, K), their loads then.
        """
        variants = devices.shape[1]
        changed = (devices * variants + np.arange(variants)).ravel()
        loads = new_loads.reshape(-1, new_loads.shape[-1])
        phases = _replaced(own_phases, variants, changed, self.device_phases(loads))
        shared = _replaced(device_loads[:, self.shared_loads], variants, changed, loads[:, self.shared_loads])
        self.fill_communication(phases, shared, cluster)
        return phases, self.iteration_cost(phases, shared, cluster)

    def costs_with_one(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """`costs_with` for one changed device: (M, 4) phases of that device and (M,) iteration costs, ms.

        Takes O(M D); a model may have a way in O(M + D), with the same bits.

        Args:
            cluster, device_loads, own_phases: see `costs_with`.
            devices: (M,) int64, the device that changes.
            new_loads: (M, K), its loads then.
        """
        phases, costs = self.costs_with(cluster, device_loads, own_phases, devices[None], new_loads[None])
        return phases[np.arange(len(devices)), devices], costs

    def one_more(self, cluster: Cluster, device_loads: FloatArray) -> OneMore:
        """Costs of M placements when each device in turn gets a table; see `OneMore`. A model may have a faster way."""
        return OneMoreOnAll(self, cluster, device_loads)

    def reduce(self, table_loads: FloatArray, placement: Placement, num_devices: int) -> FloatArray:
        """(D, K) device loads of a complete placement, from (T, K) table loads and a (T,) placement."""
        loads, maxima = np.zeros((num_devices, table_loads.shape[1])), self.maxima
        largest = loads[:, maxima].copy()
        np.maximum.at(largest, placement, table_loads[:, maxima])
        np.add.at(loads, placement, table_loads)
        loads[:, maxima] = largest
        return loads

    def estimate(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a (T,) placement, or of a plan; a plan of whole tables costs what the placement does.

        Raises:
            InvalidPlacementError: it is not valid; see `check_placement` and `check_plan`.
        """
        if isinstance(answer, ShardingPlan):
            checked = check_plan(answer, tables, topology)
            loads = loads_of_plan(self, checked, tables, topology)
        else:
            placement = check_placement(answer, tables, topology)
            loads = self.reduce(self.loads(tables, topology), placement, topology.num_devices)
        phases, cost = self.costs(loads, topology.cluster())
        return CostEstimate(phases, float(cost))

    def single_table_costs(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T,) ms, the costs of `single_tables`."""
        return self.single_tables(loads, topology)[1]

    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """(T, 4) phases and (T,) cost, ms, when the first device holds one table and the others none; (T, K) loads."""
        return self._first_alone(loads, topology.cluster(), self.costs_with_one)

    def _first_alone(
        self, loads: FloatArray, cluster: Cluster, costs_with_one: Callable[..., tuple[FloatArray, FloatArray]]
    ) -> tuple[FloatArray, FloatArray]:
        empty = np.zeros((cluster.device_mask.size, loads.shape[1]))
        own, at_once, parts = self.device_phases(empty), max(1, MAX_NUMBERS // empty.size), []
        for begin in range(0, len(loads), at_once):
            some = loads[begin : begin + at_once]
            parts.append(costs_with_one(cluster, empty, own, np.zeros(len(some), np.int64), some))
        return np.concatenate([phases for phases, _ in parts]), np.concatenate([costs for _, costs in parts])


def _replaced(current: FloatArray, variants: int, changed: NDArray[np.int64], values: FloatArray) -> FloatArray:
    """(M, D, X) copies of the (D, X) `current` with new rows; in memory the device is the slowest axis."""
    copies = np.repeat(current, variants, axis=0)
    copies[changed] = values
    return copies.reshape(len(current), variants, current.shape[1]).swapaxes(0, 1)


def loads_of_shards(
    model: AdditiveCostModel, plan: ShardingPlan, tables: Tables, topology: Topology
) -> tuple[FloatArray, NDArray[np.int64]]:
    """(S, K) float64 loads of each shard of a checked plan, and the (S, 6) `shard_arrays` of the plan."""
    arrays = plan.shard_arrays()
    kinds = np.array([SHARDING_TYPES.index(sharding.shard_type) for sharding in plan.tables])[arrays[:, 0]]
    wanted = np.column_stack([arrays[:, [0, 5]], blocks_of_rows(arrays)])
    loads = np.empty((len(arrays), model.num_loads_with(topology.host is not None, len(tables.workloads))))
    for kind in np.unique(kinds):
        name, chosen = SHARDING_TYPES[kind], np.flatnonzero(kinds == kind)
        # The shards of a table that differ in their device alone have equal loads, which are computed once.
        different, which = np.unique(wanted[chosen], axis=0, return_inverse=True)
        widths = different[:, 1] if name in (COLUMN_WISE, TABLE_ROW_WISE) else None
        shards = shard_tables(tables.select(different[:, 0]), name, topology, widths, different[:, 2])
        loads[chosen] = model.loads(shards, topology, name)[which.reshape(-1)]
    return loads, arrays


def loads_of_plan(model: AdditiveCostModel, plan: ShardingPlan, tables: Tables, topology: Topology) -> FloatArray:
    """(D, K) float64 loads of the devices under a checked plan."""
    loads, arrays = loads_of_shards(model, plan, tables, topology)
    return model.reduce(loads, arrays[:, 1], topology.num_devices)


def loads_of_variants(model: AdditiveCostModel, variants: Variants, topology: Topology) -> FloatArray:
    """(T, V, K) float64, the loads that one part of each variant adds to a device; also of those not legal."""
    pairs = zip(variants.tables, variants.sharding_types, strict=True)
    return np.stack([model.loads(tables, topology, kind) for tables, kind in pairs], axis=1)


@lru_cache(maxsize=1024)
def bounds_of_plans(model: AdditiveCostModel, tables: Tables, topology: Topology) -> tuple[float, float]:
    """Lower and upper bound in ms on the cost of every valid plan, without a solver."""
    dims = tables.embedding_dim
    variants = variants_of(tables, topology, max_halvings=int(dims.max() // 4).bit_length() - 1)
    if (dims & (dims - 1)).any():  # halves of other dims are not the cheapest and costliest columns
        variants = with_all_widths(variants, topology)
    return model.bounds(loads_of_variants(model, variants, topology), topology, variants)


def placement_order(loads: FloatArray, topology: Topology, model: AdditiveCostModel) -> NDArray[np.int64]:
    """(T,) int64, tables by descending single-table cost: the order in which DreamShard places them (section 3.2)."""
    return np.argsort(-model.single_table_costs(loads, topology), kind="stable")


SAME = 1e-9
"""Devices whose times differ by less than this share are equally slow."""


def critical_devices(phases_ms: FloatArray) -> NDArray[np.bool_]:
    """(D, 4) bool, the slowest device or devices of each phase, from (D, 4) ms; none where no device takes any time."""
    slowest = phases_ms.max(axis=0)
    return np.asarray((phases_ms >= slowest * (1.0 - SAME)) & (slowest > 0.0))
