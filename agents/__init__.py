"""Agents: everything that places tables, from `random` to learned policies.

This folder is imported as `shard_gym.agents`; `shard_gym/agents` is a symbolic link to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shard_gym.agents.base import Agent, CostGuidedAgent
from shard_gym.agents.heuristics import PAPER_SCORES, CostGreedyAgent, GreedyAgent, RandomAgent, TableScore
from shard_gym.agents.policy import PolicyAgent
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.errors import InvalidOptionError, unknown_name

PAPER_HEURISTICS = tuple(PAPER_SCORES)
"""Names of the four greedy heuristics DreamShard compares with."""

AgentFactory = Callable[..., Agent]
"""Called with the cost model an agent may plan with, a seed, and the agent's own options by keyword."""


def _greedy(name: str, score: TableScore) -> AgentFactory:
    return lambda cost_model, seed: GreedyAgent(name, score)


AGENTS: dict[str, AgentFactory] = {
    "random": lambda cost_model, seed: RandomAgent(seed),
    **{name: _greedy(name, score) for name, score in PAPER_SCORES.items()},
    "cost-greedy": lambda cost_model, seed: CostGreedyAgent(cost_model),
    "local-search": lambda cost_model, seed, **options: LocalSearchAgent(cost_model, seed=seed, **options),
}
"""The one table of agents by name; add yours with `AGENTS["name"] = factory`."""


def make_agent(
    name: str, *, cost_model: str | AdditiveCostModel = "analytical", seed: int = 0, **options: Any
) -> Agent:
    """The agent named `name`.

    Args:
        name: one of `AGENTS`.
        cost_model: what the agent may ask while it plans; agents that ask nothing ignore it.
        seed: of agents that are random; the others ignore it.
        options: the agent's own, for example `max_queries` of "local-search".

    Raises:
        UnknownNameError: there is no agent of that name; the message lists those there are.
        InvalidOptionError: the agent has no such option.
    """
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    try:
        return AGENTS[name](cost_model, seed, **options)
    except TypeError as error:
        raise InvalidOptionError(f"Agent {name!r} cannot be made with the options {options}: {error}.") from error


__all__ = [
    "AGENTS",
    "PAPER_HEURISTICS",
    "Agent",
    "CostGreedyAgent",
    "CostGuidedAgent",
    "GreedyAgent",
    "LocalSearchAgent",
    "PolicyAgent",
    "RandomAgent",
    "make_agent",
]
