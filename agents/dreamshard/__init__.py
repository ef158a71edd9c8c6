"""DreamShard: train a cost model (the surrogate) on few measurements, and place tables under it.

`learner.DreamShardLearner` trains it and needs torch; what is exported here does not.
"""

from shard_gym.agents.dreamshard.agent import (
    PRESETS,
    DreamShardAgent,
    DreamShardPaperOptions,
    SearchOptions,
    load_dreamshard,
)

__all__ = ["PRESETS", "DreamShardAgent", "DreamShardPaperOptions", "SearchOptions", "load_dreamshard"]
