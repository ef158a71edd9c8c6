"""Errors and rankings, against their definitions."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import MissingExtraError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.fitting import CostDataset
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.metrics import (
    LEAST_MS,
    Error,
    errors,
    estimates_of,
    kendall_tau,
    ranking,
    top_k_regret,
)

MODEL = AnalyticalCostModel()


def test_errors_are_what_they_are_called() -> None:
    error = Error.of(np.array([1.0, 2.0, 4.0]), np.array([1.1, 1.0, 8.0]))
    assert error.count == 3
    assert error.mape == pytest.approx((0.1 + 0.5 + 1.0) / 3)
    assert error.ratio == pytest.approx((1.1 * 2 * 2) ** (1 / 3) - 1)
    assert str(error) == "53.3 % (63.9 %)"
    assert Error.of(np.array([LEAST_MS * 3]), np.zeros(1)).ratio == pytest.approx(2.0)
    nothing = Error.of(np.empty(0), np.empty(0))
    assert (nothing.count, str(nothing)) == (0, "-")


def tau_b(one: np.ndarray, other: np.ndarray) -> float:
    """Kendall's tau-b by its definition over all pairs; 0 where it is not defined."""
    first, second = (np.sign(values[:, None] - values[None, :]) for values in (one, other))
    pairs = np.sqrt(np.abs(first).sum() * np.abs(second).sum())
    return float((first * second).sum() / pairs) if pairs else 0.0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_kendalls_tau_corrects_for_ties(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs, float).T
    assert kendall_tau(one, other) == pytest.approx(tau_b(one, other), abs=1e-12)


def test_kendalls_tau_needs_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[torch\]"):
        kendall_tau(np.arange(3.0), np.arange(3.0))


def test_regret_is_of_the_best_among_those_ranked_first() -> None:
    measured, estimated = np.array([3.0, 2.0, 5.0, 4.0]), np.array([2.0, 4.0, 1.0, 3.0])
    assert [top_k_regret(measured, estimated, k) for k in (1, 2, 3, 4)] == pytest.approx([1.5, 0.5, 0.5, 0.0])


def test_estimates_of_a_data_set_are_those_of_its_placements(costs: SplitCosts, fitted: Any) -> None:
    data = costs.part("test")
    for model, tolerance in ((MODEL, 1e-12), (fitted("pooled"), 1e-4)):
        phases, cost = estimates_of(model, data)
        for p in range(0, len(data), 4):
            rows, topology = slice(data.start[p], data.start[p + 1]), data.topologies[data.topology[p]]
            estimate = model.estimate(data.devices[rows], data.tables.select(data.members[rows]), topology)
            size = topology.num_devices
            np.testing.assert_allclose(phases[p, :size], estimate.phases_ms, rtol=tolerance, atol=tolerance)
            assert not phases[p, size:].any()
            assert cost[p] == pytest.approx(estimate.total_ms, rel=tolerance)


def test_a_model_has_no_error_on_its_own_costs(costs: SplitCosts) -> None:
    found = errors(MODEL, costs.part("test"))
    assert found.cost.mape < 1e-12
    assert all(error.count and error.mape < 1e-12 for error in found.phases.values())
    doubled = replace(costs.data, cost_ms=costs.data.cost_ms * 2, phases_ms=costs.data.phases_ms * 4)
    found = errors(MODEL, doubled)
    assert (found.cost.mape, found.cost.ratio) == pytest.approx((0.5, 1.0))
    assert found.phases["backward"].mape == pytest.approx(0.75)


def test_rankings_range_from_the_measured_order_to_the_reverse(ranked_tasks: list[CostDataset], fitted: Any) -> None:
    exact = ranking(MODEL, ranked_tasks)
    assert (exact.kendall_tau, exact.regret, exact.tasks) == (pytest.approx(1.0), {1: 0.0, 5: 0.0}, 4)
    learned = ranking(fitted("neuroshard"), ranked_tasks)
    assert 0.5 < learned.kendall_tau < 1
    assert 0 <= learned.regret[5] <= learned.regret[1] < 0.2
    reversed_tasks = [replace(task, cost_ms=1 / task.cost_ms) for task in ranked_tasks]
    assert ranking(MODEL, reversed_tasks).kendall_tau == pytest.approx(-1.0)
