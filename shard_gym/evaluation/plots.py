"""Figures for notebooks and papers: a placement, the costs of tasks for several agents, and learning curves.

They need matplotlib.

A figure is shown at the end of a notebook's cell; `figure.savefig("costs.pdf")` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.pictures import COLORS, GREY, INK, LINE, require_matplotlib
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.envs.placement.rendering.figure import draw
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.evaluation.curve import Curve
from shard_gym.evaluation.evaluations import Evaluation
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot_placement(task: Task, placement: ArrayLike, cost_model: str | CostModel = "analytical") -> Figure:
    """What each device does in each phase, and its memory: the figure of `shard-gym show --picture`.

    Args:
        placement: (T,) ints, the device of each table.
        cost_model: the model that estimates the times, or its name.

    Raises:
        InvalidPlacementError: the placement is not valid (see `check_placement`).
        MissingExtraError: matplotlib is not installed.
    """
    require_matplotlib()
    devices = check_placement(placement, task.tables, task.topology)
    cost = make_cost_model(cost_model).estimate(devices, task.tables, task.topology)
    return draw(PlacementView(task, devices, cost.phases_ms, cost.total_ms))


def plot_costs(*evaluations: Evaluation) -> Figure:
    """The cost of each task for each agent; tasks by their cost for the first one. Crosses are failures.

    Args:
        evaluations: of different agents on the same tasks, with the same cost model.

    Raises:
        InvalidOptionError: there is none, or they are of other tasks or cost models.
        MissingExtraError: matplotlib is not installed.
    """
    require_matplotlib()
    if not evaluations:
        raise InvalidOptionError("plot_costs wants at least one Evaluation, as shard_gym.evaluate returns it.")
    first = evaluations[0]
    for other in evaluations[1:]:
        if [each.task for each in other.tasks] != [each.task for each in first.tasks]:
            raise InvalidOptionError(f"{other.agent} was evaluated on other tasks than {first.agent}.")
        if other.cost_model != first.cost_model:
            raise InvalidOptionError(
                f"{other.agent} was scored by {other.cost_model}, but {first.agent} by {first.cost_model}."
            )
    order = np.argsort(first.costs_ms, kind="stable")
    figure, axes = _new_figure()
    for number, evaluation in enumerate(evaluations):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        costs, valid = evaluation.costs_ms[order], np.array([each.valid for each in evaluation.tasks])[order]
        places = np.arange(len(costs))
        axes.plot(places[valid], costs[valid], marker, color=color, markersize=5, label=evaluation.agent)
        axes.plot(places[~valid], costs[~valid], "x", color=color, markersize=7)
    axes.set_xlabel(f"tasks of {first.suite} ({first.split}), by their cost for {first.agent}", color=INK)
    axes.set_ylabel("cost, ms", color=INK)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def plot_learning(curves: Mapping[str, Curve]) -> Figure:
    """The cost of the validation tasks of training runs over the iterations, in percent above the simple reference.

    Of runs of several learners it is over the evaluations of the true cost. Crosses are iterations after which a task
    failed, which counts as its penalty.

    Args:
        curves: the curve of each run (see `load_curve`) by its name, all on the same tasks.

    Raises:
        InvalidOptionError: there is none, one has no point, or they are of other tasks.
        MissingExtraError: matplotlib is not installed.
    """
    require_matplotlib()
    first = next(iter(curves.values()), None)
    if first is None or not all(curve.points for curve in curves.values()):
        raise InvalidOptionError("plot_learning wants curves with points: train with a validation (--validate 5).")
    figure, axes = _new_figure()
    several = len({curve.agent for curve in curves.values()}) > 1
    for number, (name, curve) in enumerate(curves.items()):
        if (curve.tasks, curve.reference, curve.cost_model) != (first.tasks, first.reference, first.cost_model):
            raise InvalidOptionError(f"The curve of {name} is of other tasks, or other costs, than the first one.")
        color = COLORS[number % len(COLORS)]
        done = np.array([each.true_cost_queries if several else each.iteration for each in curve.points])
        above = np.array([100 * each.to_reference for each in curve.points])
        failed = np.array([each.failures > 0 for each in curve.points])
        axes.plot(done, above, "-" if len(done) > 1 else "o", color=color, label=name)
        axes.plot(done[failed], above[failed], "x", color=color, markersize=7)
    axes.axhline(0.0, color=GREY, linestyle="--", linewidth=1.0, label=first.reference)
    axes.locator_params(axis="x", integer=True)
    over = "evaluations of the true cost in training" if several else "iterations"
    axes.set_xlabel(f"{over} on {first.suite} ({first.split})", color=INK)
    axes.set_ylabel(f"cost of {len(first.tasks)} tasks above {first.reference}, %", color=INK)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _new_figure() -> tuple[Figure, Any]:
    """A figure in the common style, and its axes."""
    from shard_gym.common.io.figures import NotebookFigure

    figure = NotebookFigure(figsize=(10.0, 4.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    return figure, axes
