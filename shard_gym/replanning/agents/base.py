"""`ReplanningAgent`: decides every hour whether to make a new plan, from observations alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.replanning.drift.tasks import DAYS
from shard_gym.replanning.env.observation import NUM_WINDOWS
from shard_gym.replanning.env.windows import LAST_HOUR


@dataclass(frozen=True, eq=False)
class View:
    """What agents use of the observations of N episodes."""

    replayed: FloatArray  #: (N, A, W) cost of the plan in action and of each kind in each window
    legal: NDArray[np.bool_]  #: (N, A) bool
    since_plan: FloatArray  #: (N,) days since the plan was made
    pause: FloatArray  #: (N,) as a share of a day
    must_plan: NDArray[np.bool_]  #: (N,) bool
    clock: FloatArray  #: (N, 4) sine and cosine of the hour of the day, and of the week
    days_left: FloatArray  #: (N,) days until the episode is over
    available: FloatArray  #: (N,) share of the devices that are there
    used: FloatArray  #: (N,) share of the devices that the plan in action is made for
    measured: FloatArray  #: (N, 96) costs of the last day's intervals with noise

    @staticmethod
    def of(observations: ObservationDict) -> View:
        """The view of observations with leading shape (N,)."""
        legal, time = observations["action_mask"].astype(np.bool_), observations["time"].astype(np.float64)
        devices = observations["device_mask"].sum(axis=1)
        return View(
            observations["replayed_costs"].astype(np.float64).reshape(*legal.shape, NUM_WINDOWS),
            legal,
            observations["since_plan"][:, 0].astype(np.float64),
            observations["pause"][:, 0].astype(np.float64),
            observations["must_plan"][:, 0].astype(np.bool_),
            time[:, [0, 2, 1, 3]],
            (1.0 - time[:, 4]) * DAYS,
            observations["device_available"].sum(axis=1) / devices,
            observations["device_used"].sum(axis=1) / devices,
            observations["measured_costs"].astype(np.float64),
        )

    @property
    def count(self) -> int:
        """N."""
        return len(self.legal)

    def require_action(self, action: int) -> None:
        """Raise InvalidOptionError for an action that makes plans with headroom, where there are none."""
        if action >= self.legal.shape[1]:
            raise InvalidOptionError(
                f"The agent makes plans of kind {action - 1}, which leave room for growth, but here are the kinds 0 to "
                f"{self.legal.shape[1] - 2} only. Choose one of them, or set headroom of the environment."
            )

    def candidate(self, action: int) -> FloatArray:
        """(N, W) cost of the plan of an action in each window; where there is none, of that without headroom."""
        self.require_action(action)
        without = self.replayed[:, (action - 1) % NUM_WINDOWS + 1]
        return np.asarray(np.where(self.legal[:, action, None], self.replayed[:, action], without))


class ReplanningAgent(Agent):
    """An agent that decides what the best plan is, and whether it is worth a pause.

    Where a plan must be made, it makes the best; where that has no room for growth, the one without headroom.
    """

    problems = ("replanning",)

    def place(self, task: Any) -> Any:
        """Refuse tasks of placement and sharding with an InvalidOptionError."""
        raise InvalidOptionError(f"Agent {self.name!r} plays episodes of replanning; it places no tables.")

    def begin(self, count: int) -> None:  # not all agents remember something
        """N episodes begin."""

    def act(self, observations: ObservationDict) -> NDArray[np.integer[Any]]:
        """(N,) legal actions for observations with leading shape (N,)."""
        return self.choose(View.of(observations))

    def choose(self, view: View) -> NDArray[np.integer[Any]]:
        """(N,) legal actions; raises InvalidOptionError if the agent makes plans with headroom, which there are not."""
        worth, best = self.decide(view)
        wanted = np.where(view.must_plan | worth, best, 0)
        view.require_action(int(wanted.max()))
        legal = view.legal[np.arange(view.count), wanted]
        return np.where(legal, wanted, (wanted - 1) % NUM_WINDOWS + 1)

    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        """(N,) whether to make a plan if none must be; (N,) the action that makes the best plan. `choose` asks it."""
        raise NotImplementedError


class OneKind(ReplanningAgent):
    """An agent that makes plans of one kind.

    Args:
        kind: of the plans: 0 last hour, 1 last day, 2 last three days, 3 next half day; 4 to 7 are these with room for
            growth.
    """

    def __init__(self, kind: int = LAST_HOUR) -> None:
        self.action = 1 + kind

    @override
    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        return self.is_due(view), np.full(view.count, self.action)

    @abstractmethod
    def is_due(self, view: View) -> NDArray[np.bool_]:
        """(N,) whether to make a plan if none must be."""
