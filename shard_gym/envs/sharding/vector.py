"""`EmbeddingShardingVectorEnv`: the Gymnasium vector environment of `EmbeddingSharding-v0`."""

from __future__ import annotations

from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.episodes import ShardingConfig, ShardingEpisodes
from shard_gym.plans import ShardingPlan


class EmbeddingShardingVectorEnv(EmbeddingPlacementVectorEnv):
    """N environments in one; results equal those of N `EmbeddingShardingEnv` in a SyncVectorEnv, bit for bit.

    Args:
        num_envs, autoreset_mode, copy, max_episode_steps: see `EmbeddingPlacementVectorEnv`.

    The other arguments are those of `EmbeddingShardingEnv`. The plan of one of the environments is `plan(i)`.
    """

    config = ShardingConfig
    _episodes: ShardingEpisodes

    @property
    def rules(self) -> SplitRules:
        """Which action means what."""
        return self._episodes.rules

    def plan(self, env: int) -> ShardingPlan:
        """The plan of environment `env` so far."""
        self._require_reset()
        return self._episodes.plan(env)
