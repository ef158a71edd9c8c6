"""Episodes of replanning played side by side by an agent, and what follows from a sequence of actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import holds_integers
from shard_gym.common.errors import InvalidPlacementError, short_repr
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, episode_data
from shard_gym.replanning.env.episodes import ReplanningConfig, ReplanningEpisodes
from shard_gym.replanning.env.fixed_devices import ALL_HOURS
from shard_gym.replanning.env.history import NO_PLAN, SECONDS, History
from shard_gym.replanning.env.windows import HOURS, KINDS, LAST_HOUR

OnDecision = Callable[[int], None]  # called with the number of decisions made


class Player(Protocol):
    """Decides in N episodes at once, from observations alone."""

    def begin(self, count: int) -> None:
        """N episodes begin."""

    def act(self, observations: ObservationDict) -> NDArray[np.integer[Any]]:
        """(N,) legal actions for observations with leading shape (N,)."""


@dataclass(frozen=True, eq=False)
class PlayedEpisode:
    """What an agent did in one episode."""

    task: DriftTask
    actions: NDArray[np.int64]  #: (decisions,) int64; fewer after an illegal action
    history: History  #: what followed from them
    failure: str = ""  #: why the episode ended early; empty if it did not
    planning_s: float = 0.0  #: wall-clock time of the player; all episodes of a call share it equally

    @property
    def seconds(self) -> float:
        """Time of iterations, pauses and migrations."""
        return float(self.history.seconds.sum())


class _Function:
    def __init__(self, act: Callable[[ObservationDict], Any]) -> None:
        self.act = act

    def begin(self, count: int) -> None: ...


def player_of(agent: Any) -> Player:
    """An agent as a player: an object with `begin` and `act`, or a function of observations."""
    return agent if hasattr(agent, "begin") and hasattr(agent, "act") else _Function(getattr(agent, "act", agent))


def play(
    player: Player,
    tasks: DriftSuite | Sequence[DriftTask],
    cost_model: str | AdditiveCostModel,
    progress: OnDecision | None = None,
) -> list[PlayedEpisode]:
    """The episodes of all tasks; an illegal action ends its episode.

    Args:
        player: decides.
        tasks: a suite, whose padding and kinds of plans the observations have; or tasks, for observations as small as
            they can be.
        cost_model: an additive cost model of sharding plans, or its name.
        progress: called after every decision.

    Raises:
        InvalidPlacementError: the player returned something other than an action of the space for each task.
    """
    suite = tasks if isinstance(tasks, DriftSuite) else DriftSuite("episodes", tuple(tasks))
    tasks, every = suite.tasks, np.arange(len(suite.tasks))
    episodes = ReplanningEpisodes(len(tasks), ReplanningConfig(suite, cost_model=cost_model))
    episodes.begin(every, tasks)
    player.begin(len(tasks))
    actions: list[NDArray[np.int64]] = []
    planning_s = 0.0
    while not all(map(episodes.is_over, every.tolist())):
        observations = episodes.observations()
        started = time.perf_counter()
        returned = player.act(observations)
        planning_s += time.perf_counter() - started
        actions.append(_actions(returned, len(tasks), episodes.num_actions))
        episodes.step(actions[-1])
        if progress:
            progress(len(actions))
    episodes.require_finite_costs(every)
    played = np.stack(actions, axis=1)
    found = []
    for env, task in enumerate(tasks):
        history, failure = episodes.history(env), episodes.failure(env)
        done = len(history.kinds) + 1 if failure else DECISIONS
        message = failure["message"] if failure else ""
        found.append(PlayedEpisode(task, played[env, :done], history, message, planning_s / len(tasks)))
    return found


def _actions(given: Any, count: int, num_actions: int) -> NDArray[np.int64]:
    wanted = f"An agent of replanning must return an array of shape ({count},) of integers, an action for each task"
    chosen = checked_actions(given, num_actions, wanted)
    if chosen.shape != (count,):
        raise InvalidPlacementError(f"{wanted}, not one of shape {chosen.shape}.")
    return chosen


def checked_actions(given: Any, num_actions: int, wanted: str) -> NDArray[np.int64]:
    """`given` as an int64 array of actions of the space.

    Raises:
        InvalidPlacementError: it is none; the message begins with what is `wanted`.
    """
    try:
        chosen = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise InvalidPlacementError(f"{wanted}, not {short_repr(given)}.") from error
    if not holds_integers(chosen):
        raise InvalidPlacementError(f"{wanted}, not {short_repr(given)} of {chosen.dtype}.")
    outside = (chosen < 0) | (chosen >= num_actions)
    if outside.any():
        place = int(outside.ravel().argmax())
        raise InvalidPlacementError(
            f"{wanted}, and actions are 0 to {num_actions - 1}; number {place} is {chosen.flat[place]}."
        )
    return chosen.astype(np.int64)


def history_of(task: DriftTask, actions: NDArray[np.integer[Any]], model: AdditiveCostModel) -> History:
    """What follows from (h,) legal actions, as in the environment; no other plans than theirs are computed.

    Raises:
        InvalidPlacementError: they are no actions, more than an episode has, or one of them is illegal.
    """
    wanted = f"A sequence for task {task.name!r} must be at most {DECISIONS} integers"
    actions = checked_actions(actions, 1 + len(KINDS), wanted)
    if actions.ndim != 1 or len(actions) > DECISIONS:
        raise InvalidPlacementError(f"{wanted}, not an array of shape {actions.shape}.")
    data, count = episode_data(task, model), len(actions)
    data.expect(actions)
    hourly_ms, seconds = np.zeros(count), np.zeros((count, len(SECONDS)))
    kinds, repairs = np.full(count, NO_PLAN, np.int8), np.zeros(count, np.bool_)
    plan, costs, runs = data.first_plan, None, None
    for decision, action in enumerate(actions.tolist()):
        day, hour = divmod(decision, HOURS)
        if hour == 0 or runs is None:
            runs, costs = data.can_run(plan, day), None
        pause = migration = 0.0
        repairs[decision] = not runs[hour]
        if action or not runs[hour]:
            kinds[decision] = kind = action - 1 if action else LAST_HOUR
            before, (plan, possible) = plan, data.plan_if_possible(decision, kind)
            if not possible:
                raise InvalidPlacementError(
                    f"Action {action} at decision {decision} of task {task.name!r} is illegal: there is no such plan "
                    "then. Choose among those of the action mask."
                )
            pause, migration = task.pause_s, data.migration_seconds(before, plan, day)
            runs, costs = data.can_run(plan, day), None
        if costs is None:
            costs = np.zeros(HOURS)
            costs[hour:] = data.interval_ms(plan, day, ALL_HOURS[hour:]).mean(axis=1)
        hourly_ms[decision] = costs[hour]
        seconds[decision] = costs[hour] * HOUR_SECONDS_PER_MS, pause, migration
    return History(hourly_ms, seconds, kinds, repairs)
