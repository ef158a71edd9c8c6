"""`EpisodeEnv`: what all scalar environments share, the Gymnasium interface around episodes."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidActionError, short_repr
from shard_gym.envs.core.attributes import OfEpisodes
from shard_gym.envs.core.config import RENDER_MODES, EnvConfig, checked_options, require_seed
from shard_gym.envs.core.episode_batch import EpisodeBatch, ObservationDict, TaskT

Env = TypeVar("Env", bound="EpisodeEnv[Any]")

_ENV = np.zeros(1, np.int64)
"""Index of the only episode."""


class EpisodeEnv(OfEpisodes, gymnasium.Env[ObservationDict, np.int64], Generic[TaskT]):
    """One environment around an `EpisodeBatch` of N = 1.

    The constructor of a subclass calls `_set_up` and has the fields of its configuration as parameters.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": RENDER_MODES, "render_fps": 4}  # type: ignore[misc]

    _episodes: EpisodeBatch[TaskT]

    def _set_up(self, config: EnvConfig) -> None:
        self.render_mode, self._info_text = config.render_mode, config.info_text
        self._episodes = episodes = config.episodes(1)
        self._num_actions = episodes.num_actions
        self.observation_space = episodes.observation_space
        self.action_space = spaces.Discrete(self._num_actions)
        self._fix(each.name for each in fields(config))

    # The Gymnasium interface

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, dict[str, Any]]:
        """Start an episode; `options={"task": key}` picks its task (see the class).

        Raises:
            InvalidOptionError: options that are not a dict, an unknown option, or an index out of range.
            UnknownNameError: no task has that name.
            InvalidTaskError: the task does not fit the environment, such as one larger than the padding.
        """
        chosen = checked_options(options, "task")
        require_seed(seed)
        super().reset(seed=seed)
        task = self._episodes.choose(self.np_random, chosen.get("task"))
        self._episodes.begin(_ENV, [task])
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[ObservationDict, float, bool, bool, dict[str, Any]]:
        """Do `action`, as the class describes it.

        Raises:
            InvalidActionError: `action` is outside the action space.
            ResetNeeded: the episode is over, or none has begun.
            InvalidCostError: the episode ends here, and its cost is NaN or infinite.
        """
        self._require_episode("No episode has begun")
        if self._episodes.is_over(0):
            raise ResetNeeded("This episode is over: call reset() before the next step().")
        if not self._is_action(action):
            raise InvalidActionError(f"{self._episodes.known_actions()}, not {short_repr(action)}.")
        rewards, over = self._episodes.step(np.array([action], np.int64))
        if over[0]:
            self._episodes.require_finite_costs(_ENV)
        return self._observation(), float(rewards[0]), bool(over[0]), False, self._info()

    def render(self) -> Any:
        """A str ("ansi"), or an (H, W, 3) uint8 array ("rgb_array"); None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called without a render_mode; pass render_mode to gymnasium.make().")
            return None
        self._require_episode("There is nothing to render yet")
        return self._episodes.draw(0, self.render_mode)

    # In addition to it

    @property
    def task(self) -> TaskT:
        """The task of this episode."""
        return self._require_episode("There is no task yet")

    def action_masks(self) -> NDArray[np.bool_]:
        """(A,) bool: the legal actions; MaskablePPO calls this method."""
        self._require_episode("There is no mask yet")
        mask: NDArray[np.bool_] = self._episodes.masks()[0]
        return mask

    def failure(self) -> dict[str, Any] | None:
        """Why the episode failed, or None: at least a `reason` and a `message`."""
        self._require_episode("Nothing has failed yet")
        return self._episodes.failure(0)

    def clone(self: Env) -> Env:
        """An independent environment in the same state; the immutable tasks are shared."""
        clone = copy.copy(self)
        clone._episodes = self._episodes.copy()
        clone._np_random = copy.deepcopy(self.np_random)
        clone.action_space = copy.deepcopy(self.action_space)  # it has a random generator
        return clone

    def _require_episode(self, sentence: str) -> TaskT:
        task = self._episodes.tasks[0]
        if task is None:
            raise ResetNeeded(f"{sentence}: call reset() first.")
        return task

    def _is_action(self, action: Any) -> bool:
        """Whether `action` is in the action space; `Discrete.contains` takes two microseconds more for integers."""
        if type(action) in (int, np.int64):
            return bool(0 <= action < self._num_actions)
        if isinstance(action, bool) or np.ma.is_masked(action):  # `Discrete` takes True as 1
            return False
        return self.action_space.contains(action)

    def _observation(self) -> ObservationDict:
        return {key: batch[0] for key, batch in self._episodes.observations().items()}

    def _info(self) -> dict[str, Any]:
        info = self._episodes.info()
        return info | self._episodes.texts(0) if self._info_text else info
