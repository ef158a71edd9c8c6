"""All solvers on all suites: what each entry costs, and what it takes to get there, in training and for one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.io.markdown import escaped, table
from shard_gym.leaderboard.ranking import Leaderboard, RankedEntry
from shard_gym.suites import suite_info
from shard_gym.text import format_ms, format_seconds

COLUMNS = (
    "suite",
    "solver",
    "league",
    "mean ms",
    "above bounds",
    "failed",
    "queries in training",
    "queries a task",
    "training",
    "planning",
)


@dataclass(frozen=True)
class Solver:
    """An entry on a suite; means are over its tasks and seeds.

    Attributes:
        suite: name of the suite.
        name: of the entry.
        league: of the entry.
        mean_ms: mean cost, failures charged with the penalty.
        gap: mean of cost / proven lower bound, less 1, of the tasks with an answer; None without bounds or answers.
        failures: tasks and seeds without an answer.
        answers: tasks and seeds.
        training_queries: evaluations of the cost model in training, those of the seed with the most.
        task_queries: evaluations for one task.
        training_seconds: those of the longest seed; None if the entry does not say.
        planning_seconds: median of one task, as the entry declares it.
    """

    suite: str
    name: str
    league: str
    mean_ms: float
    gap: float | None
    failures: int
    answers: int
    training_queries: int
    task_queries: float
    training_seconds: float | None
    planning_seconds: float

    @property
    def queries(self) -> float:
        """Evaluations in training and for one task together."""
        return self.training_queries + self.task_queries


def solvers(leaderboards: Sequence[Leaderboard]) -> list[Solver]:
    """Every entry that has a league: by suite, then by the share of failures, then the cheapest first."""
    found = []
    for board in leaderboards:
        if board.rules.leagues:
            bounds = board.scorer.shipped_bounds
            lowest = np.array([bounds.get(task.name, np.nan) for task in board.scorer.suite])
            own = [_solver(board.suite, each, lowest) for each in board.entries]
            found += sorted(own, key=lambda each: (each.failures / each.answers, each.mean_ms))
    return found


def _solver(suite: str, ranked: RankedEntry, lowest: np.ndarray) -> Solver:
    entry, costs = ranked.verified.entry, ranked.verified.costs_ms
    answered = np.array([[answer is not None for answer in row] for row in ranked.verified.answers])
    ratios = (costs / lowest)[answered]
    return Solver(
        suite=suite,
        name=entry.name,
        league=ranked.league or "",
        mean_ms=ranked.mean_cost_ms,
        gap=float(ratios.mean() - 1.0) if len(ratios) and np.isfinite(ratios).all() else None,
        failures=ranked.verified.failures,
        answers=costs.size,
        training_queries=entry.training.queries,
        task_queries=entry.planning.queries,
        training_seconds=entry.training.seconds,
        planning_seconds=entry.planning.seconds,
    )


def solvers_table(leaderboards: Sequence[Leaderboard]) -> str:
    """One table of all of them."""
    rows = []
    for each in solvers(leaderboards):
        known = each.training_seconds
        rows.append(
            (
                f"`{suite_info(each.suite).name}`",
                escaped(each.name),
                each.league,
                format_ms(each.mean_ms) if not each.failures else "",
                "" if each.gap is None else f"{100 * each.gap:.1f}%",
                f"{each.failures} of {each.answers}" if each.failures else "",
                f"{each.training_queries:,}" if each.training_queries else "",
                f"{each.task_queries:,.0f}",
                "" if known is None else format_seconds(known),
                format_seconds(each.planning_seconds),
            )
        )
    return table(COLUMNS, rows, left=3)
