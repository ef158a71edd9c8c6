"""Agents: everything that places tables, from heuristics to learned policies.

This folder is imported as `shard_gym.agents`; `shard_gym/agents` is a symbolic link to it.
"""

from shard_gym.agents.base import Agent, BatchPolicyAgent, CostGuidedAgent, PolicyAgent
from shard_gym.agents.registry import AGENTS, PAPER_HEURISTICS, AgentEntry, agent_names, load_agent, make_agent
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.agents.search.heuristics import CostGreedyAgent, GreedyAgent, LaneGreedyAgent, RandomAgent

__all__ = [
    "AGENTS",
    "PAPER_HEURISTICS",
    "Agent",
    "AgentEntry",
    "BatchPolicyAgent",
    "CostGreedyAgent",
    "CostGuidedAgent",
    "GreedyAgent",
    "LaneGreedyAgent",
    "LocalSearchAgent",
    "PolicyAgent",
    "RandomAgent",
    "agent_names",
    "load_agent",
    "make_agent",
]
