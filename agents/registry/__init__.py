"""The agents by name, and their options."""

from shard_gym.agents.registry.agents import AGENTS, PAPER_HEURISTICS, AgentEntry, agent_names

__all__ = ["AGENTS", "PAPER_HEURISTICS", "AgentEntry", "agent_names"]
