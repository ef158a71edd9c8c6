"""What an agent is, the policies of environments, and presets of options."""

from shard_gym.agents.base.agent import Agent, CostGuidedAgent, require_whole, task_rng
from shard_gym.agents.base.policy import BatchPolicyAgent, Policy, PolicyAgent

__all__ = ["Agent", "BatchPolicyAgent", "CostGuidedAgent", "Policy", "PolicyAgent", "require_whole", "task_rng"]
