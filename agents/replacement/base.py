"""`ReplacementAgent`: decides every hour whether to make a new plan, from observations alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.replacement.observation import NUM_WINDOWS

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
        legal: (N, A) bool.
        observations: all of them.
    """

    def __init__(self, observations: ObservationDict) -> None:
        self.observations = observations
        self.legal: NDArray[np.bool_] = observations["action_mask"].astype(np.bool_)
        self.count, actions = self.legal.shape
        replayed = observations["replayed_costs"].astype(np.float64)
        self.replayed: Floats = replayed.reshape(self.count, actions, NUM_WINDOWS)
        self.measured: Floats = observations["measured_costs"].astype(np.float64)
        self.since_plan: Floats = observations["since_plan"][:, 0].astype(np.float64)
        self.pause: Floats = observations["pause"][:, 0].astype(np.float64)
        self.must_plan: NDArray[np.bool_] = observations["must_plan"][:, 0].astype(np.bool_)

    def candidate(self, action: int) -> Floats:
        """(N, W) cost of the plan of an action in each window; where there is none, of that without headroom."""
        without = self.replayed[:, (action - 1) % NUM_WINDOWS + 1]
        return np.asarray(np.where(self.legal[:, action, None], self.replayed[:, action], without))


class ReplacementAgent(ABC):
    """An agent that makes plans of one kind, and decides when.

    A repair is a plan of that kind, too. Where there is no room for growth, it makes the plan without headroom.

    Attributes:
        action: that makes a plan of its kind.

    Args:
        kind: index in `shard_gym.envs.replacement.windows.KINDS`.
    """

    def __init__(self, kind: int = 0) -> None:
        self.action = 1 + kind

    def begin(self, count: int) -> None:
        """N episodes begin."""

    def act(self, observations: ObservationDict) -> NDArray[np.integer[Any]]:
        """(N,) legal actions for observations with leading shape (N,)."""
        view = View(observations)
        wanted = np.where(view.must_plan, self.action, self.decide(view))
        legal = view.legal[np.arange(view.count), wanted]
        return np.where(legal, wanted, (wanted - 1) % NUM_WINDOWS + 1)

    @abstractmethod
    def decide(self, view: View) -> IntArray:
        """(N,) actions; what is done where a plan must be made does not matter."""
