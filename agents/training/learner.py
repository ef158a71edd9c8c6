"""What an agent in training is: equal iterations, and a state that decides how it goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.agents.base import Agent
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel, CountedCostModel
from shard_gym.io.arrays import Arrays
from shard_gym.tasks import TaskSuite


@dataclass(frozen=True)
class Report:
    """What one iteration says about itself.

    Attributes:
        mean_cost_ms: true cost of the placements it made, mean; those that failed with their penalty.
        numbers: further numbers for the log, by name.
    """

    mean_cost_ms: float
    numbers: dict[str, float]


class Learner(ABC):
    """An agent in training.

    Iteration i is a function of the state after iteration i - 1, the options and the seed alone: every random number
    comes from `rng(...)`, which starts anew in each iteration. So a run that goes on from a saved state ends as one
    that was never interrupted.

    Args:
        suite: the tasks to learn from.
        cost_model: what tells the true cost; every question is counted.
        seed: of everything random.

    Attributes:
        name: the agent's name.
        iterations: how many there will be.
        iteration: how many are done.
    """

    name: str
    iterations: int

    def __init__(self, suite: TaskSuite, cost_model: AdditiveCostModel, seed: int) -> None:
        self.suite = suite
        self.cost_model = CountedCostModel(cost_model)
        self.seed = checked_seed(seed)
        self.iteration = 0

    @property
    def true_cost_queries(self) -> int:
        """Placements whose true cost was asked so far: the measurement budget used."""
        return self.cost_model.queries

    def rng(self, purpose: int = 0) -> np.random.Generator:
        """A generator for this iteration; one for each `purpose`."""
        return np.random.default_rng([self.seed, self.iteration, purpose])

    @abstractmethod
    def iterate(self) -> Report:
        """One more iteration. It must not count `iteration` up; the run does."""

    @abstractmethod
    def state(self) -> Arrays:
        """Copies of all arrays that decide how training goes on: weights, optimizer, data."""

    @abstractmethod
    def load_state(self, arrays: Arrays) -> None:
        """Go on from what `state` returned in a learner with the same options.

        Raises:
            InvalidCheckpointError: the arrays are not those of such a learner.
        """

    @abstractmethod
    def weights(self) -> Arrays:
        """Copies of the arrays that placing needs."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """JSON values that placing needs beside the weights, such as paddings and sizes."""

    @abstractmethod
    def agent(self) -> Agent:
        """The agent as it is now."""
