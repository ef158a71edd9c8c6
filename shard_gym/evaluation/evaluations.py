"""Evaluation: an agent answers every task of a suite once; every answer is checked and its cost recomputed."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.common.attempts import FailuresInARow, tried_twice
from shard_gym.common.errors import (
    InvalidCostError,
    InvalidPlacementError,
    MeasurementError,
    MemoryExceededError,
    MissingExtraError,
    wrong_kind,
)
from shard_gym.common.io.html import card
from shard_gym.common.text import counted, format_seconds
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.plans.placement import Placement
from shard_gym.tasks import PROBLEMS, Attempt, Problem, Suite, Task, load_suite, problem_of
from shard_gym.tasks.problems.base import FAILURES
from shard_gym.tasks.task import cost_model_for

BOOTSTRAP_SAMPLES = 10_000
CONFIDENCE = 0.95

Progress = Callable[[int, int], None]
"""Called with the number of tasks done and of all tasks."""


AnyAgent = Any
"""What `evaluate` accepts as an agent: an object with `place`, or a function; of replanning, one with `act`."""


@dataclass(frozen=True)
class TaskResult:
    """One task's outcome."""

    task: str  #: its name
    #: Cost of the answer, of replanning the time of the whole episode; the task's penalty if it is not valid.
    cost_ms: float
    valid: bool  #: whether there was one, it passed the checks of its problem, and its cost could be measured
    seconds: float  #: wall-clock time of the agent
    true_cost_queries: int  #: evaluations of the scoring cost model by the agent while it answered the task
    #: T device numbers; None if there was no usable placement, or the task is of another problem
    placement: list[int] | None
    failure: str = ""  #: why it is not valid; empty if it is
    #: Of a task whose tables may be split, T pairs of a sharding type and shards (`shardings_to_json`).
    plan: list[Any] | None = None
    sequence: str | None = None  #: of a task of replanning, a digit for each decision of the episode
    answered_by: str = ""  #: another agent, to which the agent left the task; empty if it answered itself

    @property
    def answer(self) -> Any:
        """The placement, the plan or the sequence; None if there was no usable one."""
        return next((each for each in (self.placement, self.plan, self.sequence) if each is not None), None)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """An agent's outcome on a suite.

    Attributes:
        sha256: of the suite's file.
        cost_model: fingerprint of the cost model that scored.
        mean_cost_ms: mean over all tasks, failures charged with their penalty.
        interval_ms: 95% bootstrap interval of that mean, over tasks.
        failures: tasks without a valid placement, or whose placement could not be measured.
        tasks: the outcomes in the suite's order.
        problem: name of the problem of the tasks; "sharding" if the tables of some may be split.
    """

    suite: str
    sha256: str
    split: str
    agent: str
    cost_model: str
    mean_cost_ms: float
    interval_ms: tuple[float, float]
    failures: int
    tasks: tuple[TaskResult, ...]
    problem: str = "placement"

    @property
    def costs_ms(self) -> np.ndarray:
        """(tasks,) float64."""
        return np.array([result.cost_ms for result in self.tasks])

    @property
    def left_to_others(self) -> str:
        """How many tasks the agent left to other agents, such as "5 of 50 by moldable"; empty if it left none."""
        counts = Counter(result.answered_by for result in self.tasks if result.answered_by)
        return ", ".join(f"{count} of {len(self.tasks)} by {name}" for name, count in counts.items())

    def __repr__(self) -> str:
        return "\n".join([self._headline, *(f"  {name}: {fact}" for name, fact in self._facts.items())])

    def _repr_html_(self) -> str:
        cost, unit = PROBLEMS[self.problem].format_cost, PROBLEMS[self.problem].unit
        rows = [[each.task, cost(each.cost_ms), format_seconds(each.seconds), each.failure] for each in self.tasks]
        return card(self._headline, self._facts, ("task", unit, "agent's time", "failure"), rows)

    @property
    def _headline(self) -> str:
        return f"{self.agent} on {self.suite} ({self.split}, {counted(len(self.tasks), 'task')})"

    @property
    def _facts(self) -> dict[str, str]:
        cost, unit = PROBLEMS[self.problem].format_cost, PROBLEMS[self.problem].unit
        low, high = map(cost, self.interval_ms)
        ordered = sorted(self.tasks, key=lambda each: each.cost_ms)
        facts = {
            "mean cost": f"{cost(self.mean_cost_ms)} {unit} (95% interval {low} to {high})",
            "tasks": f"{cost(ordered[0].cost_ms)} {unit} ({ordered[0].task}) to {cost(ordered[-1].cost_ms)} {unit} "
            f"({ordered[-1].task})",
            "agent's time": f"{format_seconds(float(np.median([each.seconds for each in self.tasks])))} (median)",
            "cost model": self.cost_model,
        }
        if self.left_to_others:
            facts["answered"] = self.left_to_others
        failed = [each for each in self.tasks if not each.valid]
        if failed:
            facts["failures"] = f"{len(failed)}, charged with their penalty; {failed[0].task}: {failed[0].failure}"
        return facts

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each task, and columns for the attributes of `TaskResult`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "A data frame needs the package 'pandas', which is not installed: pip install pandas."
            ) from error
        return pandas.DataFrame([asdict(task) for task in self.tasks]).set_index("task")

    def to_json(self) -> dict[str, Any]:
        """A JSON value with all of this."""
        record = {**asdict(self), "interval_ms": list(self.interval_ms), "tasks": [asdict(task) for task in self.tasks]}
        del record["problem"]  # the suite says it
        return record


