"""`EpisodeBatch`: N episodes at once, which the environments of `env.py` and `vector.py` step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AdditiveCostModel

ObservationDict = dict[str, Any]
"""An array for each key of the observation space."""

TaskT = TypeVar("TaskT")
"""The tasks of an environment: `Task` for placement and sharding."""


class EpisodeBatch(ABC, Generic[TaskT]):
    """N episodes at once. A scalar environment has N = 1, a vector one any N.

    Attributes:
        source: where tasks come from.
        cost_model: estimates the costs.
        tasks: the task of each episode; None before the first `begin`, which is of all episodes.
        num_actions: A; the actions are 0 to A - 1.
        observation_space: of one environment.
        redirected: (N,) int64, illegal actions of each episode that were redirected.
    """

    task_type: ClassVar[type[Any]]
    """The class of a task."""

    suite_type: ClassVar[type[Any]]
    """The class of sources whose tasks have numbers and names."""

    source: Any
    cost_model: AdditiveCostModel
    tasks: list[TaskT | None]
    num_actions: int
    observation_space: spaces.Dict
    redirected: IntArray

    def choose(self, rng: np.random.Generator, key: Any = None) -> TaskT:
        """The task of `key` (an index, a name or a task); without a key, one drawn with `rng`.

        Raises:
            InvalidOptionError: the index is out of range, or the tasks of the source have no numbers.
            UnknownNameError: no task has that name.
            InvalidTaskError: a task that is larger than the padding.
        """
        if key is None:
            return cast(TaskT, self.source.sample(rng))
        if isinstance(key, self.task_type):
            self.require_room(key)  # before any episode begins
            return cast(TaskT, key)
        if isinstance(self.source, self.suite_type):
            return cast(TaskT, self.source.task(key))
        kind = self.task_type.__name__
        raise InvalidOptionError(
            f"{self.source!r} has no numbered tasks; pass a {kind} as options['task'], not {key!r}."
        )

    @abstractmethod
    def draw_from(self, suite: Any) -> None:
        """Draw the tasks of later episodes from another suite or source; episodes under way go on.

        Raises:
            InvalidOptionError: its tasks are of another kind or larger than the padding, or another cost model scores
                them.
            UnknownNameError: no suite has that name.
        """

    @abstractmethod
    def require_room(self, task: TaskT) -> None:
        """Raise `InvalidTaskError` if a task is larger than the padding."""

    @abstractmethod
    def begin(self, envs: IntArray, tasks: Sequence[TaskT]) -> None:
        """Start episode `envs[i]` anew with `tasks[i]`.

        Raises:
            InvalidTaskError: a task has no room in the padding or on its devices.
        """

    @abstractmethod
    def step(self, actions: NDArray[np.integer[Any]]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Do action `actions[i]` in each of the N episodes; those that are over stay as they are.

        Returns:
            (N,) float64 rewards, 0 where the episode was over before; (N,) bool, where it ended with this step.
        """

    @abstractmethod
    def is_over(self, env: int) -> bool:
        """Whether episode `env` has ended."""

    @abstractmethod
    def observations(self, *, share: bool = False) -> ObservationDict:
        """One array for each key with leading shape (N,).

        Args:
            share: do not copy the arrays that stay the same during an episode; they change in place when an episode
                begins.
        """

    @abstractmethod
    def infos(self) -> dict[str, NDArray[Any]]:
        """What infos hold: an array for each key with leading shape (N,), the same keys in every step; new arrays."""

    def info(self) -> dict[str, Any]:
        """`infos` of a single episode (N = 1): NumPy scalars, and new arrays without the leading axis."""
        return {key: array[0] for key, array in self.infos().items()}

    def texts(self, env: int) -> dict[str, str]:
        """What infos hold in addition with `info_text`: the task's name, and the message of a failure."""
        failure, task = self.failure(env), cast(Any, self.task(env))
        return {"task": task.name, "failure_message": failure["message"] if failure else ""}

    @abstractmethod
    def masks(self) -> NDArray[np.bool_]:
        """(N, A) bool, the legal actions; never all False in a row."""

    @abstractmethod
    def failure(self, env: int) -> dict[str, Any] | None:
        """Why an episode failed, or None if it did not: at least a `reason` and a `message`."""

    @abstractmethod
    def require_finite_costs(self, envs: IntArray) -> None:
        """Check the costs of episodes that end; only then, to keep steps fast.

        Raises:
            InvalidCostError: a cost, or the penalty of a failure, is NaN or infinite.
        """

    @abstractmethod
    def known_actions(self) -> str:
        """The beginning of a sentence about an action outside the space."""

    @abstractmethod
    def draw(self, env: int, render_mode: str) -> Any:
        """Episode `env` so far: a str for "ansi", an (H, W, 3) uint8 array for "rgb_array"."""

    @abstractmethod
    def copy(self) -> EpisodeBatch[TaskT]:
        """Independent episodes in the same state; what never changes is shared."""

    def task(self, env: int) -> TaskT:
        """The task of episode `env`.

        Raises:
            InvalidOptionError: the episode has not begun.
        """
        task = self.tasks[env]
        if task is None:
            raise InvalidOptionError(f"Environment {env} has no task yet; reset it first.")
        return task
