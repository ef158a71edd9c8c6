"""`EmbeddingShardingVectorEnv`: the Gymnasium vector environment of `EmbeddingSharding-v0`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import cast

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shard_gym.checks import checked_count
from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.envs.core.episodes import Observation
from shard_gym.envs.core.reward import Reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.episodes import ShardingEpisodes
from shard_gym.envs.sharding.view import view_of
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan
from shard_gym.tasks import TaskSource


class EmbeddingShardingVectorEnv(EmbeddingPlacementVectorEnv):
    """N environments in one; results equal those of N `EmbeddingShardingEnv` in a SyncVectorEnv, bit for bit.

    Args:
        num_envs, autoreset_mode, copy, max_episode_steps: see `EmbeddingPlacementVectorEnv`.

    The other arguments are those of `EmbeddingShardingEnv`. The plan of one of the environments is `plan(i)`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        suite: str | TaskSource = "mixdim-4",
        split: str = "train",
        cost_model: str | Path | ShardingCostModel = "analytical",
        reward: str | Reward = "terminal",
        observation: str | Observation = "full",
        sharding_types: Collection[str] = SHARDING_TYPES,
        max_shards: int = 8,
        max_tables: int | None = None,
        max_devices: int | None = None,
        max_hosts: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        max_episode_steps: int | None = None,
        illegal: str = "terminate",
        info_text: bool = False,
    ) -> None:
        problem = (suite, split, cost_model, reward, observation, sharding_types, max_shards)
        count = checked_count("num_envs", num_envs)
        episodes = ShardingEpisodes(count, *problem, max_tables, max_devices, max_hosts, illegal)
        self._set_up(episodes, render_mode, autoreset_mode, copy, max_episode_steps, info_text)

    @property
    def rules(self) -> SplitRules:
        """Which action means what."""
        return cast(ShardingEpisodes, self._episodes).rules

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, A) bool: the actions that are legal for the current parts."""
        return super().action_masks()

    def plan(self, env: int) -> ShardingPlan:
        """The plan of environment `env` so far."""
        self._require_reset()
        return cast(ShardingEpisodes, self._episodes).plan(env)

    def _view(self, env: int) -> PlacementView:
        return view_of(cast(ShardingEpisodes, self._episodes), env)
