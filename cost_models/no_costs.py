"""A cost model without costs, for placing with a policy that sees none."""

from __future__ import annotations

import numpy as np

from shard_gym.cost_models.base import PHASES, AdditiveCostModel, FloatArray, PlainCosts
from shard_gym.tables import Tables
from shard_gym.topology import Cluster, Topology


class NoCosts(AdditiveCostModel):
    """Every placement costs 0 ms. An environment steps under it without evaluating anything."""

    name = "no-costs"
    version = 1
    num_loads = 1
    num_sum_loads = 1

    def table_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        """(T, 1) zeros."""
        return np.zeros((len(tables), self.num_loads))

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """(..., 4) zeros."""
        return np.zeros((*loads.shape[:-1], len(PHASES)))

    @property
    def plain_costs(self) -> PlainCosts:
        """See `AdditiveCostModel`."""
        return _nothing

    def cost_bounds(self, loads: FloatArray, topology: Topology) -> tuple[float, float]:
        """0, and 1, so that a failure is charged more than nothing."""
        return 0.0, 1.0


def _nothing(
    device: int, loads: list[float], phases: list[list[float]], shared: list[list[float]], cluster: Cluster
) -> float:
    """See `PlainCosts`."""
    return 0.0
