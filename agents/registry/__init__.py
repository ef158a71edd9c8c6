"""The one table of solvers; agents made from it by name, or loaded from files; and their options."""

from shard_gym.agents.registry.agents import (
    AGENTS,
    LEARNERS,
    PAPER_HEURISTICS,
    SOLVERS,
    AgentEntry,
    LearnerEntry,
    agent_names,
    answering,
)
from shard_gym.agents.registry.making import AGENT, is_path, load_agent, make_agent

__all__ = [
    "AGENT",
    "AGENTS",
    "LEARNERS",
    "PAPER_HEURISTICS",
    "SOLVERS",
    "AgentEntry",
    "LearnerEntry",
    "agent_names",
    "answering",
    "is_path",
    "load_agent",
    "make_agent",
]
