"""Agents, learners and explanations under cost models that only estimate whole placements, as measured ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import CostGreedyAgent, LocalSearchAgent, make_agent
from shard_gym.agents.training import make_learner
from shard_gym.common.errors import InvalidOptionError, MeasurementError
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate, CostModel, CountedEstimates, make_cost_model
from shard_gym.cost_models.analytical.additive_wrapper import AdditiveWrapper
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.evaluation import evaluate
from shard_gym.planning import explain
from shard_gym.tasks import Task, TaskSuite

ANALYTICAL = AnalyticalCostModel()


class Estimating(CostModel):
    """The analytical costs times `factor`, of whole placements only; every `failing`-th estimate fails."""

    name, version = "estimating", 1

    def __init__(self, factor: float = 1.0, failing: Callable[[int], bool] = lambda number: False) -> None:
        self.factor, self.failing, self.asked = factor, failing, 0

    def estimate(self, placement: Any, tables: Any, topology: Any) -> CostEstimate:
        self.asked += 1
        if self.failing(self.asked):
            raise MeasurementError("The worker of device 0 died.")
        estimate = ANALYTICAL.estimate(placement, tables, topology)
        return CostEstimate(self.factor * estimate.phases_ms, self.factor * estimate.total_ms)

    def penalty_ms(self, tables: Any, topology: Any) -> float:
        return self.factor * ANALYTICAL.penalty_ms(tables, topology)


@pytest.fixture
def suite(random_task: Any) -> TaskSuite:
    rng = np.random.default_rng(0)
    tasks = [random_task(rng, 8, 3) for _ in range(3)]
    return TaskSuite("small", [Task(f"small/{n}", each.tables, each.topology) for n, each in enumerate(tasks)])


def test_a_wrapped_model_costs_placements_like_the_model_itself(suite: TaskSuite) -> None:
    task, rng, model = suite[0], np.random.default_rng(1), Estimating()
    wrapped = AdditiveWrapper(model, task.tables, task.topology)
    loads = wrapped.loads(task.tables, task.topology)
    for count in (8, 3):
        some, placement = rng.permutation(8)[:count], rng.integers(3, size=count)
        expected = ANALYTICAL.estimate(placement, task.tables.select(some), task.topology)
        phases, cost = wrapped.costs(wrapped.reduce(loads[some], placement, 3), task.topology.cluster())
        assert cost == pytest.approx(expected.total_ms, rel=1e-12)
        assert phases == pytest.approx(expected.phases_ms, rel=1e-12)
    for asked in (model.asked + 1, model.asked + 1):  # an estimate is made once
        placement = np.arange(8) % 3
        expected = ANALYTICAL.estimate(placement, task.tables, task.topology)
        assert wrapped.estimate(placement, task.tables, task.topology).total_ms == expected.total_ms
        assert model.asked == asked
    low, high = wrapped.bounds(loads, task.topology)
    assert low <= expected.total_ms <= high
    assert wrapped.penalty_ms(task.tables, task.topology) == pytest.approx(model.penalty_ms(task.tables, task.topology))
    assert wrapped.costs(np.zeros((3, 8)), task.topology.cluster())[1] == 0


def test_the_greedy_agent_by_cost_places_as_under_the_additive_model(suite: TaskSuite) -> None:
    estimating = CostGreedyAgent(Estimating())
    for task in suite:
        assert np.array_equal(estimating.place(task), CostGreedyAgent(ANALYTICAL).place(task))
    assert 0 < estimating.true_cost_queries("estimating-v1") <= sum(task.num_tables * 3 for task in suite)


def test_local_search_keeps_its_budget_of_estimates_and_uses_it(suite: TaskSuite) -> None:
    model = Estimating()
    agent = LocalSearchAgent(model, max_queries=60)
    results = evaluate(agent, suite, model)
    assert all(60 <= result.true_cost_queries <= 64 for result in results.tasks)  # a perturbation may exceed it
    heuristics = [evaluate(make_agent(name), suite, model).costs_ms for name in ("lookup-greedy", "dim-greedy")]
    assert (results.costs_ms <= np.min(heuristics, axis=0) + 1e-9).all()
    agent.max_queries = 1  # the starts are enough
    before = agent.cost_model.queries
    agent.place(suite[0])
    assert agent.cost_model.queries == before + 1


def test_a_search_ends_when_the_cost_of_every_placement_is_known(random_task: Any) -> None:
    agent = LocalSearchAgent(Estimating(), max_queries=100)
    agent.place(random_task(np.random.default_rng(0), 3, 2))
    assert agent.cost_model.queries <= 3**3  # on a device, on the other, or not placed


@pytest.mark.parametrize(
    ("name", "options"),
    [("dreamshard", {"preset": "paper", "measurements": 4, "cost_updates": 5}), ("rnn", {"episodes": 3})],
)
def test_what_learns_from_placements_learns_the_same_from_estimates(
    suite: TaskSuite, trained: Any, name: str, options: dict[str, Any]
) -> None:
    weights = []
    for model in (ANALYTICAL, Estimating()):
        learner = make_learner(name, suite, cost_model=model, iterations=2, **options)
        trained(learner)
        assert learner.true_cost_queries == learner.planned_queries
        weights.append(learner.weights())
    assert all(np.array_equal(array, weights[1][key]) for key, array in weights[0].items())


def test_attention_learns_from_estimates_one_by_one(random_task: Any) -> None:
    """As many evaluations as complete rollouts, and as many records as were asked for."""
    few = {"tasks": 2, "rollouts": 3, "updates": 2, "hidden": 8, "layers": 1, "records": 4, "cost_updates": 2}
    suite, weights = TaskSuite("one", (random_task(np.random.default_rng(0), 6, 2),)), []
    for model in (ANALYTICAL, Estimating()):
        learner = make_learner("attention", suite, cost_model=model, **few)
        learner.iterate()
        assert learner.true_cost_queries == 2 * 2 * 3
        assert len(learner.state()["data.cost_ms"]) == 4
        weights.append(learner.weights())
    assert all(np.allclose(array, weights[1][name], atol=1e-5) for name, array in weights[0].items())


def test_agents_of_sb3_see_estimates_and_earn_the_true_cost(suite: TaskSuite) -> None:
    costs = []
    for factor in (1.0, 3.0):
        learner = make_learner("maskable-ppo", suite, cost_model=Estimating(factor), num_envs=4, iterations=1)
        costs.append(learner.iterate().mean_cost_ms)
        assert learner.true_cost_queries == 4  # the ends of the episodes
    assert costs[1] == pytest.approx(3 * costs[0])
    assert evaluate(learner.agent(), suite, Estimating()).failures == 0


@pytest.mark.parametrize(
    ("name", "few"),
    [("dreamshard", {"cost_updates": 5}), ("rnn", {}), ("ppo", {"num_envs": 4}), ("dqn", {"num_envs": 4})],
)
def test_a_measurement_that_fails_is_tried_again_and_two_failures_cost_the_penalty(
    suite: TaskSuite, name: str, few: dict[str, Any]
) -> None:
    """The first measurement fails once, so it is made again; the third placement fails twice."""
    model = Estimating(failing=lambda number: number in (1, 4, 5))
    learner = make_learner(name, suite, cost_model=model, iterations=1, **few)
    report = learner.iterate()
    assert (learner.failures, learner.true_cost_queries) == (1, learner.costed + 3)
    assert np.isfinite(report.mean_cost_ms)
    if "num_envs" in few:
        penalties = [model.penalty_ms(task.tables, task.topology) for task in suite]
        assert min(penalties) / 4 < report.mean_cost_ms < max(penalties)
    with pytest.raises(MeasurementError, match="died"):
        make_learner(name, suite, cost_model=Estimating(failing=lambda number: True), **few).iterate()


def test_explanations_have_true_phases_and_no_moves(suite: TaskSuite) -> None:
    task = suite[0]
    placement = make_agent("random").place(task)
    explanation = explain(task, placement, Estimating(2.0))
    true = ANALYTICAL.estimate(placement, task.tables, task.topology)
    assert explanation.total_ms == 2 * true.total_ms
    assert np.array_equal(explanation.phases_ms, 2 * true.phases_ms)
    assert explanation.lower_bound_ms is None
    assert explanation.moves is None
    assert explain(task, placement, ANALYTICAL).moves


def test_estimates_are_counted_and_told(suite: TaskSuite) -> None:
    counted, told = CountedEstimates(Estimating()), []
    counted.on_estimate = lambda estimate: told.append((counted.queries, estimate and estimate.total_ms))
    costs = evaluate(make_agent("random"), suite, counted).costs_ms.tolist()
    assert told == [(number, cost) for number, cost in enumerate(costs, start=1)]
    failing = CountedEstimates(Estimating(failing=lambda number: True))
    failing.on_estimate = counted.on_estimate
    with pytest.raises(MeasurementError):
        failing.estimate(np.zeros(suite[0].num_tables, np.int64), suite[0].tables, suite[0].topology)
    assert told[-1] == (3, None)
    assert counted.fingerprint == "estimating-v1"
    measured = MeasuredCostModel("cpu")
    assert CountedEstimates(measured).detail_names == measured.detail_names


def test_a_model_that_is_not_additive_is_refused_where_every_step_is_estimated() -> None:
    model = Estimating()
    assert make_cost_model(model) is model
    with pytest.raises(InvalidOptionError, match=r"'estimating' is not additive.*EmbeddingPlacementReal-v0"):
        make_cost_model(model, additive=True)
