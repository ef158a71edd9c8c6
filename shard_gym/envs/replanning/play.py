"""Episodes of replanning played side by side, by an agent or from recorded actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel
from shard_gym.drift.suites import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.episodes import ReplanningConfig, ReplanningEpisodes
from shard_gym.envs.replanning.history import History
from shard_gym.errors import InvalidOptionError, short_repr

OnDecision = Callable[[int], None]
"""Called with the number of decisions made."""


class Player(Protocol):
    """Decides in N episodes at once, from observations alone."""

    def begin(self, count: int) -> None:
        """N episodes begin."""

    def act(self, observations: ObservationDict) -> NDArray[np.integer[Any]]:
        """(N,) legal actions for observations with leading shape (N,)."""


@dataclass(frozen=True, eq=False)
class PlayedEpisode:
    """What an agent did in one episode.

    Attributes:
        task: the task.
        actions: (decisions,) int64.
        history: what followed from them.
    """

    task: DriftTask
    actions: NDArray[np.int64]
    history: History

    @property
    def seconds(self) -> float:
        """Of iterations, pauses and migrations."""
        return float(self.history.seconds.sum())


def play(
    player: Player,
    suite: DriftSuite | Sequence[DriftTask],
    cost_model: str | AdditiveCostModel = "analytical",
    progress: OnDecision | None = None,
) -> list[PlayedEpisode]:
    """All episodes of a suite. An illegal action raises, because no total is left to compare.

    Raises:
        InvalidOptionError: an action is illegal, or what the player returns is no action for each task.
        InvalidCostError: a cost is NaN or infinite.
    """
    tasks = list(suite)
    episodes = _episodes(suite, tasks, cost_model)
    player.begin(len(tasks))
    actions: list[NDArray[np.int64]] = []
    while not episodes.is_over(0):
        chosen = _actions(player.act(episodes.observations()), len(tasks))
        masks = episodes.masks()
        outside = (chosen < 0) | (chosen >= masks.shape[1])
        illegal = outside | ~masks[np.arange(len(tasks)), np.where(outside, 0, chosen)]
        if illegal.any():
            _refuse(tasks[int(illegal.argmax())], len(actions), int(chosen[illegal][0]))
        episodes.step(chosen)
        actions.append(chosen)
        if progress:
            progress(len(actions))
    episodes.require_finite_costs(np.arange(len(tasks)))
    played = np.stack(actions, axis=1)
    return [PlayedEpisode(task, played[env], episodes.history(env)) for env, task in enumerate(tasks)]


def _actions(given: Any, count: int) -> NDArray[np.int64]:
    chosen = np.asarray(given)
    if chosen.shape != (count,) or not np.issubdtype(chosen.dtype, np.integer):
        raise InvalidOptionError(
            f"A player must return {count} integers, an action for each task, not {short_repr(given)}."
        )
    return chosen.astype(np.int64)


class Recorded:
    """A player that repeats (N, decisions) recorded actions."""

    def __init__(self, actions: NDArray[np.int64]) -> None:
        self._actions, self._decision = actions, 0

    def begin(self, count: int) -> None:
        """See `Player`."""
        if len(self._actions) != count or self._actions.shape[1:] != (DECISIONS,):
            raise InvalidOptionError(
                f"Recorded actions must have shape {(count, DECISIONS)}, a row for each task, not "
                f"{self._actions.shape}."
            )
        self._decision = 0

    def act(self, observations: ObservationDict) -> NDArray[np.int64]:
        """See `Player`."""
        self._decision += 1
        chosen: NDArray[np.int64] = self._actions[:, self._decision - 1]
        return chosen


def _episodes(
    suite: DriftSuite | Sequence[DriftTask], tasks: list[DriftTask], cost_model: str | AdditiveCostModel
) -> ReplanningEpisodes:
    source = suite if isinstance(suite, DriftSuite) else DriftSuite("episodes", tuple(suite))
    episodes = ReplanningEpisodes(len(tasks), ReplanningConfig(source, cost_model=cost_model))
    episodes.begin(np.arange(len(tasks)), tasks)
    return episodes


def _refuse(task: DriftTask, decision: int, action: int) -> None:
    raise InvalidOptionError(
        f"Action {action} at decision {decision} of task {task.name!r} is illegal: there is no such plan then. Choose "
        "among those of the action mask."
    )
