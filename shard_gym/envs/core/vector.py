"""`EpisodeVectorEnv`: what all vector environments share, the Gymnasium interface around N episodes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shard_gym.common.checks import checked_count, holds_integers
from shard_gym.common.errors import InvalidActionError, InvalidOptionError, short_repr, wrong_kind
from shard_gym.envs.core.attributes import OfEpisodes
from shard_gym.envs.core.config import EnvConfig, checked_options, require_fields_of, require_seed
from shard_gym.envs.core.env import EpisodeEnv
from shard_gym.envs.core.episode_batch import EpisodeBatch, ObservationDict
from shard_gym.tasks.suites.own import MAX_PADDING

BoolArray = NDArray[np.bool_]
Infos = dict[str, Any]
EpisodesT = TypeVar("EpisodesT", bound=EpisodeBatch[Any])


class EpisodeVectorEnv(OfEpisodes, VectorEnv[ObservationDict, NDArray[np.int64], NDArray[Any]], Generic[EpisodesT]):
    """N environments around one `EpisodeBatch`. A subclass names its configuration.

    Results equal those of N `EpisodeEnv` in a SyncVectorEnv, bit for bit. `EmbeddingPlacementVectorEnv` documents the
    parameters; `values` and `options` are the fields of the configuration.
    """

    config: ClassVar[type[EnvConfig]]

    _episodes: EpisodesT

    _actions_are: ClassVar[str] = "integers"
    """The word for actions in messages."""

    def __init__(
        self,
        num_envs: int = 1,
        *values: Any,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        max_episode_steps: int | None = None,
        **options: Any,
    ) -> None:
        require_fields_of(self.config, type(self).__name__, options)
        config = self.config(*values, **options)
        if max_episode_steps is not None:
            raise InvalidOptionError(
                f"max_episode_steps must be None, not {max_episode_steps!r}: an episode ends by itself."
            )
        if not isinstance(copy, bool):
            raise wrong_kind("copy", copy, "True or False")
        self.num_envs = checked_count("num_envs", num_envs, most=MAX_PADDING)
        self.render_mode, self._info_text = config.render_mode, config.info_text
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**EpisodeEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self._share = not copy
        self._episodes = episodes = cast(EpisodesT, config.episodes(self.num_envs))
        self._num_actions = episodes.num_actions
        self.single_observation_space = episodes.observation_space
        self.single_action_space = spaces.Discrete(self._num_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._rngs: list[np.random.Generator | None] = [None] * self.num_envs
        self._seeds: list[int | None] = [None] * self.num_envs
        self._over = np.ones(self.num_envs, np.bool_)
        own = ("num_envs", "autoreset_mode", "copy", "max_episode_steps")
        self._fix([*own, *(each.name for each in fields(config))])

    def __init_subclass__(cls) -> None:
        """Show the fields of the configuration in the signature of the class."""
        super().__init_subclass__()
        if "config" not in vars(cls):
            return
        own = [each for each in inspect.signature(EpisodeVectorEnv.__init__).parameters.values() if each.name != "self"]
        named = [each for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        both = [*named, *inspect.signature(cls.config).parameters.values()]
        signature = inspect.Signature(sorted(both, key=lambda each: each.kind))
        cls.__signature__ = signature  # type: ignore[attr-defined]

    # The Gymnasium interface

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationDict, Infos]:
        """Begin new episodes, in all environments or in those of `options["reset_mask"]`.

        Raises:
            InvalidOptionError: an unknown option, or an option or list of seeds of the wrong kind or length.
            UnknownNameError: no task has the name given.
            InvalidTaskError: a task does not fit the environment, such as one larger than the padding.
            ResetNeeded: a reset_mask without all environments, before the first reset of all.
        """
        chosen = checked_options(options, "task", "tasks", "reset_mask")
        mask = self._reset_mask(chosen.get("reset_mask"))
        if not mask.all():
            self._require_reset()
        envs = np.flatnonzero(mask)
        keys = self._task_keys(chosen.get("task"), chosen.get("tasks"))
        self._seed(envs, seed)
        self._begin(envs, keys)
        return self._episodes.observations(share=self._share), self._infos(envs)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[ObservationDict, NDArray[np.float64], BoolArray, BoolArray, Infos]:
        """Do `actions[i]` in every environment, as the class describes actions.

        Raises:
            InvalidActionError: `actions` are not N integers inside the action space.
            ResetNeeded: none was reset yet, or autoreset is disabled and all are over.
            InvalidCostError: an episode ends here, and its cost is NaN or infinite.
        """
        chosen = self._checked(actions)
        mode, waiting = self.autoreset_mode, self._over
        self._require_reset()
        stuck = waiting.any() if mode == AutoresetMode.SAME_STEP else waiting.all()
        if stuck and mode != AutoresetMode.NEXT_STEP:
            which = "All environments are" if waiting.all() else f"Environment {int(waiting.argmax())} is"
            raise ResetNeeded(f"{which} over: call reset() before the next step().")
        rewards, over = self._episodes.step(chosen)
        self._over = over | waiting  # first, so that it holds if what follows raises
        self._episodes.require_finite_costs(np.flatnonzero(over))
        final: Infos = {}
        if mode == AutoresetMode.NEXT_STEP:
            self._begin(np.flatnonzero(waiting))
        elif mode == AutoresetMode.SAME_STEP and over.any():
            final = self._final(np.flatnonzero(over))
            self._begin(np.flatnonzero(over))
        infos = {**self._infos(np.arange(self.num_envs)), **final}
        ended = self._over.copy() if mode == AutoresetMode.DISABLED else over
        return self._episodes.observations(share=self._share), rewards, ended, np.zeros_like(over), infos

    def render(self) -> tuple[Any, ...] | None:
        """One str ("ansi") or (H, W, 3) uint8 array ("rgb_array") for each environment, or None without a mode."""
        if self.render_mode is None:
            return None
        self._require_reset()
        return tuple(self._episodes.draw(env, self.render_mode) for env in range(self.num_envs))

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generator of each environment, as of a SyncVectorEnv; new ones before the first reset."""
        for env in range(self.num_envs):
            self._generator(env)
        return tuple(each for each in self._rngs if each is not None)

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seed of each environment; None before the first reset."""
        return tuple(self._seeds)

    def call(self, name: str, *args: Any, **options: Any) -> tuple[Any, ...]:
        """The method or attribute `name` of each environment, as of a SyncVectorEnv.

        Methods are `action_masks`, `failure` and `render`. Attributes are `task`, `np_random`, `np_random_seed`, those
        of spaces, and those that all environments share, such as `tasks`, `cost_model` and `max_tables`.

        Raises:
            AttributeError: the environments have no such method or attribute.
            TypeError: arguments; no method takes any.
        """
        if args or options:
            raise TypeError(f"The methods of the environments of a {type(self).__name__} take no arguments.")
        if name in ("action_masks", "task", "failure"):
            self._require_reset()
        if name in ("task", "failure"):
            return tuple(map(getattr(self._episodes, name), range(self.num_envs)))
        if name in ("action_masks", "render"):
            return tuple(found) if (found := getattr(self, name)()) is not None else (None,) * self.num_envs
        if name in ("np_random", "np_random_seed"):
            return tuple(getattr(self, name))
        own = f"single_{name}" if name in ("action_space", "observation_space") else name
        for holder in (self, self._episodes):
            value = _MISSING if own.startswith("_") else getattr(holder, own, _MISSING)
            if value is not _MISSING and not callable(value):
                return (value,) * self.num_envs
        raise AttributeError(f"The environments of a {type(self).__name__} have no method or attribute {name!r}.")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute `name` of each environment; see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute, such as `tasks`, of all environments, which share it.

        Raises:
            InvalidOptionError: a list or tuple of values that differ or are not N, or what assigning raises.
        """
        if isinstance(values, (list, tuple)):
            if len(values) != self.num_envs or any(each is not values[0] for each in values):
                raise InvalidOptionError(
                    f"The {self.num_envs} environments of a {type(self).__name__} share their attributes: give one "
                    f"value of {name}, not {short_repr(values)}."
                )
            values = values[0]
        setattr(self, name, values)

    # In addition to it

    @property
    def episodes(self) -> EpisodesT:
        """The N episodes; those of placement have raw arrays: `episodes.problem`, `episodes.state`."""
        return self._episodes

    def action_masks(self) -> BoolArray:
        """(N, A) bool: the legal actions."""
        self._require_reset()
        return self._episodes.masks()

    def _require_reset(self) -> None:
        if self._episodes.tasks[0] is None:
            raise ResetNeeded("No episodes have begun: call reset() first.")

    def _reset_mask(self, mask: Any) -> BoolArray:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            raise InvalidOptionError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},) with a True, not {mask!r}."
            )
        return mask

    def _task_keys(self, for_all: Any, for_each: Any) -> Sequence[Any]:
        if for_each is None:
            return [for_all] * self.num_envs
        if for_all is not None or not _is_list(for_each) or len(for_each) != self.num_envs:
            raise InvalidOptionError(
                f"options['tasks'] must name {self.num_envs} tasks, one for each environment, and comes without 'task'."
            )
        return list(for_each)

    def _seed(self, envs: NDArray[np.int64], seed: int | Sequence[int | None] | None) -> None:
        """Seed the environments `envs`; those without a seed keep their random generator."""
        require_seed(seed)
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + env for env in range(self.num_envs)]
        elif _is_list(seed) and len(seed) == self.num_envs:
            seeds = list(seed)
        else:
            raise InvalidOptionError(
                f"seed must be None, an integer, or a list of one for each of the {self.num_envs} environments; "
                f"got {short_repr(seed)}."
            )
        for each in seeds:
            require_seed(each)
        # Gymnasium takes no integers of NumPy.
        seeds = [int(each) if isinstance(each, np.integer) else each for each in seeds]
        for env in envs.tolist():
            if seeds[env] is not None:
                self._rngs[env], self._seeds[env] = seeding.np_random(seeds[env])

    def _begin(self, envs: NDArray[np.int64], keys: Sequence[Any] | None = None) -> None:
        """Begin new episodes in `envs`, with tasks drawn or named by `keys` (N of them)."""
        if not len(envs):
            return
        tasks = []
        for env in envs.tolist():
            tasks.append(self._episodes.choose(self._generator(env), keys[env] if keys is not None else None))
        self._episodes.begin(envs, tasks)
        self._over[envs] = False

    def _generator(self, env: int) -> np.random.Generator:
        """The random generator of an environment, a new one if it was never seeded."""
        rng = self._rngs[env]
        if rng is None:
            rng, self._seeds[env] = seeding.np_random()
            self._rngs[env] = rng
        return rng

    def _checked(self, actions: Any) -> NDArray[np.int64]:
        def wrong(what: str) -> InvalidActionError:
            return InvalidActionError(f"Actions are {self.num_envs} {self._actions_are}, {what}.")

        try:
            chosen = np.asarray(actions)
        except ValueError as error:  # lists of different lengths
            raise wrong(f"one for each environment, not {short_repr(actions)}") from error
        listed = isinstance(actions, (list, tuple))  # NumPy would make integers of True and False among others
        if np.ma.is_masked(actions) or (listed and any(map(_is_no_integer, actions))):
            raise wrong(f"none of them masked and no Booleans or times; got {short_repr(actions)}")
        if chosen.shape != (self.num_envs,) or not holds_integers(chosen):
            raise wrong(f"an integer array of shape ({self.num_envs},); got {chosen.dtype} of shape {chosen.shape}")
        if chosen.min() < 0 or chosen.max() >= self._num_actions:
            env = int(((chosen < 0) | (chosen >= self._num_actions)).argmax())
            raise InvalidActionError(f"{self._episodes.known_actions()}, not {chosen[env]} as for environment {env}.")
        return chosen.astype(np.int64, copy=False)

    def _infos(self, envs: NDArray[np.int64]) -> Infos:
        """The infos of the environments `envs`; zeros, None and False for the others."""
        there, infos = self._mask_of(envs), self._episodes.infos()
        if self._info_text:
            texts = [self._episodes.texts(env) for env in range(self.num_envs)]
            infos |= {key: np.array([each[key] for each in texts], dtype=object) for key in texts[0]}
        if len(envs) < self.num_envs:
            for values in infos.values():
                values[~there] = None if values.dtype == object else 0
        return infos | {f"_{key}": there.copy() for key in infos}

    def _mask_of(self, envs: NDArray[np.int64]) -> BoolArray:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[envs] = True
        return mask

    def _final(self, envs: NDArray[np.int64]) -> Infos:
        """The last observations and infos of the episodes `envs`, which end and are followed by new ones."""
        batch = self._episodes.observations()
        final = np.full(self.num_envs, None, dtype=object)
        for env in envs.tolist():
            final[env] = {key: array[env] for key, array in batch.items()}
        return {
            "final_obs": final,
            "_final_obs": self._mask_of(envs),
            "final_info": self._infos(envs),
            "_final_info": self._mask_of(envs),
        }


_MISSING = object()


def _is_no_integer(value: Any) -> bool:
    """Whether NumPy would make an integer of a bool or a time span among integers."""
    return isinstance(value, bool) or (hasattr(value, "dtype") and value.dtype.kind in "bm")


def _is_list(value: Any) -> bool:
    return (isinstance(value, Sequence) and not isinstance(value, str)) or getattr(value, "ndim", 0) == 1


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)  # a member, or its value: "NextStep", as SyncVectorEnv takes it
    except ValueError:
        name = str(mode).upper()
    known = [each.name for each in AutoresetMode]
    if name not in known:
        raise InvalidOptionError(f"autoreset_mode must be one of {known}, not {mode!r}.")
    return AutoresetMode[name]
