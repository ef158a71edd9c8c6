"""`Agent`: answers tasks, with placements or sharding plans."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod

import numpy as np
from typing_extensions import override

from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.cost_models import AdditiveCostModel, CostModel, counted, make_cost_model
from shard_gym.cost_models.analytical.additive_wrapper import AdditiveWrapper
from shard_gym.plans import ShardingPlan, plan_of_placement
from shard_gym.plans.placement import Placement
from shard_gym.tasks import Task
from shard_gym.tasks.forms import WHOLE_WHERE_PERMITTED, formed

MAX_QUERIES = 10_000_000
"""The most evaluations of a search for one task: minutes. A file that says more would keep its agent busy for ever."""


class Agent(ABC):
    """Anything that answers tasks.

    Attributes:
        name: its name in the registry and in result files.
        problems: names of the problems that it plays, in `shard_gym.tasks.problems.PROBLEMS`.
        last_bound_ms: a lower bound in ms on the cost of every placement of the task that was placed last, under the
            agent's cost model; None if the agent proves none.
        estimates: whether it answers by an estimate of its own, of the cost model "analytical" without options.
    """

    name: str
    problems: tuple[str, ...] = ("placement", "sharding")
    last_bound_ms: float | None = None
    estimates: bool = False

    @abstractmethod
    def place(self, task: Task) -> Placement:
        """(T,) int64, a device for every table of `task`.

        Raises:
            NoPlacementFoundError: no valid placement was found; an evaluation counts it as a failure.
        """

    @property
    def splits(self) -> bool:
        """Whether its plans may split tables: it has a `plan` of its own."""
        return type(self).plan is not Agent.plan

    def plan(self, task: Task) -> ShardingPlan:
        """A sharding for every table of `task`; of an agent that only places, that of whole tables.

        Tables that constraints do not let be whole are first made row-wise, or data-parallel, on all devices.

        Raises:
            NoPlacementFoundError: no valid plan was found; an evaluation counts it as a failure.
        """
        if task.constraints is None or task.constraints.may_be_whole.all():
            return plan_of_placement(self.place(task), task.tables)
        spread = formed(task, WHOLE_WHERE_PERMITTED)
        if spread is None:
            raise NoPlacementFoundError(
                f"Agent {self.name!r} places whole tables, and others of task {task.name!r} row-wise or data-parallel "
                "on all devices; its constraints, or its memory, do not permit that for all tables."
            )
        return spread.plan(self.place(spread.task))

    @property
    def search_budget(self) -> int:
        """Placements that it may compare for one task, under any cost model; 0 for an agent that does not search."""
        return 0

    def budget_for(self, task: Task) -> int:
        """`search_budget` for this task, of an agent that takes more for some than for others."""
        return self.search_budget

    def true_cost_queries(self, fingerprint: str) -> int:
        """Placements that the agent has evaluated so far with the cost model of that fingerprint."""
        return 0


class CostGuidedAgent(Agent):
    """An agent that evaluates placements with a cost model; every evaluation is counted.

    Attributes:
        asks_costs: whether it evaluates any placement; False for a policy whose observations hold no cost.
    """

    asks_costs = True

    def __init__(self, cost_model: str | CostModel = "analytical") -> None:
        self.cost_model = counted(make_cost_model(cost_model))

    def additive_model(self, task: Task) -> AdditiveCostModel:
        """The cost model in additive form, for `task`; its evaluations are counted in any case."""
        if isinstance(self.cost_model, AdditiveCostModel):
            return self.cost_model
        return AdditiveWrapper(self.cost_model, task.tables, task.topology)

    @override
    def true_cost_queries(self, fingerprint: str) -> int:
        return self.cost_model.queries if self.cost_model.fingerprint == fingerprint else 0


def require_whole(task: Task) -> None:
    """Raise NoPlacementFoundError unless the constraints of a task let each of its tables be whole on a device."""
    if task.constraints is not None and not task.constraints.may_be_whole.all():
        table = task.tables.names[int(task.constraints.may_be_whole.argmin())]
        raise NoPlacementFoundError(
            f"Table {table!r} of task {task.name!r} may not be whole on one device, so no placement meets its "
            "constraints; use plan-search, whose plans split tables."
        )


def task_rng(seed: int, task: Task, run: int = 0) -> np.random.Generator:
    """A generator that depends on the seed, the name of the task and a number alone, whatever was placed before."""
    return np.random.default_rng([seed, zlib.crc32(task.name.encode()), *([run] if run else [])])
