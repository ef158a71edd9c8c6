"""DreamShard: train a cost model (the surrogate) on few measurements, and place tables under it."""

from __future__ import annotations

from typing import Any

from shard_gym.agents.dreamshard.agent import DreamShardAgent, load_dreamshard
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions, dreamshard_options


def __getattr__(name: str) -> Any:
    """Import `DreamShardLearner` on first use: training needs torch, placing does not."""
    if name == "DreamShardLearner":
        from shard_gym.agents.dreamshard.learner import DreamShardLearner

        return DreamShardLearner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["PRESETS", "DreamShardAgent", "PaperOptions", "SearchOptions", "dreamshard_options", "load_dreamshard"]
