"""Leagues: what an entry asks of the cost model that scores, while it answers a test task.

zero-query   nothing: its observation holds no costs, or costs of a learned model
guided       at most a look at each table alone and at each table on each device: T (D + 1) evaluations of a task of T
             tables on D devices, on average over the tasks and seeds, and no search
search       anything; the number is printed

An agent that reads the scoring model in another form than single evaluations (its loads, its linear costs, its code)
knows the costs of all placements, so it belongs to `search`, and declares that. Any entry may declare a later league
than its queries and its search budget make it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from shard_gym.agents import Agent
from shard_gym.tasks.task import SuiteTask

LEAGUES = ZERO_QUERY, GUIDED, SEARCH = ("zero-query", "guided", "search")
"""Those of the simulated tracks, from none to many evaluations of the scoring cost model."""


def guided_limit(tasks: Iterable[SuiteTask]) -> float:
    """The most evaluations of the league `guided`, mean over the tasks: each table alone, and on each device."""
    return float(np.mean([task.num_tables * (task.num_devices + 1) for task in tasks]))


def most_for(agent: Agent, tasks: Iterable[Any]) -> int:
    """Answers that an agent may try for one of the tasks, at most."""
    return max(agent.budget_for(task) for task in tasks)


def league_of(queries: float, search_budget: int, tasks: Iterable[SuiteTask]) -> str:
    """The league of an agent by what it asks; an entry may declare a later one (`VerifiedEntry.league`).

    Args:
        queries: evaluations of the scoring model for one task, mean over `tasks` and seeds.
        search_budget: answers that it tries for one task, under any cost model.
        tasks: the tasks that were answered.
    """
    if queries == 0:
        return ZERO_QUERY
    return GUIDED if search_budget == 0 and queries <= guided_limit(tasks) else SEARCH


def place_of(league: str | None) -> int:
    """The place of a league among all; that of entries without a league is the first."""
    return LEAGUES.index(league) if league else 0
