"""Stable-Baselines3 on the environment: stock MaskablePPO, and learners whose policies see devices as a set."""

from shard_gym.agents.sb3.stock import masked_policy, train_maskable_ppo

__all__ = ["masked_policy", "train_maskable_ppo"]
