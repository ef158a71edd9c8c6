"""Figures for notebooks and papers: a placement, and the cost of each task for several agents. Needs matplotlib.

A figure is shown at the end of a notebook's cell; `figure.savefig("costs.pdf")` writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.envs.placement.rendering.figure import draw
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import Evaluation
from shard_gym.explain import explain
from shard_gym.io.pictures import COLORS, INK, LINE, matplotlib_missing
from shard_gym.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot_placement(task: Task, placement: ArrayLike, cost_model: str | CostModel = "analytical") -> Figure:
    """What each device does in each phase, and its memory: the figure of `shard-gym show --picture`.

    Args:
        task: the task.
        placement: (T,) ints, the device of each table.
        cost_model: the model that estimates the times, or its name.

    Raises:
        InvalidPlacementError: the placement is not valid (see `check_placement`).
        MissingExtraError: matplotlib is not installed.
    """
    _require_matplotlib()
    explained = explain(task, placement, make_cost_model(cost_model))
    return draw(PlacementView(task, explained.devices, explained.phases_ms, explained.total_ms))


def plot_costs(*evaluations: Evaluation) -> Figure:
    """The cost of each task for each agent; tasks by their cost for the first one. Crosses are failures.

    Args:
        evaluations: of different agents on the same tasks, with the same cost model.

    Raises:
        InvalidOptionError: there is none, or they are of other tasks or cost models.
        MissingExtraError: matplotlib is not installed.
    """
    _require_matplotlib()
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
    from shard_gym.io.figures import NotebookFigure

    order = np.argsort(first.costs_ms, kind="stable")
    figure = NotebookFigure(figsize=(10.0, 4.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    for number, evaluation in enumerate(evaluations):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        costs, valid = evaluation.costs_ms[order], np.array([each.valid for each in evaluation.tasks])[order]
        places = np.arange(len(costs))
        axes.plot(places[valid], costs[valid], marker, color=color, markersize=5, label=evaluation.agent)
        axes.plot(places[~valid], costs[~valid], "x", color=color, markersize=7)
    axes.set_xlabel(f"tasks of {first.suite} ({first.split}), by their cost for {first.agent}", color=INK)
    axes.set_ylabel("cost, ms", color=INK)
    axes.set_ylim(bottom=0)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _require_matplotlib() -> None:
    if missing := matplotlib_missing():
        raise missing
