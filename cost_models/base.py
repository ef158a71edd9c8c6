"""What a cost model is: `CostModel` for any, `AdditiveCostModel` for those fast enough to train in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.topology import Cluster, Topology

PHASES: tuple[str, ...] = ("forward", "forward_comm", "backward_comm", "backward")
"""The four phases of an iteration's embedding part, in the order they run and in which arrays hold them."""

PENALTY_MARGIN = 1.1
"""What a task without a valid placement is charged, in multiples of the upper bound on all placements' costs."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class CostEstimate:
    """What one placement costs.

    Attributes:
        phases_ms: (D, 4) float64, ms each device takes in each of `PHASES`.
        total_ms: the iteration's cost in ms; the phases follow each other, each as long as its slowest device.
    """

    phases_ms: FloatArray
    total_ms: float

    @property
    def details(self) -> dict[str, float]:
        """What else is known of this cost; an environment puts it into the info of an episode's end."""
        return {}

    @property
    def critical_devices(self) -> tuple[int, ...]:
        """The slowest device of each phase."""
        return tuple(int(device) for device in self.phases_ms.argmax(axis=0))


class CostModel(ABC):
    """Anything that says what a placement costs.

    Attributes:
        name: how the registry and result files call it.
        version: raised whenever a change alters a cost.
    """

    name: str
    version: int

    @property
    def fingerprint(self) -> str:
        """Names the model and the numbers it computes with; equal fingerprints mean equal costs."""
        return f"{self.name}-v{self.version}"

    @abstractmethod
    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a checked (T,) placement."""

    @abstractmethod
    def penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """Ms charged for a task without a valid placement; finite, and above the cost of every valid one."""


class PlainCosts(Protocol):
    """What a step changes in one placement, on plain Python numbers: lists of floats instead of arrays.

    A NumPy call takes a third of a microsecond or more, however small its arrays, so on a few devices this is several
    times faster. It must give the bits that `device_phases`, `couple` and `iteration_cost` give.
    """

    def __call__(
        self, device: int, loads: list[float], phases: list[list[float]], shared: list[list[float]], cluster: Cluster
    ) -> float:
        """The cost in ms of the placement in which `device` now has other loads.

        Args:
            device: where a table was placed.
            loads: K, the loads of that device now.
            phases: four lists of D, ms; those of before, brought up to date in place.
            shared: C lists of D, the `shared_loads`.
            cluster: the topology; leading shape (1,).
        """


class AdditiveCostModel(CostModel):
    """A cost model in additive-load form.

    Every table carries K loads. A device's loads are the sums (the first `num_sum_loads` columns) or the maxima (the
    others) of the loads of its tables, all zero for an empty device, and its costs follow from them alone. So placing
    a table updates one device in O(K), for any number of environments or candidate moves at once.

    Attributes:
        num_loads: K.
        num_sum_loads: how many of the K columns are summed; the rest are reduced by maximum.
        shared_loads: the columns that `couple` and `iteration_cost` read, C of them; the default is all.
    """

    num_loads: int
    num_sum_loads: int
    shared_loads: slice = slice(None)

    def __init_subclass__(cls) -> None:
        """Withdraw the plain numbers a subclass inherits if it changes what they restate."""
        bases = cls.__mro__

        def definer(name: str) -> int:
            return next(place for place, base in enumerate(bases) if name in vars(base))

        if definer("plain_costs") > min(map(definer, ("device_phases", "couple", "iteration_cost"))):
            cls.plain_costs = AdditiveCostModel.plain_costs  # type: ignore[method-assign]

    @property
    def plain_costs(self) -> PlainCosts | None:
        """`device_phases`, `couple` and `iteration_cost` on plain numbers for one environment alone; None: not offered.

        A model need not offer them: the environment then steps on arrays, to the same bits.
        """
        return None

    @abstractmethod
    def table_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        """(T, K) float64 loads, none negative; computed once per task."""

    @abstractmethod
    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) ms that a device with (..., K) loads takes by itself; 0 for a phase that depends on the others."""

    def couple(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Fill in, in place, the phases that depend on all devices of a topology; by default there are none.

        It is called again after every step and must overwrite, not add to, what stands there.

        Args:
            phases: (..., D, 4) float64, ms; what `device_phases` says of each device.
            shared: (..., D, C) float64, the `shared_loads` of the devices.
            cluster: the topologies; broadcasts against the leading shape.
        """

    @abstractmethod
    def cost_bounds(self, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        """Lower and upper bound in ms on the cost of every placement of tables with these (T, K) loads."""

    def penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """See `CostModel`: PENALTY_MARGIN times the upper bound."""
        return PENALTY_MARGIN * self.cost_bounds(self.table_loads(tables, topology), topology)[1]

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """(...) ms: the sum over the phases of the slowest device's time; `phases` is (..., D, 4).

        A learned model may override this with its own head over the (..., D, C) `shared` loads.
        """
        slowest = phases.max(axis=-2)
        return np.asarray(slowest[..., 0] + slowest[..., 1] + slowest[..., 2] + slowest[..., 3])

    def add(self, device_loads: FloatArray, table_loads: FloatArray) -> FloatArray:
        """Device loads (..., K) after a table with loads (..., K) joins."""
        split = self.num_sum_loads
        joined = device_loads + table_loads
        np.maximum(device_loads[..., split:], table_loads[..., split:], out=joined[..., split:])
        return joined

    def device_costs(self, loads: FloatArray, cluster: Cluster) -> FloatArray:
        """(..., D, 4) ms from (..., D, K) device loads; `cluster` broadcasts against the leading shape."""
        phases = self.device_phases(loads)
        self.couple(phases, loads[..., self.shared_loads], cluster)
        return phases

    def costs(self, loads: FloatArray, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
        """Both of (..., D, K) device loads: the (..., D, 4) phases and the (...) iteration cost, ms."""
        phases = self.device_costs(loads, cluster)
        return phases, self.iteration_cost(phases, loads[..., self.shared_loads], cluster)

    def reduce(self, table_loads: FloatArray, placement: Placement, num_devices: int) -> FloatArray:
        """(D, K) device loads of a whole placement, from (T, K) table loads and a (T,) placement."""
        split = self.num_sum_loads
        loads = np.zeros((num_devices, self.num_loads))
        np.add.at(loads[:, :split], placement, table_loads[:, :split])
        np.maximum.at(loads[:, split:], placement, table_loads[:, split:])
        return loads

    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> CostEstimate:
        """The cost of a checked (T,) placement, from scratch."""
        cluster = topology.cluster()
        loads = self.reduce(self.table_loads(tables, topology), placement, topology.num_devices)
        phases, cost = self.costs(loads, cluster)
        return CostEstimate(phases, float(cost))

    def single_table_phases(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T, 4) ms, the phases of the first device with each table alone on it, from (T, K) loads."""
        return self._alone(loads, topology)[0]

    def single_table_costs(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """(T,) ms, the cost of each table alone on the first device, from (T, K) loads."""
        return self._alone(loads, topology)[1]

    def _alone(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        alone = np.zeros((len(loads), topology.num_devices, self.num_loads))
        alone[:, 0] = loads
        phases, costs = self.costs(alone, topology.cluster())
        return phases[:, 0], costs


def placement_order(loads: FloatArray, topology: Topology, model: AdditiveCostModel) -> NDArray[np.int64]:
    """(T,) int64, tables by descending cost of the table alone: the order in which DreamShard places (section 3.2)."""
    return np.argsort(-model.single_table_costs(loads, topology), kind="stable")
