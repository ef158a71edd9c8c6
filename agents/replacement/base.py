"""`ReplacementAgent`: decides every hour whether to make a new plan, from observations alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.drift.tasks import DAYS
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.replacement.observation import NUM_WINDOWS
from shard_gym.envs.replacement.windows import LAST_HOUR

IntArray = NDArray[np.int64]
Floats = NDArray[np.float64]


class View:
    """The observations of N episodes, with names for their parts.

    Attributes:
        count: N.
        replayed: (N, A, W) float64, cost of the plan in action and of each kind in each window.
        measured: (N, 96) float64, costs of the last day's intervals with noise.
        since_plan: (N,) float64, days since the plan was made.
        pause: (N,) float64, as a share of a day.
        must_plan: (N,) bool.
        time: (N, 5) float64, see `EmbeddingReplacementEnv`; the last is the share of the episode.
        available: (N,) float64, share of the devices that are there.
        used: (N,) float64, share of the devices that the plan in action is made for.
        memory: (N,) float64, share in use on the fullest device.
        legal: (N, A) bool.
    """

    def __init__(self, observations: ObservationDict) -> None:
        self.legal: NDArray[np.bool_] = observations["action_mask"].astype(np.bool_)
        self.count, actions = self.legal.shape
        replayed = observations["replayed_costs"].astype(np.float64)
        self.replayed: Floats = replayed.reshape(self.count, actions, NUM_WINDOWS)
        self.measured: Floats = observations["measured_costs"].astype(np.float64)
        self.since_plan: Floats = observations["since_plan"][:, 0].astype(np.float64)
        self.pause: Floats = observations["pause"][:, 0].astype(np.float64)
        self.must_plan: NDArray[np.bool_] = observations["must_plan"][:, 0].astype(np.bool_)
        self.time: Floats = observations["time"].astype(np.float64)
        devices = observations["device_mask"].sum(axis=1)
        self.available: Floats = observations["device_available"].sum(axis=1) / devices
        self.used: Floats = observations["device_used"].sum(axis=1) / devices
        self.memory: Floats = observations["device_memory"].max(axis=1).astype(np.float64)

    @property
    def days_left(self) -> Floats:
        """(N,) days until the episode is over."""
        return (1.0 - self.time[:, 4]) * DAYS

    def candidate(self, action: int) -> Floats:
        """(N, W) cost of the plan of an action in each window; where there is none, of that without headroom."""
        without = self.replayed[:, (action - 1) % NUM_WINDOWS + 1]
        return np.asarray(np.where(self.legal[:, action, None], self.replayed[:, action], without))


class ReplacementAgent(ABC):
    """An agent that decides what the best plan is, and whether it is worth a pause.

    Where a plan must be made, it makes the best; where that has no room for growth, the one without headroom.
    """

    def begin(self, count: int) -> None:  # noqa: B027  # not all agents remember something
        """N episodes begin."""

    def act(self, observations: ObservationDict) -> NDArray[np.integer[Any]]:
        """(N,) legal actions for observations with leading shape (N,)."""
        view = View(observations)
        worth, best = self.decide(view)
        wanted = np.where(view.must_plan | worth, best, 0)
        legal = view.legal[np.arange(view.count), wanted]
        return np.where(legal, wanted, (wanted - 1) % NUM_WINDOWS + 1)

    @abstractmethod
    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        """(N,) whether to make a plan if none must be; (N,) the action that makes the best plan."""


class OneKind(ReplacementAgent):
    """An agent that makes plans of one kind.

    Args:
        kind: index in `shard_gym.envs.replacement.windows.KINDS`.
    """

    def __init__(self, kind: int = LAST_HOUR) -> None:
        self.action = 1 + kind

    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        """See `ReplacementAgent`."""
        return self.is_due(view), np.full(view.count, self.action)

    @abstractmethod
    def is_due(self, view: View) -> NDArray[np.bool_]:
        """(N,) whether to make a plan if none must be."""
