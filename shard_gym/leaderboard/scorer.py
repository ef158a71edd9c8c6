"""The costs of answers to a suite's test tasks, many at a time, and a hash of the cost model that scores them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from shard_gym.answers import Answer, answers_to
from shard_gym.cost_models import AdditiveCostModel, CostModel, ShardingCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.suites import load_suite
from shard_gym.suites.bounds import lower_bounds
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Cluster

COST_MODEL = "analytical"
"""The cost model of the simulated track: one, so that all entries of a leaderboard are scored alike."""


class Scorer:
    """Costs of placements, or of plans, of the test tasks of one suite.

    Args:
        suite: the tasks.

    Attributes:
        answers: whether they are placements or plans.
        model: the cost model.
    """

    def __init__(self, suite: TaskSuite) -> None:
        self.suite = suite
        self.answers = answers_to(suite[0])
        self.model: AdditiveCostModel = self._additive(self.answers.model(COST_MODEL))
        self._prepared: dict[int, tuple[FloatArray, Cluster]] = {}

    @staticmethod
    def _additive(model: CostModel) -> AdditiveCostModel:
        assert isinstance(model, AdditiveCostModel)
        return model

    def costs(self, number: int, answers: Sequence[Answer]) -> FloatArray:
        """(P,) ms, of P checked answers to the task at index `number`."""
        task, model = self.suite[number], self.model
        loads, cluster = self.loads(number)
        if isinstance(model, ShardingCostModel):
            device_loads = np.stack([model.plan_loads(plan, task.tables, task.topology) for plan in answers])
        else:
            device_loads = np.stack([model.reduce(loads, placement, task.num_devices) for placement in answers])
        return model.costs(device_loads, cluster)[1]

    def lower_bound(self, number: int) -> float:
        """A lower bound in ms of the cost of every answer to the task at index `number`.

        It is the one that ships with the suite, or that of the cost model where none does.
        """
        task = self.suite[number]
        return max(self.answers.lower_bound_ms(task, self.model), self._shipped_bounds.get(task.name, 0.0))

    @cached_property
    def _shipped_bounds(self) -> dict[str, float]:
        return lower_bounds(self.suite, self.model)

    def loads(self, number: int) -> tuple[FloatArray, Cluster]:
        """(T, K) loads of the whole tables of the task at index `number`, and its topology as arrays; computed once."""
        if number not in self._prepared:
            task = self.suite[number]
            self._prepared[number] = self.model.table_loads(task.tables, task.topology), task.topology.cluster()
        return self._prepared[number]

    @cached_property
    def penalties(self) -> FloatArray:
        """(N,) ms, the cost charged for each task without a valid answer."""
        return np.array([self.answers.penalty_ms(task, self.model) for task in self.suite])

    @cached_property
    def cost_model_sha256(self) -> str:
        """64 hexadecimal digits that change with the version of the scoring model and with its costs of the tasks.

        The version is maintained by hand. The hash also covers the penalty of every task and the cost of its known
        placement, to nine digits, so it also changes with a formula whose version was not raised. Tasks whose tables
        may be split may have none; there it is the cost of table t on device t modulo D, whether it fits or not.
        """
        lines = [f"{COST_MODEL}-v{self.model.version}", self.suite.sha256]
        for number, task in enumerate(self.suite):
            known = task.known_placement
            if task.splittable:
                known = np.arange(task.num_tables) % task.num_devices
            cost = 0.0
            if known is not None:
                loads, cluster = self.loads(number)
                cost = float(self.model.costs(self.model.reduce(loads, known, task.num_devices), cluster)[1])
            lines.append(f"{task.name} {self.penalties[number]:.8e} {cost:.8e}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=128)
def load_scorer(suite: str) -> Scorer:
    """The scorer of the test tasks of the suite of that name; see `load_suite` for errors."""
    return Scorer(load_suite(suite))
