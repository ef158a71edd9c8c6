"""What an agent is: a task in, a placement out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from shard_gym.cost_models import AdditiveCostModel, CountedCostModel, make_cost_model
from shard_gym.placement import Placement
from shard_gym.tasks import Task


class Agent(ABC):
    """Anything that places tables.

    Attributes:
        name: how the registry and result files call it.
    """

    name: str

    @abstractmethod
    def place(self, task: Task) -> Placement:
        """(T,) int64, a device for every table of `task`.

        Raises:
            NoPlacementFoundError: no valid placement was found; an evaluation counts it as a failure.
        """

    @property
    def search_budget(self) -> int:
        """How many placements it may try for one task, under whatever cost, to return the best; 0 if it does not."""
        return 0

    def true_cost_queries(self, fingerprint: str) -> int:
        """How many placements this agent has, so far, asked the cost model with that fingerprint about."""
        return 0


class CostGuidedAgent(Agent):
    """An agent that asks a cost model while it plans; every question is counted."""

    def __init__(self, cost_model: str | AdditiveCostModel = "analytical") -> None:
        self.cost_model = CountedCostModel(make_cost_model(cost_model))

    def true_cost_queries(self, fingerprint: str) -> int:
        """See `Agent`; questions to a model with another fingerprint are not about the true cost."""
        return self.cost_model.queries if self.cost_model.fingerprint == fingerprint else 0
