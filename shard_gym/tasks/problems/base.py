"""`Problem`: what the commands, the evaluation and the leaderboards need to know of a problem."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidPlacementError,
    MeasurementError,
    NoPlacementFoundError,
    wrong_kind,
)
from shard_gym.common.text import format_ms
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.tables import Tables
from shard_gym.tasks.task import Suite, SuiteTask

Answer = Any  # a checked answer to a task; each problem says what it is

TaskT = TypeVar("TaskT", bound=SuiteTask)

NEAR, NEAR_OF_MANY, MANY_TABLES = 0.72, 0.55, 60
"""Likeness from which on two answers are nearly equal; that with so many tables, where honest agents agree less."""

FAILURES = (NoPlacementFoundError, InvalidPlacementError, MeasurementError)
"""Errors with which a task fails; any other error ends an evaluation."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """What an agent returned for one task."""

    returned: Any  #: not checked; None after an error
    seconds: float  #: wall-clock time
    queries: int  #: evaluations of the scoring cost model by the agent
    error: Exception | None = None  #: one of `FAILURES`, or None


class Problem(ABC, Generic[TaskT]):
    """One of the problems. Costs are in ms, whatever `unit` people read."""

    name: str  #: "placement", "sharding" or "replanning"
    env_id: str  #: of its Gymnasium environment
    noun: str  #: what an answer is called; in files the key of an answer
    unit: Literal["ms", "s"] = "ms"  #: that people read costs in
    reference = "random"  #: name of the agent that others are compared with
    #: Names of the simple agents that trained ones are compared with.
    rivals: tuple[str, ...] = (
        *("size-greedy", "dim-greedy", "lookup-greedy", "size-lookup-greedy"),
        *("lane-greedy", "moldable"),
    )
    goals: tuple[str, ...] = rivals  #: those that answer the training tasks first, to show what is to be beaten
    bounds_are_reached = False  #: whether an answer costs as much as the proven bound; then bounds are best known costs
    headings: tuple[str, ...] = ()  #: of the numbers besides the cost that tables show of an answer (`facts`)
    best_name = "best"  #: what tables call the best answers known
    notice = ""  #: why nothing is seen while tasks are answered, a sentence
    takes: str  #: what an agent of this problem is, for messages

    def format_cost(self, cost_ms: float) -> str:
        """A cost in the unit that people read, without its name."""
        return format_ms(cost_ms)

    @abstractmethod
    def asker(self, agent: Any) -> Callable[[TaskT], Any]:
        """The function of an agent that answers a task; not callable if it has none."""

    @abstractmethod
    def checked(self, returned: Any, task: TaskT) -> Answer:
        """What an agent returned, checked.

        Raises:
            InvalidPlacementError: it is no valid answer (of sharding plans the subclass InvalidPlanError).
            MemoryExceededError: a device is over its memory cap.
        """

    @abstractmethod
    def to_json(self, answer: Answer) -> Any:
        """The answer as a JSON value."""

    @abstractmethod
    def from_json(self, value: Any, task: TaskT) -> Answer:
        """The checked answer in a JSON value; raises the errors of `checked`."""

    @abstractmethod
    def model(self, cost_model: CostModel | str) -> CostModel:
        """The cost model for these answers; InvalidOptionError if it does not cost them."""

    @abstractmethod
    def cost_ms(self, answer: Answer, task: TaskT, model: CostModel) -> float:
        """The cost of a checked answer."""

    @abstractmethod
    def costs_ms(self, answers: Sequence[Answer], task: TaskT, model: AdditiveCostModel) -> FloatArray:
        """(P,) costs of P checked answers; faster than `cost_ms` for many answers to the same tasks."""

    @abstractmethod
    def penalty_ms(self, task: TaskT, model: CostModel) -> float:
        """What a task without a valid answer is charged; above the cost of every valid one."""

    @abstractmethod
    def lower_bound_ms(self, task: TaskT, model: AdditiveCostModel) -> float:
        """A lower bound on the cost of every valid answer, without a solver."""

    @abstractmethod
    def probe_ms(self, task: TaskT, model: AdditiveCostModel) -> tuple[float, float]:
        """A penalty and a cost that change with the formulas of the model, without an agent's answer."""

    @abstractmethod
    def canonical(self, answer: Answer, task: TaskT) -> bytes | None:
        """Equal for answers that do the same, such as placements that differ in the numbers of equal devices only.

        None for an answer that honest agents share, which says nothing about who copied.
        """

    @abstractmethod
    def traits(self, answer: Answer, task: TaskT) -> Any:
        """What `likeness` compares of a checked answer."""

    @abstractmethod
    def likeness(self, own: Sequence[Any], others: Sequence[Any], task: TaskT, model: CostModel) -> FloatArray:
        """(P, Q) how alike answers with P and Q traits are: 1 if they do the same, about 0 if they agree by chance.

        NaN for each of `own` that honest agents share, which says nothing about who copied.
        """

    def near_from(self, task: TaskT) -> float:
        """`likeness` from which on an answer is nearly another's; measured in docs/results/leaderboard-checks.md."""
        return NEAR if len(self.tables_of(task)) < MANY_TABLES else NEAR_OF_MANY

    @abstractmethod
    def tables_of(self, task: TaskT) -> Tables:
        """The tables of a task."""

    def facts(self, answer: Answer, task: TaskT, model: CostModel) -> dict[str, float]:
        """Numbers besides the cost that tables show of an answer, by heading."""
        return {}

    def conditions(self, task: TaskT) -> str:
        """What holds for all tasks of the suite of a task, a sentence; empty if there is nothing to say."""
        return ""

    def require_agent(self, agent: Any) -> None:
        """Raise InvalidOptionError unless `agent` is one of this problem."""
        own = getattr(agent, "problems", None) or (self.name,)
        answers = (own,) if isinstance(own, str) else own
        if not isinstance(answers, (tuple, list, set, frozenset)):
            raise wrong_kind("problems of the agent", own, "the names of problems, such as ('replanning',)")
        if not isinstance(agent, type) and self.name not in answers:
            raise InvalidOptionError(
                f"Agent {getattr(agent, 'name', '')!r} answers {' and '.join(answers)}, not {self.name}. The agents of "
                f"{self.name} are listed by: shard-gym agents."
            )
        if isinstance(agent, type) or not callable(self.asker(agent)):
            named = f"make_agent({agent!r})" if isinstance(agent, str) else "make_agent(name)"
            hint = f"The agents with a name come from shard_gym.agents.{named}."
            if not isinstance(agent, type) and callable(getattr(agent, "act", None)):
                hint = f"Agents with act(observations) answer tasks of replanning, not of {self.name}."
            raise wrong_kind("agent", agent, self.takes, hint)

    def attempts(self, agent: Any, tasks: Suite[TaskT], model: CostModel) -> Iterator[Attempt]:
        """What an agent returns for each task of a suite, all of this problem, in order, as it comes.

        An agent that has a method `answers` is given all tasks at once, and returns an answer or one of `FAILURES` for
        each. Of its time and of its evaluations each task has the same share.
        """
        if callable(getattr(agent, "answers", None)):
            before, started = queries_of(agent, model), time.perf_counter()
            found = list(agent.answers(list(tasks)))
            seconds = (time.perf_counter() - started) / len(tasks)
            queries = -(-(queries_of(agent, model) - before) // len(tasks))
            if len(found) != len(tasks):
                raise InvalidOptionError(
                    f"The method answers of an agent returns one for each of the {len(tasks)} tasks, not {len(found)}."
                )
            for answer in found:
                error = answer if isinstance(answer, FAILURES) else None
                yield Attempt(None if error else answer, seconds, queries, error)
            return
        ask = self.asker(agent)
        for task in tasks:
            before, started = queries_of(agent, model), time.perf_counter()
            returned, error = None, None
            try:
                returned = ask(task)
            except FAILURES as failure:
                error = failure
            except Exception as bug:
                if hasattr(bug, "add_note"):  # Python 3.11
                    bug.add_note(f"It was raised while an agent answered task {task.name!r}.")
                raise
            yield Attempt(returned, time.perf_counter() - started, queries_of(agent, model) - before, error)


def queries_of(agent: Any, model: CostModel) -> int:
    """How often an agent has evaluated `model` so far; 0 for one that does not count."""
    count = getattr(agent, "true_cost_queries", None)
    return int(count(model.fingerprint)) if count else 0
