"""`EpisodeBatch`: what the environments of `env.py` and `vector.py` need of the episodes that they step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.core.problem import IntArray

ObservationDict = dict[str, Any]
"""An array for each key of the observation space."""

TaskT = TypeVar("TaskT")
"""The tasks of an environment: `Task` for placement and sharding."""


class EpisodeBatch(Protocol[TaskT]):
    """N episodes at once. A scalar environment has N = 1, a vector one any N.

    Attributes:
        tasks: the task of each episode; None before the first `begin`, which is of all episodes.
        num_actions: A; the actions are 0 to A - 1.
        observation_space: of one environment.
    """

    tasks: list[TaskT | None]
    num_actions: int
    observation_space: spaces.Dict

    @property
    def source(self) -> Any:
        """Where tasks come from."""

    @property
    def cost_model(self) -> AdditiveCostModel:
        """Estimates the costs."""

    def choose(self, rng: np.random.Generator, key: Any = None) -> TaskT:
        """The task that `key` names; without a key, one drawn with `rng`. Refuses a task that has no room."""

    def begin(self, envs: IntArray, tasks: Sequence[TaskT]) -> None:
        """Start episode `envs[i]` anew with `tasks[i]`."""

    def step(self, actions: NDArray[np.integer[Any]]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Do action `actions[i]` in each of the N episodes; those that are over stay as they are.

        Returns:
            (N,) float64 rewards, 0 where the episode was over before; (N,) bool, where it ended with this step.
        """

    def is_over(self, env: int) -> bool:
        """Whether episode `env` has ended."""

    def observations(self, *, share: bool = False) -> ObservationDict:
        """One new array for each key with leading shape (N,); `share` allows those that only `begin` changes."""

    def infos(self) -> dict[str, NDArray[Any]]:
        """One new array for each key of infos with leading shape (N,); the same keys in every step."""

    def info(self) -> dict[str, Any]:
        """`infos` of a single episode (N = 1): numbers, and new arrays without the leading axis."""

    def texts(self, env: int) -> dict[str, str]:
        """What infos hold in addition with `info_text`."""

    def masks(self) -> NDArray[np.bool_]:
        """(N, A) bool, the legal actions; never all False in a row."""

    def failure(self, env: int) -> dict[str, Any] | None:
        """Why an episode failed, or None if it did not."""

    def require_finite_costs(self, envs: IntArray) -> None:
        """Raise `InvalidCostError` if the cost of an episode that ends is NaN or infinite."""

    def known_actions(self) -> str:
        """The beginning of a sentence about an action outside the space."""

    def copy(self) -> EpisodeBatch[TaskT]:
        """Independent episodes in the same state; what never changes is shared."""