def evaluate(
    agent: AnyAgent,
    suite: Suite[Any] | str | Path,
    cost_model: str | CostModel = "analytical",
    *,
    split: str = "test",
    progress: Progress | None = None,
) -> Evaluation:
    """Let `agent` answer every task of `suite` once, and score what it returns.

    Memory and cost are recomputed from the task and the answer; nothing that the agent says of them is used. A task
    without a valid answer counts as a failure and is charged its penalty, above the cost of every valid one: see
    `penalty_ms` of the cost model. So is a task whose placement cannot be measured, twice.

    An answer is a placement; a sharding plan if the tables of the task may be split; of replanning the actions of an
    episode, whose cost is the time of the whole episode.

    Args:
        agent: an object with `place(task)`, or a function of a task; either returns a placement. Where tables may be
            split, its `plan(task)` is called if it has one. An agent with a method `answers(tasks)` is asked for all
            tasks at once, as `BatchPolicyAgent` is. Of replanning, an object with `act(observations)`, or a
            function of observations, that returns an action for each of N episodes played side by side; its `begin(N)`
            is called before if it has one. Where it has them, its `name` and its count of cost-model evaluations,
            `true_cost_queries(fingerprint)`, are used.
        suite: a suite, or the name of one. Under a `MeasuredCostModel` its tasks are converted to the measured
            device (`as_measured`), for the agent and for the penalty.
        cost_model: the model that scores, or its name; it needs only `estimate` and `penalty_ms`. "analytical" is the
            cost model of the suite, `analytical-inference` where tables are served.
        split: which split of a named suite; ignored when `suite` is no name.
        progress: called after every task.

    Raises:
        InvalidOptionError: an argument is not of its kind.
        UnknownNameError: there is no suite, or no cost model, of that name.
        InvalidCostError: the cost model says NaN or infinity.
        MeasurementError: all placements, or `MAX_FAILURES` in a row, could not be measured.
    """
    tasks: Suite[Any] = load_suite(suite, split) if isinstance(suite, (str, Path)) else suite
    if not isinstance(tasks, Suite):
        hint = "Put custom tasks into one: TaskSuite('mine', [task]), or DriftSuite of drifting tasks."
        raise wrong_kind("suite", tasks, "the name of a suite, a TaskSuite or a DriftSuite", hint)
    problem = _problem_of_all(tasks)
    for each in dict.fromkeys([problem, *map(problem_of, tasks)]):
        each.require_agent(agent)
    model = problem.model(cost_model_for(tasks, cost_model))
    if not isinstance(model, AdditiveCostModel):
        from shard_gym.envs.real.tasks import as_measured

        tasks = as_measured(tasks, model)
    results: list[TaskResult] = []
    failures = FailuresInARow(len(tasks))
    for asked, some in groupby(tasks, problem_of):
        part = replace(tasks, tasks=tuple(some))
        for task, attempt in zip(part, asked.attempts(agent, part, model), strict=True):
            results.append(_result(agent, task, attempt, model, failures))
            if progress:
                progress(len(results), len(tasks))
    return summarized(results, tasks, model, _name_of(agent))


def summarized(results: Sequence[TaskResult], tasks: Suite[Any], model: CostModel, agent: str) -> Evaluation:
    """The evaluation of an agent from its outcomes on all `tasks`, in their order, scored by `model`."""
    costs = np.array([result.cost_ms for result in results])
    return Evaluation(
        suite=tasks.name,
        sha256=tasks.sha256,
        split=tasks.split,
        agent=agent,
        cost_model=model.fingerprint_for({task.num_devices for task in tasks}),
        mean_cost_ms=float(costs.mean()),
        interval_ms=bootstrap_interval(costs),
        failures=sum(not result.valid for result in results),
        tasks=tuple(results),
        problem=_problem_of_all(tasks).name,
    )


