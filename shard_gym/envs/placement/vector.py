"""`EmbeddingPlacementVectorEnv`: the Gymnasium vector environment of `EmbeddingPlacement-v0`."""

from __future__ import annotations

from typing import ClassVar

from shard_gym.envs.core.config import EnvConfig
from shard_gym.envs.core.vector import EpisodeVectorEnv
from shard_gym.envs.placement.episodes import PlacementConfig, PlacementEpisodes


class EmbeddingPlacementVectorEnv(EpisodeVectorEnv[PlacementEpisodes]):
    """N environments in one; results equal those of N `EmbeddingPlacementEnv` in a SyncVectorEnv, bit for bit.

    All N step together in the same NumPy operations. Tasks of different sizes can be mixed.
    `gymnasium.make_vec("shard_gym:EmbeddingPlacement-v0", num_envs=N)` makes it. Actions, observations, rewards and
    infos are documented with `EmbeddingPlacementEnv`; all have a leading axis of N.

    Args:
        num_envs: N.
        autoreset_mode: what happens after the end of an episode. NEXT_STEP: the next step begins a new episode, ignores
            the action and returns reward 0. SAME_STEP: the last step begins a new episode; the last observation and
            info of the old one are in `infos["final_obs"]` and `infos["final_info"]`. DISABLED: the episode stays as it
            is, whatever its actions, with rewards of 0 and `terminations` of True; reset it with
            `options={"reset_mask": mask}`, (N,) bool, or when all are over. It is an argument of `make_vec` itself;
            Gymnasium takes `vector_kwargs` for its own vector environments only (`vectorization_mode="sync"` or
            `"async"`).
        copy: False returns the observation arrays that stay the same during an episode (`device_mask`,
            `table_features`, `table_mask`, `device_hbm`, `hbm_gib`) without copying them; they change in place when an
            episode begins.
        max_episode_steps: must be None, because an episode ends after one step for each table.

    The other arguments are those of `EmbeddingPlacementEnv`.

    `call`, `get_attr` and `set_attr` are those of Gymnasium's own vector environments. `action_masks()` has the masks,
    and random legal actions are `action_space.sample(mask=tuple(infos["action_mask"]))`.

    `reset` takes `seed` (an int for seed, seed + 1, ...; or one for each environment) and the options "task" (one for
    all), "tasks" (one for each) and "reset_mask".
    """

    config: ClassVar[type[EnvConfig]] = PlacementConfig
    _actions_are = "device numbers"
