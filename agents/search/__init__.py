"""Heuristics, searches under a cost model, and exact placement."""

from shard_gym.agents.search.local_search import LocalSearchAgent
from shard_gym.agents.search.plan_search import PlanSearchAgent

__all__ = ["LocalSearchAgent", "PlanSearchAgent"]
