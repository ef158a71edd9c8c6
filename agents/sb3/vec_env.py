"""`PlacementVecEnv` and others: vector environments for Stable-Baselines3, which does not take those of Gymnasium."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import InvalidOptionError, wrong_kind
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.vector import EpisodeVectorEnv


class EpisodeVecEnv(VecEnv, ABC):
    """N environments in one NumPy step, for any Stable-Baselines3 algorithm.

    It is no wrapper of an environment but makes its own, with the arguments of `gymnasium.make`. They are one vector
    environment, of the kind that a subclass names.

    Episodes are reset in the step that ends them, as SB3 expects: `infos[i]` then holds the last info (`cost_ms`,
    `placement`, `failure` and more) and `"terminal_observation"`. In all other steps infos are empty. The masks of all
    environments come from one `env_method("action_masks")`.

    Args:
        num_envs: N.
        options: of the vector environment, without `autoreset_mode`.

    Raises:
        InvalidOptionError: `num_envs` is no number, such as an environment to wrap; or `autoreset_mode` is given.
    """

    env_id: ClassVar[str]
    """The environment, as Gymnasium knows it."""

    envs: EpisodeVectorEnv[Any]

    example: ClassVar[str] = "dlrm-20x4"
    """A suite that messages name."""

    def __init__(self, num_envs: int, **options: Any) -> None:
        if not is_integer(num_envs):
            own = type(self).__name__
            hint = f"It makes its environments itself: {own}(64, suite={self.example!r})."
            raise wrong_kind(f"num_envs of a {own}", num_envs, "the number of environments", hint)
        if "autoreset_mode" in options:
            raise InvalidOptionError("Stable-Baselines3 needs one autoreset mode, so autoreset_mode cannot be chosen.")
        kind: Any = load_env_creator(str(gymnasium.spec(self.env_id).vector_entry_point))
        self.envs = kind(num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        self.render_mode = self.envs.render_mode
        self._actions: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)

    def reset(self) -> ObservationDict:
        """Begin N episodes, with the seeds and options set since the last reset.

        Raises:
            InvalidOptionError: an option other than "task".
        """
        unknown = {key for options in self._options for key in options} - {"task"}
        if unknown:
            raise InvalidOptionError(f"reset() takes the option 'task', not {sorted(map(str, unknown))}.")
        tasks = [options.get("task") for options in self._options]
        observation, infos = self.envs.reset(seed=list(self._seeds), options={"tasks": tasks})
        self.reset_infos = [_info_of(infos, env) for env in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments."""
        observation, rewards, dones, _, batched = self.envs.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if dones.any():
            final = batched["final_info"]
            for env in np.flatnonzero(dones).tolist():
                infos[env] = {
                    **_info_of(final, env),
                    "terminal_observation": batched["final_obs"][env],
                    "TimeLimit.truncated": False,
                }
        return observation, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each environment: those of `EpisodeVectorEnv.call`, which says what it raises."""
        results = self.envs.call(method_name, *method_args, **method_kwargs)
        return [results[env] for env in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of each environment, see `EpisodeVectorEnv.call`."""
        values = self.envs.get_attr(attr_name)
        return [values[env] for env in self._get_indices(indices)]

    def has_attr(self, attr_name: str) -> bool:
        """Whether the environments have it, also before the first reset: `MaskableEvalCallback` asks for masks then."""
        try:
            self.envs.get_attr(attr_name)
        except AttributeError:
            return False
        except ResetNeeded:
            pass
        return True

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of all environments; for some only, it raises InvalidOptionError: they are one object."""
        if indices is not None:
            raise InvalidOptionError(
                f"The environments of a {type(self).__name__} are one object; set attributes for all of them."
            )
        setattr(self.envs, attr_name, value)

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """False for each environment: none is wrapped."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[Any]:
        """One picture for each environment, with `render_mode="rgb_array"`."""
        return self.envs.render() or [None] * self.num_envs


class PlacementVecEnv(EpisodeVecEnv):
    """`EmbeddingPlacementVectorEnv` for SB3: `PlacementVecEnv(64, suite="dlrm-20x4", reward="dense")`."""

    env_id = "EmbeddingPlacement-v0"


class ShardingVecEnv(PlacementVecEnv):
    """`EmbeddingShardingVectorEnv` for SB3."""

    env_id = "EmbeddingSharding-v0"


class ReplanningVecEnv(EpisodeVecEnv):
    """`EmbeddingReplanningVectorEnv` for SB3."""

    env_id = "EmbeddingReplanning-v0"
    example = "drift-medium-120"


def _info_of(batched: dict[str, Any], env: int) -> dict[str, Any]:
    info = {}
    for key, value in batched.items():
        if not key.startswith("_") and batched[f"_{key}"][env]:
            info[key] = _info_of(value, env) if isinstance(value, dict) else value[env]
    return info
