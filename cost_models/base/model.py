"""The interface of cost models: `CostModel`, and `AdditiveCostModel` for models fast enough to train in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.base.host_policy import HostPolicy
from shard_gym.cost_models.base.host_rows import STATIC
from shard_gym.cost_models.base.linear import LinearCosts
from shard_gym.cost_models.base.one_more import OneMore, OneMoreOnAll
from shard_gym.hardware.topology import Cluster, Topology
from shard_gym.plans.placement import Placement, check_placement
from shard_gym.tables.tables import Tables

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
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
    """Computes the cost of a placement.

    Attributes:
        name: its name in `COST_MODELS` and in result files.
        version: raised whenever a change alters a cost.
        detail_names: names of the `details` of its estimates.
        knows_host_memory: whether it computes costs of tables whose rows are in part in host memory. Of a model that
            does not, `estimate`, `table_loads` and `shard_loads` raise InvalidOptionError where a topology has some.
        knows_replicas: the same of devices whose shards have replicas in other groups.
        knows_compression: the same of topologies on which less is sent across hosts (`Topology.cross_host_ratio`).
        knows_sequences: the same of sequence tables (`Tables.pooled`).
        knows_training, knows_serving: the same of tables that are trained, and of those that are read alone
            (`Workload.training` is False).
    """

    name: str
    version: int
    detail_names: tuple[str, ...] = ()
    knows_host_memory: bool = False
    knows_replicas: bool = False
    knows_compression: bool = False
    knows_sequences: bool = False
    knows_training: bool = True
    knows_serving: bool = False

    def __init_subclass__(cls) -> None:
        """Let the methods that get a topology refuse what the model does not know of it."""
        for name in ("estimate", "estimate_plan", "measure_again", "table_loads", "shard_loads"):
            if name in vars(cls):
                setattr(cls, name, _checking_topology(vars(cls)[name]))

    def know_as(self, model: CostModel) -> None:
        """Know what `model` does, for a model that asks it."""
        for name in vars(CostModel):
            if name.startswith("knows_"):
                setattr(self, name, getattr(model, name))

    @property
    def fingerprint(self) -> str:
        """Identifies the model and its constants; models with equal fingerprints compute equal costs."""
        return f"{self.name}-v{self.version}"

    def fingerprint_for(self, num_devices: Collection[int]) -> str:
        """The fingerprint for tasks with so many devices; of a model whose way depends on them, that of this way."""
        return self.fingerprint

    @abstractmethod
    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a checked (T,) placement."""

    @abstractmethod
    def penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """Ms charged for a task without a valid placement: finite, and above the cost of every valid placement."""


