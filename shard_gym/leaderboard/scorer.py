"""The costs of placements of a suite's test tasks, many at a time, and a hash of the cost model that scores them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from shard_gym.cost_models import AdditiveCostModel, make_additive_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.suites.bounds import lower_bounds
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Cluster

COST_MODEL = "analytical"
"""The cost model of the simulated track: one, so that all entries of a leaderboard are scored alike."""


class Scorer:
    """Costs of placements of the test tasks of one suite.

    Args:
        suite: the tasks.
    """

    def __init__(self, suite: TaskSuite) -> None:
        self.suite = suite
        self.model: AdditiveCostModel = make_additive_cost_model(COST_MODEL)
        self._prepared: dict[int, tuple[FloatArray, Cluster]] = {}

    def costs(self, number: int, placements: Sequence[Placement]) -> FloatArray:
        """(P,) ms, of P checked placements of the task at index `number`."""
        loads, cluster = self.loads(number)
        devices = self.suite[number].num_devices
        device_loads = np.stack([self.model.reduce(loads, placement, devices) for placement in placements])
        return self.model.costs(device_loads, cluster)[1]

    def lower_bound(self, number: int) -> float:
        """A lower bound in ms of the cost of every placement of the task at index `number`.

        It is the one that ships with the suite, or that of the cost model where none does.
        """
        simple = float(self.model.cost_bounds(self.loads(number)[0], self.suite[number].topology)[0])
        return max(simple, self._shipped_bounds.get(self.suite[number].name, 0.0))

    @cached_property
    def _shipped_bounds(self) -> dict[str, float]:
        return lower_bounds(self.suite, self.model)

    def loads(self, number: int) -> tuple[FloatArray, Cluster]:
        """(T, K) loads of the tables of the task at index `number`, and its topology as arrays; computed once."""
        if number not in self._prepared:
            task = self.suite[number]
            self._prepared[number] = self.model.table_loads(task.tables, task.topology), task.topology.cluster()
        return self._prepared[number]

    @cached_property
    def penalties(self) -> FloatArray:
        """(N,) ms, the cost charged for each task without a placement."""
        return np.array([self.model.penalty_ms(task.tables, task.topology) for task in self.suite])

    @cached_property
    def cost_model_sha256(self) -> str:
        """64 hexadecimal digits that change with the version of the scoring model and with its costs of the tasks.

        The version is maintained by hand. The hash also covers the penalty of every task and the cost of its known
        placement, to nine digits, so it also changes with a formula whose version was not raised.
        """
        lines = [f"{COST_MODEL}-v{self.model.version}", self.suite.sha256]
        for number, task in enumerate(self.suite):
            known = task.known_placement
            cost = self.costs(number, [known])[0] if known is not None else 0.0
            lines.append(f"{task.name} {self.penalties[number]:.8e} {cost:.8e}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=128)
def load_scorer(suite: str) -> Scorer:
    """The scorer of the test tasks of the suite of that name; see `load_suite` for errors."""
    return Scorer(load_suite(suite))
