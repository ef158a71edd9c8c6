"""What was searched for a plan, as a line on the terminal and as JSON."""

from __future__ import annotations

from typing import Any

from shard_gym.agents import Agent
from shard_gym.agents.base import MAX_QUERIES
from shard_gym.agents.plan_search import Ended
from shard_gym.agents.restarts import RestartedSearch
from shard_gym.text import counted

LONGER = 5  # times the evaluations that a search made, which a longer one is told to make


def searched_sentence(agent: Agent) -> str:
    """The seeds and evaluations of a search, and what ended it; empty for an agent that does not restart."""
    if not isinstance(agent, RestartedSearch) or agent.tried is None:
        return ""
    tried, most = agent.tried, agent.search.max_queries
    why = {
        Ended.NOTHING_NEW: "it ended by itself, as changes bring nothing new.",
        Ended.FEW_TABLES: "more bring nothing new for so few tables.",
        Ended.BUDGET: "the budget ended the search; "
        + (
            "a larger max_queries or max_seconds searches longer."
            if agent.search.max_seconds is not None or most == MAX_QUERIES
            else f"--option max_queries={min(LONGER * most, MAX_QUERIES)} searches longer."
        ),
    }[tried.ended]
    return f"{agent.name}, {counted(len(tried.seeds), 'seed')}, {counted(tried.evaluations, 'evaluation')}: {why}"


def searched_to_json(agent: Agent) -> dict[str, Any]:
    """The same as a JSON value; empty for an agent that does not restart."""
    if not isinstance(agent, RestartedSearch) or agent.tried is None:
        return {}
    tried = agent.tried
    ended = tried.ended.name.lower().replace("_", " ")
    return {"search": {"seeds": list(tried.seeds), "evaluations": tried.evaluations, "ended_by": ended}}
