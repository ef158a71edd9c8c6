"""`EmbeddingReplanningVectorEnv`: the Gymnasium vector environment of `EmbeddingReplanning-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from shard_gym.checks import checked_count
from shard_gym.cost_models import ShardingCostModel
from shard_gym.drift.suite import DriftSource
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.core.vector import EpisodeVectorEnv
from shard_gym.envs.replanning.episodes import ReplanningEpisodes
from shard_gym.envs.replanning.rendering import render


class EmbeddingReplanningVectorEnv(EpisodeVectorEnv[DriftTask]):
    """N environments in one; results equal those of N `EmbeddingReplanningEnv` in a SyncVectorEnv, bit for bit.

    Args:
        num_envs, autoreset_mode, copy, max_episode_steps: see `EmbeddingPlacementVectorEnv`.

    The other arguments are those of `EmbeddingReplanningEnv`.
    """

    _episodes: ReplanningEpisodes

    def __init__(
        self,
        num_envs: int = 1,
        suite: str | DriftSource = "drift-medium-120",
        split: str = "train",
        cost_model: str | Path | ShardingCostModel = "analytical",
        reward: str = "time",
        headroom: bool | None = None,
        max_parts: int | None = None,
        max_devices: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        max_episode_steps: int | None = None,
        illegal: str = "terminate",
        info_text: bool = False,
    ) -> None:
        count = checked_count("num_envs", num_envs)
        episodes = ReplanningEpisodes(
            count, suite, split, cost_model, reward, headroom, max_parts, max_devices, illegal
        )
        self._set_up(episodes, render_mode, autoreset_mode, copy, max_episode_steps, info_text)

    @property
    def episodes(self) -> ReplanningEpisodes:
        """The N episodes."""
        return self._episodes

    def _draw(self, env: int, render_mode: str) -> Any:
        task = self._episodes.tasks[env]
        assert task is not None  # `render` requires a reset
        return render(task, self._episodes.history(env), render_mode, self._episodes.failure(env))
