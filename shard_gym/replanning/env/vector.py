"""`EmbeddingReplanningVectorEnv`: the Gymnasium vector environment of `EmbeddingReplanning-v0`."""

from __future__ import annotations

from shard_gym.envs.core.vector import EpisodeVectorEnv
from shard_gym.replanning.env.episodes import ReplanningConfig, ReplanningEpisodes


class EmbeddingReplanningVectorEnv(EpisodeVectorEnv[ReplanningEpisodes]):
    """N environments in one; results equal those of N `EmbeddingReplanningEnv` in a SyncVectorEnv, bit for bit.

    Args:
        num_envs, autoreset_mode, copy, max_episode_steps: see `EmbeddingPlacementVectorEnv`.

    The other arguments are those of `EmbeddingReplanningEnv`.
    """

    config = ReplanningConfig
