"""Evaluation: every task once and in order, failures charged and never dropped, costs recomputed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidCostError, InvalidOptionError, NoPlacementFoundError, UnknownNameError
from shard_gym.cost_models import CostEstimate, CostModel, CountedCostModel, make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.evaluation.evaluations import bootstrap_interval, compare, penalty_ms
from shard_gym.tasks import Task, TaskSuite, load_suite

MODEL = make_cost_model("analytical")


class Answers:
    """An agent whose placements are given."""

    name = "answers"

    def __init__(self, answer: Callable[[Task], Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def place(self, task: Task) -> Any:
        self.asked.append(task.name)
        return self.answer(task)

    def true_cost_queries(self, fingerprint: str) -> int:
        return 0


@pytest.fixture
def suite(random_task: Any) -> TaskSuite:
    rng = np.random.default_rng(0)
    return TaskSuite("own", [random_task(rng, 4 + i, 3, slack=1.5, name=f"own/{i}") for i in range(5)])


def known(task: Task) -> Any:
    return task.known_placement


def test_every_task_is_asked_once_in_order_and_costed_from_scratch(suite: TaskSuite) -> None:
    agent, progress = Answers(known), []
    result = evaluate(agent, suite, progress=lambda done, of: progress.append((done, of)))
    names = [task.name for task in suite]
    assert agent.asked == names == [each.task for each in result.tasks]
    assert progress == [(i + 1, 5) for i in range(5)]
    for each, task in zip(result.tasks, suite, strict=True):
        assert each.valid
        assert each.failure == ""
        assert each.placement == known(task).tolist()
        assert each.cost_ms == MODEL.estimate(known(task), task.tables, task.topology).total_ms
        assert each.seconds >= 0
    assert result.mean_cost_ms == pytest.approx(result.costs_ms.mean())
    assert result.failures == 0
    assert (result.suite, result.split, result.agent, result.cost_model) == (
        "own",
        "custom",
        "answers",
        "analytical-v2",
    )


def raises(error: Exception) -> Callable[[Task], Any]:
    def answer(task: Task) -> Any:
        raise error

    return answer


FAILURES = [
    (lambda task: known(task)[:-1], "shape"),
    (lambda task: [0, [1, 2]], "one list"),
    (lambda task: np.zeros(task.num_tables, int), "Device 0 is given"),
    (raises(NoPlacementFoundError("it is a dead end")), "it is a dead end"),
    (raises(NoPlacementFoundError()), "NoPlacementFoundError"),
]


@pytest.mark.parametrize(("answer", "reason"), FAILURES)
def test_an_answer_that_is_no_placement_is_a_failure_with_a_reason(
    suite: TaskSuite, answer: Callable[[Task], Any], reason: str
) -> None:
    """It is wrong on two tasks, and those are charged their penalty in the mean."""
    result = evaluate(Answers(lambda task: answer(task) if task.name in ("own/1", "own/3") else known(task)), suite)
    assert len(result.tasks) == 5
    assert [each.valid for each in result.tasks] == [True, False, True, False, True]
    assert result.failures == 2
    for row in (1, 3):
        assert result.tasks[row].cost_ms == penalty_ms(suite[row], MODEL)
        assert result.tasks[row].placement is None
        assert reason in result.tasks[row].failure
    assert result.mean_cost_ms == pytest.approx(np.mean([each.cost_ms for each in result.tasks]))
    assert result.mean_cost_ms > evaluate(Answers(known), suite).mean_cost_ms


def test_a_bug_in_an_agent_is_not_hidden(suite: TaskSuite) -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate(Answers(lambda task: 1 // 0), suite)


# What it takes


class Bare:
    """An agent with nothing but `place`."""

    def place(self, task: Task) -> Any:
        return known(task)


def test_an_object_with_place_alone_and_a_function_are_agents(suite: TaskSuite) -> None:
    result = evaluate(Bare(), suite)
    assert (result.agent, result.failures) == ("Bare", 0)
    assert result.costs_ms.tolist() == evaluate(known, suite).costs_ms.tolist()
    assert [each.true_cost_queries for each in result.tasks] == [0] * 5
    assert (evaluate(known, suite).agent, evaluate(Bare().place, suite).agent) == ("known", "place")
    model = CountedCostModel(MODEL)
    result = evaluate(make_agent("dim-greedy"), suite, model)
    assert model.queries >= 5
    assert sum(each.true_cost_queries for each in result.tasks) == 0  # those of evaluate itself are not counted


def test_what_is_no_agent_and_no_suite_is_refused_before_anything_is_placed(suite: TaskSuite) -> None:
    agent: Any
    for agent, says in (
        ("cost-greedy", r"agent must be an object with place\(task\).*shard_gym.agents.make_agent\('cost-greedy'\)"),
        (Bare, r"not a class; pass an instance: Bare\(\)"),
        ([0, 1], r"not \[0, 1\].*make_agent\(name\)"),
        (SimpleNamespace(act=len), r"Agents with act\(observations\) answer tasks of replanning, not of placement"),
    ):
        with pytest.raises(InvalidOptionError, match=says):
            evaluate(agent, suite)
    wrong: Any
    for wrong in (None, suite[0], list(suite)):
        with pytest.raises(
            InvalidOptionError, match=r"suite must be the name .* a TaskSuite or a DriftSuite.*TaskSuite\('mine'"
        ):
            evaluate(known, wrong)


class Measured(CostModel):
    """The least that a cost model has, with given costs."""

    name, version = "measured", 3

    def __init__(self, cost_ms: Callable[[Task], float] | float = 2.0, penalty: float = 9.0) -> None:
        self.cost_ms, self.penalty = cost_ms, penalty

    def estimate(self, placement: Any, tables: Any, topology: Any) -> CostEstimate:
        return CostEstimate(np.full((topology.num_devices, 4), 0.5), self.cost_ms)

    def penalty_ms(self, tables: Any, topology: Any) -> float:
        return self.penalty


def test_a_model_that_is_not_additive_scores_too(suite: TaskSuite) -> None:
    result = evaluate(Answers(lambda task: None if task.name == "own/2" else known(task)), suite, Measured())
    assert result.costs_ms.tolist() == [2.0, 2.0, 9.0, 2.0, 2.0]
    assert result.cost_model == "measured-v3"


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_cost_that_is_no_number_is_a_named_error(suite: TaskSuite, value: float) -> None:
    message = rf"'measured-v3' says {value} ms for the placement of task 'own/0' by agent 'known'"
    with pytest.raises(InvalidCostError, match=message):
        evaluate(known, suite, Measured(value))
    message = rf"'measured-v3' says a penalty of {value} ms of task 'own/0' by agent 'answers'"
    with pytest.raises(InvalidCostError, match=message):
        evaluate(Answers(lambda task: None), suite, Measured(penalty=value))
    assert evaluate(known, suite, Measured(penalty=value)).failures == 0  # nobody was charged it


def test_a_named_suite_is_loaded_with_its_split() -> None:
    for split in ("train", "test"):
        result = evaluate(make_agent("dim-greedy"), "dlrm-20x4", split=split)
        assert [each.task for each in result.tasks] == [task.name for task in load_suite("dlrm-20x4", split)]
        assert (result.split, result.sha256) == (split, load_suite("dlrm-20x4", split).sha256)
    with pytest.raises(UnknownNameError):
        evaluate(make_agent("dim-greedy"), "dlrm-20x4", "analytic")


# The interval


def test_the_interval_is_that_of_the_mean() -> None:
    """Of many normal samples: mean +- 1.96 standard errors."""
    values = np.random.default_rng(1).normal(10, 2, 400)
    low, high = bootstrap_interval(values)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    narrow = bootstrap_interval(values, confidence=0.5)
    assert low < narrow[0] < values.mean() < narrow[1] < high


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=40))
def test_the_interval_holds_the_mean_and_stays_within_the_values(numbers: list[float]) -> None:
    values = np.array(numbers)
    low, high = bootstrap_interval(values)
    assert type(low) is type(high) is float
    assert bootstrap_interval(values) == (low, high)
    assert values.min() * (1 - 1e-12) <= low <= high <= values.max() * (1 + 1e-12)


def test_without_best_known_costs_of_all_tasks_there_is_no_gap(suite: TaskSuite) -> None:
    evaluation = evaluate(make_agent("random"), suite)
    costs = {result.task: result.cost_ms / 2 for result in evaluation.tasks}
    assert compare(evaluation, evaluation, costs).to_best == pytest.approx(1.0)
    del costs[suite[3].name]
    assert compare(evaluation, evaluation, costs).to_best is None


# Queries


@pytest.mark.parametrize("name", ["cost-greedy", "local-search"])
def test_queries_are_counted_for_each_task(suite: TaskSuite, name: str) -> None:
    agent = make_agent(name, **({"max_queries": 50} if name == "local-search" else {}))
    queries = [each.true_cost_queries for each in evaluate(agent, suite).tasks]
    assert all(count >= task.num_tables for count, task in zip(queries, suite, strict=True))
    assert [each.true_cost_queries for each in evaluate(agent, suite).tasks] == queries  # not summed over evaluations


def test_evaluations_of_another_model_are_not_counted(suite: TaskSuite) -> None:
    class Scaled(type(MODEL)):  # type: ignore[misc]
        name = "scaled"

        def device_costs(self, loads: Any, cluster: Any) -> Any:
            return 2 * super().device_costs(loads, cluster)

    agent = make_agent("cost-greedy", cost_model=Scaled())
    assert [each.true_cost_queries for each in evaluate(agent, suite, MODEL).tasks] == [0] * 5
    assert all(each.true_cost_queries for each in evaluate(agent, suite, Scaled()).tasks)


def test_it_is_said_which_tasks_an_agent_left_to_another(suite: TaskSuite) -> None:
    class Leaves:
        name = answered_by = "leaves"

        def place(self, task: Task) -> Any:
            self.answered_by = "other" if task.name in (suite[1].name, suite[2].name) else self.name
            return known(task)

    found = evaluate(Leaves(), suite)
    assert [each.answered_by for each in found.tasks] == ["", "other", "other", "", ""]
    assert found.left_to_others == "2 of 5 by other"
    assert "answered: 2 of 5 by other" in repr(found)
    assert evaluate(known, suite).left_to_others == ""


def test_an_evaluation_is_shown_in_a_few_lines_and_as_a_data_frame(random_task: Any) -> None:
    suite = TaskSuite("mine", tuple(random_task(np.random.default_rng(k), 5, 2, name=f"<{k}>") for k in range(60)))
    with pytest.warns(UserWarning, match=r"returns what is no placement; such tasks fail .* device 9"):
        found = evaluate(lambda task: np.zeros(5, int) if task.name != "<7>" else np.full(5, 9), suite)
    lines = repr(found).splitlines()
    assert len(lines) <= 8
    assert "mine" in lines[0]
    assert "60 tasks" in lines[0]
    assert f"{found.mean_cost_ms:.3g}"[:3] in lines[1]
    assert "failures: 1, charged with their penalty; <7>:" in lines[-1]
    html = found._repr_html_()
    assert "&lt;7&gt;" in html, "names are escaped"
    assert "<7>" not in html
    pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert frame.index.tolist() == [task.name for task in suite]
    assert frame.cost_ms.mean() == pytest.approx(found.mean_cost_ms)