def _problem_of_all(tasks: Suite[Any]) -> Problem[Any]:
    """That of the first task that is not of placement: plans may be of whole tables, too."""
    return problem_of(next((task for task in tasks if task.problem != "placement"), tasks[0]))


@dataclass(frozen=True)
class PairedCosts:
    """An agent compared with a reference agent and with the best known placements."""

    #: Mean over the tasks of cost / cost of the reference agent, less 1; None if either failed on a task, because a
    #: penalty is no cost.
    to_random: float | None
    #: Mean over the tasks of cost / best known cost, less 1; None if a task failed, or has no such cost.
    to_best: float | None
    seconds: float  #: median over the tasks of the planning time
    queries: float  #: mean over the tasks of the agent's evaluations of the scoring cost model


def compare(evaluation: Evaluation, reference: Evaluation, best: Mapping[str, float]) -> PairedCosts:
    """`evaluation` beside the reference agent's, of the same tasks, and the best known costs in ms by task."""
    to_best = None
    if not evaluation.failures and all(result.task in best for result in evaluation.tasks):
        known = np.array([best[result.task] for result in evaluation.tasks])
        to_best = float((evaluation.costs_ms / known).mean() - 1.0)
    to_random = None
    if not (evaluation.failures or reference.failures):
        to_random = float((evaluation.costs_ms / reference.costs_ms).mean() - 1.0)
    return PairedCosts(
        to_random=to_random,
        to_best=to_best,
        seconds=float(np.median([result.seconds for result in evaluation.tasks])),
        queries=float(np.mean([result.true_cost_queries for result in evaluation.tasks])),
    )


def _name_of(agent: AnyAgent) -> str:
    return str(getattr(agent, "name", None) or getattr(agent, "__name__", type(agent).__name__))


def _result(agent: AnyAgent, task: Any, attempt: Attempt, model: CostModel, failures: FailuresInARow) -> TaskResult:
    problem, listed, failure = problem_of(task), None, ""
    try:
        if attempt.error is not None:
            raise attempt.error
        answer = problem.checked(attempt.returned, task)
        listed = problem.to_json(answer)
        cost = tried_twice(partial(problem.cost_ms, answer, task, model))
        failures.end()
    except FAILURES as error:
        if isinstance(error, MeasurementError):
            failures.add(error)
        elif isinstance(error, InvalidPlacementError) and not isinstance(error, MemoryExceededError):
            what = (
                f"{_name_of(agent)} returns what is no {problem.noun}; such tasks fail and cost their penalty. {error}"
            )
            warnings.warn(what, stacklevel=3)
        cost, failure = problem.penalty_ms(task, model), str(error) or type(error).__name__
    if not math.isfinite(cost):
        charged = f"a penalty of {cost} ms" if failure else f"{cost} ms for the {problem.noun}"
        raise InvalidCostError(
            f"Cost model {model.fingerprint!r} says {charged} of task {task.name!r} by agent {_name_of(agent)!r}; "
            "every cost must be a finite number. Repair the model, or score with another."
        )
    name = _name_of(agent)
    answered_by = str(getattr(agent, "answered_by", name))
    return TaskResult(
        task=task.name,
        cost_ms=cost,
        valid=not failure,
        seconds=attempt.seconds,
        true_cost_queries=attempt.queries,
        failure=failure,
        answered_by="" if answered_by == name else answered_by,
        **{"placement": None, problem.noun: listed},
    )


def score(task: Task, placement: Placement, model: CostModel) -> float:
    """Cost in ms of a checked placement of `task`."""
    return float(model.estimate(placement, task.tables, task.topology).total_ms)


def penalty_ms(task: Task, model: CostModel) -> float:
    """What a task without a valid placement is charged, in ms; above the cost of every valid one."""
    return float(model.penalty_ms(task.tables, task.topology))


def bootstrap_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of (n,) `values`, resampled with a fixed seed."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(BOOTSTRAP_SAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def student_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean of (n,) `values` of different seeds, n at least 2. Needs scipy."""
    from scipy.special import stdtrit

    margin = stdtrit(len(values) - 1, (1 + confidence) / 2) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - margin), float(values.mean() + margin)
