"""DreamShard: learn what placements cost from few measurements, and learn to place inside that estimate."""

from __future__ import annotations

from typing import Any

from shard_gym.agents.dreamshard.agent import DreamShardAgent, load_dreamshard
from shard_gym.agents.dreamshard.options import PRESETS, DreamShardOptions, dreamshard_options


def __getattr__(name: str) -> Any:
    """`DreamShardLearner`, when it is asked for: training needs torch, placing does not."""
    if name == "DreamShardLearner":
        from shard_gym.agents.dreamshard.learner import DreamShardLearner

        return DreamShardLearner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["PRESETS", "DreamShardAgent", "DreamShardOptions", "dreamshard_options", "load_dreamshard"]
