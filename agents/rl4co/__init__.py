"""Policies of RL4CO: an environment for them, what they see of it, and an agent that plays with one."""

from shard_gym.agents.rl4co.agent import RL4CoAgent
from shard_gym.agents.rl4co.embeddings import embeddings
from shard_gym.agents.rl4co.env import RL4CoEnv

__all__ = ["RL4CoAgent", "RL4CoEnv", "embeddings"]
