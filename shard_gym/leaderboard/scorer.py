"""The costs of answers to a suite's test tasks, many at a time, and a hash of the cost model that scores them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from typing import Any

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.tasks import Answer, Suite, load_suite, problem_of
from shard_gym.tasks.suites.bounds import lower_bounds

TOLERANCE = 1e-9
"""Relative difference of two costs that differ by rounding only."""

AnswerGrid = list[list[Answer | None]]
"""Answers by seed and task: S lists of N; None where the agent found none."""


class Scorer:
    """Costs of answers to the test tasks of one suite.

    Args:
        suite: the N tasks, of one problem.

    Attributes:
        problem: of the tasks.
        model: the cost model of the suite, so that all entries of a leaderboard are scored alike.
        penalty_ms: a function of the index of a task: what it is charged without a valid answer.
        lower_bound: a function of the index of a task: ms that no answer costs less than.
    """

    def __init__(self, suite: Suite[Any]) -> None:
        self.suite = suite
        self.problem = problem_of(suite[0])
        model = self.problem.model(suite.cost_model)
        assert isinstance(model, AdditiveCostModel)
        self.model = model
        self.penalty_ms = cache(self._penalty_ms)
        self.lower_bound = cache(self._lower_bound)

    def costs(self, number: int, answers: Sequence[Answer]) -> FloatArray:
        """(P,) ms, of P checked answers to the task at index `number`.

        Raises:
            InvalidPlacementError: an answer cannot be played.
        """
        return self.problem.costs_ms(answers, self.suite[number], self.model)

    def _penalty_ms(self, number: int) -> float:
        return float(self.problem.penalty_ms(self.suite[number], self.model))

    def _lower_bound(self, number: int) -> float:
        """The bound that ships with the suite, or that of the cost model where none does."""
        task = self.suite[number]
        return max(self.problem.lower_bound_ms(task, self.model), self.shipped_bounds.get(task.name, 0.0))

    @cached_property
    def shipped_bounds(self) -> dict[str, float]:
        """The lower bounds in ms that ship with the suite, by name of the task."""
        return lower_bounds(self.suite, self.model)

    @cached_property
    def cost_model_sha256(self) -> str:
        """64 hexadecimal digits that change with the version of the scoring model and with its costs of the tasks.

        The version is maintained by hand. The hash also covers a penalty and a cost of every task, to nine digits, so
        it also changes with a formula whose version was not raised.
        """
        lines = [f"{self.suite.cost_model}-v{self.model.version}", self.suite.sha256]
        for task in self.suite:
            penalty, cost = self.problem.probe_ms(task, self.model)
            lines.append(f"{task.name} {penalty:.8e} {cost:.8e}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=128)
def load_scorer(suite: str) -> Scorer:
    """The scorer of the test tasks of the suite of that name; see `load_suite` for errors."""
    return Scorer(load_suite(suite))


def claims_of(answer: Answer, number: int, scorer: Scorer) -> dict[str, Any]:
    """What the row of an answer to the task at index `number` claims: "cost_ms" and "facts"."""
    facts = scorer.problem.facts(answer, scorer.suite[number], scorer.model)
    return {"cost_ms": float(scorer.costs(number, [answer])[0]), "facts": facts}


def canonical(answers: AnswerGrid, scorer: Scorer) -> list[list[bytes | None]]:
    """The answers by seed and task, equal for those that do the same; None where there is none, or it says nothing."""
    return [
        [
            None if answer is None else scorer.problem.canonical(answer, task)
            for answer, task in zip(row, scorer.suite, strict=True)
        ]
        for row in answers
    ]
