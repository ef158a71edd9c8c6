"""The baseline is the least squares solution, and a cost model like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.linear import LinearCostModel, fit_linear
from shard_gym.cost_models.fitting.metrics import errors, estimates_of
from shard_gym.tables import FEATURE_NAMES


def test_phases_that_are_linear_are_found(costs: SplitCosts) -> None:
    rng = np.random.default_rng(0)
    truth = LinearCostModel(np.abs(rng.normal(size=(len(FEATURE_NAMES) + 2, 4))))
    phases, cost = estimates_of(truth, costs.data)
    data = replace(costs.data, phases_ms=phases, cost_ms=cost)
    found = errors(fit_linear(SplitCosts(data, costs.table_split).part("train")), data)
    assert found.cost.mape < 1e-6
    assert max(error.mape for error in found.phases.values()) < 1e-6


def test_costs_lie_within_the_bounds(costs: SplitCosts) -> None:
    model, data = fit_linear(costs.part("train")), costs.part("test")
    for p in range(len(data)):
        rows, topology = slice(data.start[p], data.start[p + 1]), data.topologies[data.topology[p]]
        tables = data.tables.select(data.members[rows])
        said = model.estimate(data.devices[rows], tables, topology)
        low, high = model.bounds(model.loads(tables, topology), topology)
        assert low <= said.total_ms <= high * (1 + 1e-12)
        assert (said.phases_ms >= 0).all()
        assert said.total_ms == pytest.approx(said.phases_ms.max(axis=0).sum())
        assert (model.loads(tables, topology) >= 0).all()