def _checking_topology(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method` of a cost model, whose last argument is a topology."""

    @wraps(method)
    def checked(model: CostModel, *args: Any, **kwargs: Any) -> Any:
        topology = kwargs["topology"] if "topology" in kwargs else args[-1]
        if getattr(topology, "host", None) is not None and not model.knows_host_memory:
            raise InvalidOptionError(
                f"The cost model {model.name!r} does not know host memory, and the devices have some for rows of "
                "tables. Name 'analytical', or give devices without host memory."
            )
        if getattr(topology, "replicas", None) is not None and not model.knows_replicas:
            raise InvalidOptionError(
                f"The cost model {model.name!r} does not know replicas in other groups of devices; its `with_replicas` "
                "is one that does, if there is one."
            )
        if getattr(topology, "cross_host_ratio", 1.0) != 1.0 and not model.knows_compression:
            raise InvalidOptionError(
                f"The cost model {model.name!r} does not know that less is sent across hosts, and cross_host_ratio is "
                f"{topology.cross_host_ratio:g}. Name 'analytical', or leave it at 1."
            )
        for tables in (*args, *kwargs.values()):
            if not isinstance(tables, Tables):
                continue
            if not model.knows_sequences and not tables.pooled.all():
                raise InvalidOptionError(
                    f"The cost model {model.name!r} does not know sequence tables, whose rows are not added up, "
                    f"such as {tables.names[int(tables.pooled.argmin())]!r}. Name 'analytical'."
                )
            if not model.knows_serving and not tables.workload.training:
                raise InvalidOptionError(
                    f"The cost model {model.name!r} is of training, and these tables are served: the training of their "
                    "workload is False. Name 'analytical-inference'."
                )
            if not model.knows_training and tables.workload.training:
                raise InvalidOptionError(
                    f"The cost model {model.name!r} is of serving, and these tables are trained. Name 'analytical', or "
                    "serve them: tables.with_training(training=False)."
                )
        return method(model, *args, **kwargs)

    return checked


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

    Every table has K loads. The loads of a device are the sums (the first `num_sum_loads` columns) or the maxima (the
    others up to `num_loads`) of the loads of its tables, and zero if it is empty. All costs follow from the device
    loads. So placing a table updates one device in O(K), for any number of environments or candidate moves at once.
    Of a topology with host memory there are more loads behind these, those of `host_policy`: `maxima` says which
    columns are reduced by maximum in either case.

    Attributes:
        num_loads: K without host memory.
        num_sum_loads: number of columns that are summed, of those without host memory.
        shared_loads: the C columns that `fill_communication` and `iteration_cost` read; the default is all K.
        host_policy: which rows are in HBM with host memory, and what the others cost.
        exchanges: how often outputs are exchanged in an iteration: 2 in training, where their gradients come back.
    """

    num_loads: int
    num_sum_loads: int
    shared_loads: slice = slice(None)
    host_policy: HostPolicy = STATIC
    exchanges: int = 2

    @property
    def maxima(self) -> slice:
        """The columns that are reduced by maximum; all others are summed."""
        return slice(self.num_sum_loads, self.num_loads + self.host_policy.num_maxima)

    def sums(self, num_loads: int) -> NDArray[np.int64]:
        """The columns of so many loads that are summed."""
        return np.delete(np.arange(num_loads), self.maxima)

    def num_loads_with(self, host_memory: bool) -> int:
        """K, of topologies with host memory or without; a model that does not know host memory has no more loads."""
        return self.num_loads + (self.host_policy.num_loads if host_memory and self.knows_host_memory else 0)

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
    def table_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        """(T, K) float64 loads, none negative; computed once per task."""

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
    def cost_bounds(self, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        """Lower and upper bound in ms on the cost of every placement of tables with these (T, K) loads."""

    def penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """PENALTY_MARGIN times the upper bound."""
        return PENALTY_MARGIN * self.cost_bounds(self.table_loads(tables, topology), topology)[1]

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """(...) ms: the sum over the phases of the slowest device's time; `phases` is (..., D, 4).

        A learned model may override this with its own head over the (..., D, C) `shared` loads.
        """
        slowest = phases.max(axis=-2)
        forward = slowest[..., FORWARD] + slowest[..., FORWARD_COMM]
        return np.asarray(forward + slowest[..., BACKWARD_COMM] + slowest[..., BACKWARD])

    def add(self, device_loads: FloatArray, table_loads: FloatArray) -> FloatArray:
        """(..., K) loads of a device after a table with (..., K) loads is added to it."""
        maxima = self.maxima
        total = device_loads + table_loads
        np.maximum(device_loads[..., maxima], table_loads[..., maxima], out=total[..., maxima])
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

    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a (T,) placement.

        Raises:
            InvalidPlacementError: it is not valid; see `check_placement`.
        """
        placement = check_placement(placement, tables, topology)
        loads = self.reduce(self.table_loads(tables, topology), placement, topology.num_devices)
        phases, cost = self.costs(loads, topology.cluster())
        return CostEstimate(phases, float(cost))

    def single_table_phases(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T, 4) ms, the phases of the first device when it holds one table and the others none, from (T, K) loads."""
        return self.single_tables(loads, topology)[0]

    def single_table_costs(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T,) ms, the cost of a placement of each table alone, on the first device, from (T, K) loads."""
        return self.single_tables(loads, topology)[1]

    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """`single_table_phases` and `single_table_costs`."""
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


def placement_order(loads: FloatArray, topology: Topology, model: AdditiveCostModel) -> NDArray[np.int64]:
    """(T,) int64, tables by descending single-table cost: the order in which DreamShard places them (section 3.2)."""
    return np.argsort(-model.single_table_costs(loads, topology), kind="stable")


SAME = 1e-9
"""Devices whose times differ by less than this share are equally slow."""


def critical_devices(phases_ms: FloatArray) -> NDArray[np.bool_]:
    """(D, 4) bool, the slowest device or devices of each phase, from (D, 4) ms; none where no device takes any time."""
    slowest = phases_ms.max(axis=0)
    return np.asarray((phases_ms >= slowest * (1.0 - SAME)) & (slowest > 0.0))
