"""Errors and rankings, against their definitions and SciPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.data.splits import SplitCosts
from shard_gym.cost_models.metrics import LEAST_MS, Error, errors, kendall_tau, estimates_of, ranking, top_k_regret
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.cost_models.neural.test_task_rows import RivalCounts, rival_tasks

MODEL = AnalyticalCostModel()


def test_errors_are_what_they_are_called() -> None:
    error = Error.of(np.array([1.0, 2.0, 4.0]), np.array([1.1, 1.0, 8.0]))
    assert error.count == 3
    assert error.mape == pytest.approx((0.1 + 0.5 + 1.0) / 3)
    assert error.ratio == pytest.approx((1.1 * 2 * 2) ** (1 / 3) - 1)
    assert Error.of(np.array([LEAST_MS * 3]), np.zeros(1)).ratio == pytest.approx(2.0)
    assert Error.of(np.empty(0), np.empty(0)).count == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=40))
def test_kendalls_tau_is_scipys(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs, float).T
    expected = kendalltau(one, other).statistic
    if np.isnan(expected):  # one of them never varies
        assert kendall_tau(one, other) == 0.0
    else:
        assert kendall_tau(one, other) == pytest.approx(expected, abs=1e-12)


def test_kendalls_tau_of_many_numbers() -> None:
    one, other = np.random.default_rng(0).normal(size=(2, 150))
    assert kendall_tau(one, one + other) == pytest.approx(kendalltau(one, one + other).statistic, abs=1e-12)


def test_regret_is_of_the_best_among_those_ranked_first() -> None:
    measured, said = np.array([3.0, 2.0, 5.0, 4.0]), np.array([2.0, 4.0, 1.0, 3.0])
    assert [top_k_regret(measured, said, k) for k in (1, 2, 3, 4)] == pytest.approx([1.5, 0.5, 0.5, 0.0])


def test_predictions_are_the_estimates(costs: SplitCosts, fitted: Any) -> None:
    data = costs.part("test")
    for model, tolerance in ((MODEL, 1e-12), (fitted("pooled"), 1e-4)):
        phases, cost = estimates_of(model, data)
        for p in range(len(data)):
            rows, topology = slice(data.start[p], data.start[p + 1]), data.topologies[data.topology[p]]
            said = model.estimate(data.devices[rows], data.tables.select(data.members[rows]), topology)
            size = topology.num_devices
            np.testing.assert_allclose(phases[p, :size], said.phases_ms, rtol=tolerance, atol=tolerance)
            assert not phases[p, size:].any()
            assert cost[p] == pytest.approx(said.total_ms, rel=tolerance)


def test_a_model_has_no_error_on_its_own_costs(costs: SplitCosts) -> None:
    found = errors(MODEL, costs.part("test"))
    assert found.cost.mape < 1e-12
    assert all(error.count and error.mape < 1e-12 for error in found.phases.values())
    doubled = replace(costs.data, cost_ms=costs.data.cost_ms * 2, phases_ms=costs.data.phases_ms * 4)
    found = errors(MODEL, doubled)
    assert (found.cost.mape, found.cost.ratio) == pytest.approx((0.5, 1.0))
    assert found.phases["backward"].mape == pytest.approx(0.75)


def test_phases_that_were_never_spent_have_no_error(costs: SplitCosts) -> None:
    alone = costs.data.take(np.flatnonzero(costs.data.num_devices == 1))
    found = errors(MODEL, alone)
    assert found.phases["forward_comm"].count == 0
    assert found.phases["forward"].count == len(alone)


def test_rankings(sampler: Any, groups: Any, fitted: Any) -> None:
    tasks = rival_tasks(MODEL, sampler, groups["test"], 4, 0, RivalCounts(random=30, greedy=5, proposals=60))
    itself = ranking(MODEL, tasks)
    assert (itself.kendall_tau, itself.regret, itself.tasks) == (pytest.approx(1.0), {1: 0.0, 5: 0.0}, 4)
    model: NeuralCostModel = fitted("neuroshard")
    learnt = ranking(model, tasks)
    assert 0.5 < learnt.kendall_tau < 1
    assert 0 <= learnt.regret[5] <= learnt.regret[1] < 0.2
    reversed_tasks = [replace(task, cost_ms=1 / task.cost_ms) for task in tasks]
    assert ranking(MODEL, reversed_tasks).kendall_tau == pytest.approx(-1.0)
