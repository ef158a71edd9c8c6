"""`AdditiveWrapper`: any cost model in additive-load form, for agents that compare parts or variants of a placement."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical.model import AnalyticalCostModel
from shard_gym.cost_models.base import PHASES, AdditiveCostModel, CostEstimate, CostModel
from shard_gym.cost_models.base.model import PENALTY_MARGIN
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.variants import Variants
from shard_gym.tables import Tables


class AdditiveWrapper(AdditiveCostModel):
    """A cost model that only estimates whole placements, in additive-load form, for the tables of one task.

    The loads of a table say that it is there: table t has a 1 in column t. So the loads of all devices are a placement
    of some or all tables, which the wrapped model estimates, each different one once. The order of the tables and the
    lower bound come from the analytical cost model, because they would cost an estimate for each table.
    """

    def __init__(self, model: CostModel, tables: Tables, topology: Topology) -> None:
        self.name, self.version = model.name, model.version
        self.num_loads = self.num_sum_loads = len(tables)
        self._model, self._tables, self._topology = model, tables, topology
        self._analytical = AnalyticalCostModel()
        self._analytical_loads = self._analytical.loads(tables, topology)
        self._estimates: dict[bytes, CostEstimate] = {}

    @property
    @override
    def fingerprint(self) -> str:
        return self._model.fingerprint

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        """(T, T) float64, ones on the diagonal."""
        return np.eye(self.num_loads)

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) zeros: every phase depends on all devices."""
        return np.zeros((*loads.shape[:-1], len(PHASES)))

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Write all phases of the placements whose (..., D, T) memberships are `shared`."""
        for index in np.ndindex(phases.shape[:-2]):
            phases[index] = self._estimate(shared[index]).phases_ms

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """(...) ms, the totals of the estimates."""
        costs = np.empty(phases.shape[:-2])
        for index in np.ndindex(costs.shape):
            costs[index] = self._estimate(shared[index]).total_ms
        return costs

    def bounds(self, loads: FloatArray, topology: Topology, variants: Variants | None = None) -> tuple[float, float]:
        """The analytical lower bound, which costs may be below, and the upper one that the model's penalty promises."""
        lower = self._analytical.bounds(self._analytical_loads, topology)[0]
        return lower, self._model.penalty_ms(self._tables, self._topology) / PENALTY_MARGIN

    def single_tables(self, loads: FloatArray, topology: Topology) -> tuple[FloatArray, FloatArray]:
        """(T, 4) and (T,) ms, those of the analytical model."""
        return self._analytical.single_tables(self._analytical_loads, topology)

    def _estimate(self, membership: FloatArray) -> CostEstimate:
        """The estimate of the placement of the tables that have a device in (D, T) `membership`."""
        placed = np.flatnonzero(membership.any(axis=0))
        if not placed.size:
            return CostEstimate(np.zeros((self._topology.num_devices, len(PHASES))), 0.0)
        devices = membership.argmax(axis=0)
        key = np.where(membership.any(axis=0), devices, -1).tobytes()
        if key not in self._estimates:
            tables = self._tables.select(placed)
            self._estimates[key] = self._model.estimate(devices[placed], tables, self._topology)
        return self._estimates[key]
