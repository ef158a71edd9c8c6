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

import numpy as np

from shard_gym.agents import AGENTS
from shard_gym.agents.training import LEARNERS
from shard_gym.leaderboard.schema import LEAGUES, MAX_REPLAYED, AgentPart, PlanningPart
from shard_gym.tasks.task import SuiteTask

ZERO_QUERY, GUIDED, SEARCH = LEAGUES


def guided_limit(tasks: Iterable[SuiteTask]) -> float:
    """The most evaluations of the league `guided`, mean over the tasks: each table alone, and on each device."""
    return float(np.mean([task.num_tables * (task.num_devices + 1) for task in tasks]))


def league_of(queries: float, search_budget: int, tasks: Iterable[SuiteTask]) -> str:
    """The league of an agent by what it asks; an entry may declare a later one (`entered_league`).

    Args:
        queries: evaluations of the scoring model for one task, mean over `tasks` and seeds.
        search_budget: answers that it tries for one task, under any cost model.
        tasks: the tasks that were answered.
    """
    if queries == 0:
        return ZERO_QUERY
    return GUIDED if search_budget == 0 and queries <= guided_limit(tasks) else SEARCH


def entered_league(planning: PlanningPart, tasks: Iterable[SuiteTask]) -> str:
    """The league of an entry without findings: the declared one, or that of its queries and its search budget."""
    return planning.league or league_of(planning.queries, planning.search_budget, tasks)


def check_league(planning: PlanningPart, tasks: Iterable[SuiteTask]) -> list[str]:
    """A sentence if the declared league allows less than the entry asks."""
    league = league_of(planning.queries, planning.search_budget, tasks)
    if planning.league is None or LEAGUES.index(planning.league) >= LEAGUES.index(league):
        return []
    return [
        f"planning.league is {planning.league!r}, but with {planning.queries:,.1f} evaluations of the cost model "
        f"for a task and a search budget of {planning.search_budget:,} the entry belongs to {league!r}."
    ]


def check_planning(agent: AgentPart, planning: PlanningPart, problem: str) -> list[str]:
    """A sentence for each declaration about planning that contradicts what is known of the agent."""
    wrong = []
    if agent.name in AGENTS and planning.search_budget > MAX_REPLAYED:
        wrong.append(
            f"planning.search_budget is {planning.search_budget:,}, but ShardGym's agent {agent.name!r} is replayed, "
            f"so it may try at most {MAX_REPLAYED:,} answers for a task."
        )
    asks = _asks(agent, problem)
    if asks is not None and (asks != "nothing") != (planning.queries > 0):
        kind = "never evaluates the cost model" if asks == "nothing" else "evaluates the cost model"
        wrong.append(
            f"planning.queries is {planning.queries}, but ShardGym's agent {agent.name!r} {kind} when it answers. "
            "Give an agent under another cost model another name."
        )
    if asks == "answers" and planning.search_budget == 0:
        wrong.append(f"planning.search_budget is 0, but ShardGym's agent {agent.name!r} searches.")
    return wrong


def _asks(agent: AgentPart, problem: str) -> str | None:
    """What an agent of ShardGym asks of the scoring model while it answers (see `AgentEntry`); None of any other."""
    if agent.name in AGENTS:
        return AGENTS[agent.name].asks
    if agent.name not in LEARNERS:
        return None
    blind = agent.options.get("observation") == "features"
    return "nothing" if blind else LEARNERS[agent.name].learner(problem).asks


def place_of(league: str | None) -> int:
    """The place of a league among all; that of entries without a league is the first."""
    return LEAGUES.index(league) if league else 0
