"""Validation of a learner: the same few of its tasks are answered after each iteration; and the agents to beat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents.base import Agent
from shard_gym.agents.registry import LEARNERS, make_agent
from shard_gym.agents.training.learner import Learner
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.common.io.files import write_json
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.evaluation.curve import Curve, Point, load_curve
from shard_gym.tasks import Suite, problem_of

NUM_TASKS = 5  # that are answered where the number is not given

MAX_POINTS = 50
"""Points of a curve at most. A longer run is validated after every second iteration, or every third, and so on."""


class Validation:
    """The same few tasks of a learner's suite, spread over its sizes, answered by its agent as training goes on.

    Copies of the agent answer them, their costs are not counted, and no random number of training is drawn: the run
    ends bit by bit like one that is not validated.

    Args:
        learner: makes the agents.
        rivals: simple agents, at least one; the reference is the one that fails on the fewest tasks, at the least cost.
        count: the number of tasks; all of the suite if it has fewer.

    Attributes:
        curve: what was found so far.

    Raises:
        InvalidOptionError: `count` is no positive integer.
        MeasurementError: costs are measured, and none of a rival's answers could be.
    """

    def __init__(self, learner: Learner, rivals: Sequence[Agent], count: int = NUM_TASKS) -> None:
        suite, problem = learner.suite, problem_of(learner.suite[0])
        self._learner = learner
        self._tasks = spread_over_sizes(suite, checked_count("The number of tasks to validate on", count))
        self._model = problem.model(learner.cost_model.model)
        simple = [evaluate(agent, self._tasks, self._model) for agent in rivals]
        best = min(simple, key=lambda each: (each.failures, each.mean_cost_ms))
        self._reference_ms = best.costs_ms
        names = [task.name for task in self._tasks]
        self.curve = Curve(learner.name, suite.name, suite.split, best.cost_model, names, best.agent)

    @staticmethod
    def is_cheap(learner: Learner) -> bool:
        """Whether the tasks are answered and scored in moments: not where costs are measured."""
        return learner.answers_quickly and isinstance(learner.cost_model, AdditiveCostModel)

    @property
    def last(self) -> str:
        """The last point in words; empty before the first one."""
        return self.curve.said(self.curve.points[-1]) if self.curve.points else ""

    def resume(self, path: Path) -> None:
        """Go on with the curve in `path`, if there is one, after the iterations that the learner has done.

        Raises:
            InvalidOptionError: it is of other tasks.
            DamagedFileError: it is no curve.
        """
        if not path.exists():
            return
        found = load_curve(path)
        for name, value in vars(self.curve).items():
            if name != "points" and (other := getattr(found, name)) != value:
                raise InvalidOptionError(
                    f"The curve in {path} has {name} {short_repr(other)}, not {short_repr(value)}. Validate on as many "
                    "tasks as before, or remove the file to begin another curve."
                )
        self.curve.points = [each for each in found.points if each.iteration <= self._learner.iteration]

    def add(self) -> Point | None:
        """Validate the agent of now, if the curve shall have a point after the learner's iterations."""
        learner = self._learner
        every = math.ceil(learner.iterations / MAX_POINTS)
        if learner.iteration % every and learner.iteration != learner.iterations:
            return None
        learner.on_stage("validating")
        found = evaluate(learner.agent(), self._tasks, self._model)
        ratio = float((found.costs_ms / self._reference_ms).mean())
        point = Point(learner.iteration, learner.true_cost_queries, found.mean_cost_ms, ratio - 1.0, found.failures)
        self.curve.points.append(point)
        return point

    def save(self, path: Path) -> None:
        """Write the curve, atomically."""
        write_json(path, asdict(self.curve))


def spread_over_sizes(suite: Suite[Any], count: int) -> Suite[Any]:
    """`count` tasks of a suite, evenly spaced in the order of their devices and tables; all if it has no more."""
    order = sorted(suite, key=lambda task: (task.num_devices, task.num_tables))
    chosen = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return replace(suite, tasks=tuple(order[each] for each in chosen.tolist()))


def guided_rivals(agent: str, options: Mapping[str, Any], tasks: Suite[Any]) -> tuple[str, ...]:
    """The simple agents that look at costs, for a learned one that does with its options; none for any other."""
    problem = problem_of(tasks[0])
    asks = LEARNERS[agent].learner(problem.name).asks != "nothing" and options.get("observation") != "features"
    return ("cost-greedy",) if asks and problem.goals else ()


def goal_of(tasks: Suite[Any], model: CostModel, more: Sequence[str] = ()) -> Evaluation | None:
    """The cheapest of the problem's simple agents, and `more`, on the tasks to learn from; None if there are none.

    It is one of those that fail on the fewest tasks.
    """
    names = (*problem_of(tasks[0]).goals, *more)
    evaluations = [evaluate(make_agent(name, cost_model=model, suite=tasks.name), tasks, model) for name in names]
    return min(evaluations, key=lambda each: (each.failures, each.mean_cost_ms), default=None)
