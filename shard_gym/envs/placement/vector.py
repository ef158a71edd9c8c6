"""`EmbeddingPlacementVectorEnv`: the Gymnasium vector environment of `EmbeddingPlacement-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from shard_gym.checks import checked_count
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.core.episodes import Episodes, Observation
from shard_gym.envs.core.reward import Reward
from shard_gym.envs.core.vector import EpisodeVectorEnv
from shard_gym.envs.placement.observation import make_observation
from shard_gym.envs.placement.rendering.modes import render
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.tasks import Task, TaskSource


class EmbeddingPlacementVectorEnv(EpisodeVectorEnv[Task]):
    """N environments in one; results equal those of N `EmbeddingPlacementEnv` in a SyncVectorEnv, bit for bit.

    All N step together in the same NumPy operations. Tasks of different sizes can be mixed.
    `gymnasium.make_vec("shard_gym:EmbeddingPlacement-v0", num_envs=N)` makes it. Actions, observations, rewards and
    infos are documented with `EmbeddingPlacementEnv`; all have a leading axis of N.

    Args:
        num_envs: N.
        autoreset_mode: what happens after the end of an episode. NEXT_STEP: the next step begins a new episode, ignores
            the action and returns reward 0. SAME_STEP: the last step begins a new episode; the last observation and
            info of the old one are in `infos["final_obs"]` and `infos["final_info"]`. DISABLED: nothing; reset with
            `options={"reset_mask": mask}`, (N,) bool. It is an argument of `make_vec` itself; Gymnasium takes
            `vector_kwargs` for its own vector environments only (`vectorization_mode="sync"` or `"async"`).
        copy: False returns the observation arrays that stay the same during an episode (`device_mask`,
            `table_features`, `table_mask`) without copying them; they change in place when an episode begins.
        max_episode_steps: must be None, because an episode ends after one step for each table.

    The other arguments are those of `EmbeddingPlacementEnv`.

    `reset` takes `seed` (an int for seed, seed + 1, ...; or one for each environment) and the options "task" (one for
    all), "tasks" (one for each) and "reset_mask".
    """

    _episodes: Episodes

    _actions_are = "device numbers"

    def __init__(
        self,
        num_envs: int = 1,
        suite: str | TaskSource = "dlrm-50x4",
        split: str = "train",
        cost_model: str | Path | AdditiveCostModel = "analytical",
        reward: str | Reward = "terminal",
        observation: str | Observation = "full",
        max_tables: int | None = None,
        max_devices: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        max_episode_steps: int | None = None,
        illegal: str = "terminate",
        info_text: bool = False,
    ) -> None:
        observe = make_observation(observation)
        count = checked_count("num_envs", num_envs)
        episodes = Episodes(count, suite, split, cost_model, reward, observe, max_tables, max_devices, illegal)
        self._set_up(episodes, render_mode, autoreset_mode, copy, max_episode_steps, info_text)

    @property
    def episodes(self) -> Episodes:
        """The N episodes with their raw arrays: `episodes.problem`, `episodes.state`, `episodes.tasks`."""
        return self._episodes

    def _view(self, env: int) -> PlacementView:
        return PlacementView.of(self._episodes, env)

    def _draw(self, env: int, render_mode: str) -> Any:
        return render(self._view(env), render_mode)
