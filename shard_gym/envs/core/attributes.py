"""The attributes that environments share, and what assigning to one does: `FixedArguments`, `OfEpisodes`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gymnasium.envs.registration import EnvSpec

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.core.config import require_render_mode
from shard_gym.envs.core.episode_batch import EpisodeBatch
from shard_gym.envs.core.spec import OwnSpec


class FixedArguments:
    """An environment whose arguments cannot be assigned to, as its episodes were made with them."""

    _arguments: frozenset[str] = frozenset()
    """Names that may not be assigned to."""

    def _fix(self, arguments: Iterable[str]) -> None:
        """Let none of these arguments of the constructor, and no cost model, be assigned to from now on."""
        self._arguments = frozenset(arguments) - {"render_mode"} | {"cost_model"}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an argument of the constructor raises InvalidOptionError."""
        if name in self._arguments:
            instead = "Set `tasks` to a suite" if name in ("suite", "split") else f"Make another one with {name}=..."
            raise InvalidOptionError(f"{name} is an argument of {type(self).__name__} and stays as it is. {instead}.")
        super().__setattr__(name, value)


class OfEpisodes(FixedArguments):
    """An environment around an `EpisodeBatch`; `tasks` and `render_mode` can be assigned to."""

    _episodes: EpisodeBatch[Any]

    def __setattr__(self, name: str, value: Any) -> None:
        """As of `FixedArguments`; no mode of rendering raises InvalidOptionError, too."""
        if name == "render_mode":
            require_render_mode(value)
        super().__setattr__(name, OwnSpec.of(value) if name == "spec" and isinstance(value, EnvSpec) else value)

    @property
    def tasks(self) -> Any:
        """Where tasks come from: a suite or a sampler. Assign another one, or the name of a suite, for a curriculum.

        Episodes under way go on with their tasks; those that begin afterwards have one of the new tasks. The split of a
        named suite is that of the environment.

        Raises:
            InvalidOptionError: on assignment, if the tasks are of another kind or larger than the padding, or another
                cost model scores them.
            UnknownNameError: on assignment, if no suite has that name.
        """
        return self._episodes.source

    @tasks.setter
    def tasks(self, suite: Any) -> None:
        self._episodes.draw_from(suite)

    @property
    def cost_model(self) -> AdditiveCostModel:
        """What estimates the costs."""
        return self._episodes.cost_model
