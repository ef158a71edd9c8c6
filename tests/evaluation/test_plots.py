from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shard_gym import evaluate, load_suite
from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError, InvalidPlacementError
from shard_gym.tasks import TaskSuite

pytest.importorskip("matplotlib")

from shard_gym.evaluation.curve import Curve, Point
from shard_gym.evaluation.plots import plot_costs, plot_learning, plot_placement


@pytest.fixture(scope="module")
def suite() -> TaskSuite:
    return TaskSuite("three", load_suite("dlrm-20x4").tasks[:3])


def test_costs_are_drawn_in_the_order_of_the_first_agent(suite: TaskSuite) -> None:
    first, second = (evaluate(make_agent(name), suite) for name in ("lookup-greedy", "random"))
    failed = replace(second, tasks=(replace(second.tasks[0], valid=False), *second.tasks[1:]))
    figure = plot_costs(first, failed)
    lines = figure.axes[0].lines
    order = np.argsort(first.costs_ms)
    assert lines[0].get_ydata().tolist() == sorted(first.costs_ms)
    assert len(lines[2].get_ydata()) == 2
    assert lines[3].get_ydata().tolist() == [second.costs_ms[0]]
    assert lines[3].get_xdata().tolist() == [order.tolist().index(0)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lookup-greedy", "random"]


def test_only_what_can_be_compared_is_drawn(suite: TaskSuite) -> None:
    first = evaluate(make_agent("random"), suite)
    for others, says in (
        ((), "at least one Evaluation"),
        ((first, replace(first, tasks=first.tasks[:2])), "other tasks"),
        ((first, replace(first, cost_model="other-v1")), "was scored by other-v1"),
    ):
        with pytest.raises(InvalidOptionError, match=says):
            plot_costs(*others)


def test_a_placement_is_drawn_and_checked(suite: TaskSuite) -> None:
    figure = plot_placement(suite[0], make_agent("lookup-greedy").place(suite[0]))
    words = " ".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))
    assert suite[0].name in words
    with pytest.raises(InvalidPlacementError):
        plot_placement(suite[0], [0])


def curve(*ratios: float, failures: int = 0, tasks: int = 2) -> Curve:
    points = [Point(n, 10 * n, 1.0, ratio, failures) for n, ratio in enumerate(ratios, start=1)]
    return Curve("rnn", "three", "train", "analytical", ["a", "b"][:tasks], "lane-greedy", points)


def test_learning_curves_are_drawn_in_percent_beside_the_reference() -> None:
    axes = plot_learning({"one": curve(0.5, 0.2, -0.1), "other": curve(0.3, failures=1)}).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([50.0, 20.0, -10.0])
    assert [len(axes.lines[number].get_ydata()) for number in (1, 3)] == [0, 1], "crosses are failures"
    assert "2 tasks above lane-greedy" in axes.get_ylabel()


def test_curves_of_several_learners_are_over_their_evaluations() -> None:
    axes = plot_learning({"one": curve(0.5, 0.2), "other": replace(curve(0.3), agent="ppo")}).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [each.true_cost_queries for each in curve(0.5, 0.2).points]
    assert "evaluations" in axes.get_xlabel()


@pytest.mark.parametrize("curves", [{}, {"empty": curve()}, {"one": curve(0.1), "other": curve(0.1, tasks=1)}])
def test_only_curves_of_the_same_tasks_are_drawn(curves: dict[str, Curve]) -> None:
    with pytest.raises(InvalidOptionError, match=r"wants curves with points|of other tasks"):
        plot_learning(curves)
