"""`Problem`: what the commands, the evaluation and the leaderboards need to know of a problem."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import (
    InvalidOptionError,
    InvalidPlacementError,
    MeasurementError,
    NoPlacementFoundError,
    wrong_kind,
)
from shard_gym.tables import Tables
from shard_gym.tasks import SuiteTask
from shard_gym.text import format_ms

Answer = Any
"""A checked answer to a task; each problem says what it is."""

TaskT = TypeVar("TaskT", bound=SuiteTask)

FAILURES = (NoPlacementFoundError, InvalidPlacementError, MeasurementError)
"""Errors with which a task fails; any other error ends an evaluation."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """What an agent returned for one task.

    Attributes:
        returned: not checked; None after an error.
        seconds: wall-clock time.
        queries: evaluations of the scoring cost model by the agent.
        error: one of `FAILURES`, or None.
    """

    returned: Any
    seconds: float
    queries: int
    error: Exception | None = None


class Problem(ABC, Generic[TaskT]):
    """One of the problems. Costs are in ms, whatever `unit` people read.

    Attributes:
        name: "placement", "sharding" or "replanning".
        env_id: of its Gymnasium environment.
        noun: what an answer is called; in files the key of an answer.
        unit: that people read costs in.
        reference: name of the agent that others are compared with.
        rivals: names of the simple agents that trained ones are compared with.
        goals: names of those that answer all training tasks before a training, to show what is to be beaten.
        bounds_are_reached: whether an answer that costs as much as the proven bound exists for each task, so that
            bounds are best known costs, too.
        headings: of the numbers besides the cost that tables show of an answer (`facts`).
        best_name: what tables call the best answers known.
        takes: what an agent of this problem is, for messages.
    """

    name: str
    env_id: str
    noun: str
    unit: Literal["ms", "s"] = "ms"
    reference = "random"
    rivals: tuple[str, ...] = ("size-greedy", "dim-greedy", "lookup-greedy", "size-lookup-greedy")
    goals: tuple[str, ...] = rivals
    bounds_are_reached = False
    headings: tuple[str, ...] = ()
    best_name = "best"
    takes: str

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
        """The cost model for these answers.

        Raises:
            InvalidOptionError: it does not cost such answers.
        """

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
    def tables_of(self, task: TaskT) -> Tables:
        """The tables of a task."""

    def facts(self, answer: Answer, task: TaskT, model: CostModel) -> dict[str, float]:
        """Numbers besides the cost that tables show of an answer, by heading."""
        return {}

    def conditions(self, task: TaskT) -> str:
        """What holds for all tasks of the suite of a task, a sentence; empty if there is nothing to say."""
        return ""

    def require_agent(self, agent: Any) -> None:
        """Refuse what answers no tasks of this problem.

        Raises:
            InvalidOptionError: `agent` is no agent of this problem.
        """
        plays = getattr(agent, "problems", (self.name,))
        if not isinstance(agent, type) and self.name not in plays:
            raise InvalidOptionError(
                f"Agent {getattr(agent, 'name', '')!r} plays {' and '.join(plays)}, not {self.name}. The agents of "
                f"{self.name} are listed by: shard-gym agents."
            )
        if isinstance(agent, type) or not callable(self.asker(agent)):
            named = f"make_agent({agent!r})" if isinstance(agent, str) else "make_agent(name)"
            raise wrong_kind("agent", agent, self.takes, f"The agents with a name come from shard_gym.agents.{named}.")

    def attempts(self, agent: Any, tasks: Sequence[TaskT], model: CostModel) -> Iterator[Attempt]:
        """What an agent returns for each task, in order, as it comes."""
        ask = self.asker(agent)
        for task in tasks:
            before, started = queries_of(agent, model), time.perf_counter()
            returned, error = None, None
            try:
                returned = ask(task)
            except FAILURES as failure:
                error = failure
            yield Attempt(returned, time.perf_counter() - started, queries_of(agent, model) - before, error)


def queries_of(agent: Any, model: CostModel) -> int:
    """How often an agent has evaluated `model` so far; 0 for one that does not count."""
    count = getattr(agent, "true_cost_queries", None)
    return int(count(model.fingerprint)) if count else 0
