"""The trained `stepwise` agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent, require_whole
from shard_gym.agents.search.descent import Budget, Descent
from shard_gym.agents.search.moldable import Moldable
from shard_gym.agents.search.own_times import ROUGH, OwnTimes, RoughConstants
from shard_gym.agents.search.rules import MoldableAgent, cheapest_plan
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.agents.stepwise.steps import Steps, Weight
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidCheckpointError, MemoryExceededError, NoPlacementFoundError
from shard_gym.common.io.arrays import Arrays, require_arrays
from shard_gym.common.system import one_blas_thread
from shard_gym.cost_models import CostModel, CountedCostModel
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tasks import Task

MOST_PLANS, MOST_LOGARITHM = 1024, 50.0  # sets of weights in a file; the exponential of a number is a factor
PLANS, MOVES = 32, 20_000  # built for a task; evaluations by own times of each descent
BUILT, BY_RULE = 2, 2  # plans that descents improve: of those built, and of those of the rule

LARGEST = 4_000
"""Tables times devices: of larger tasks no plans are built.

Weights are learned from small ones, and building takes as long as tables times devices.
"""


def own_constants(logarithms: FloatArray) -> RoughConstants:
    """The constants of `OwnTimes`, of (8,) logarithms of what those of `ROUGH` are multiplied by."""
    return ROUGH.scaled(np.exp(logarithms).tolist())


class StepwiseAgent(Agent):
    """Builds several plans of a task, table after table, each by other learned weights, and keeps the cheapest.

    The cheapest few of them, and of the plans of the rule `moldable`, are improved by a short descent. It asks no cost
    model: what a plan costs, its own times say (`OwnTimes`, with learned constants). Where none of the plans has room,
    `moldable` answers, which also searches.

    Args:
        name: how result files call it.
        weights: (M, `Weight`) float64, the sets of weights.
        constants: (8,) float64, logarithms of what the constants `ROUGH` are multiplied by.
        plans: how many of the sets are used, the first ones; all if there are fewer, of large tasks none (`LARGEST`).
        built: how many of the plans that are built a descent improves; 0 to build none.
        by_rule: how many of the plans of the rule it improves, too.
        moves: evaluations by own times that each descent has; 0 for no descents.

    Raises:
        InvalidOptionError: an option is no count.
    """

    estimates = True

    def __init__(
        self,
        name: str,
        weights: FloatArray,
        constants: FloatArray,
        *,
        plans: int = PLANS,
        built: int = BUILT,
        by_rule: int = BY_RULE,
        moves: int = MOVES,
    ) -> None:
        self.name = name
        self.weights = weights[: checked_count("plans", plans)]
        self.constants = own_constants(constants)
        self.built = checked_count("built", built, least=0)
        self.by_rule = checked_count("by_rule", by_rule, least=0 if built else 1)
        self.moves = checked_count("moves", moves, least=0)

    @property
    @override
    def search_budget(self) -> int:
        return len(self.weights) + (self.built + self.by_rule) * self.moves

    @override
    def place(self, task: Task) -> Placement:
        require_whole(task)
        try:
            return self._cheapest(task, (TABLE_WISE,), 1)[1].in_order().placement
        except NoPlacementFoundError:
            return MoldableAgent().place(task)

    @override
    def plan(self, task: Task) -> ShardingPlan:
        try:
            return cheapest_plan(task, self._cheapest)
        except (NoPlacementFoundError, MemoryExceededError):
            return MoldableAgent().plan(task)

    def _cheapest(
        self, task: Task, sharding_types: tuple[str, ...] = SHARDING_TYPES, max_shards: int | None = None
    ) -> tuple[float, SplitTables]:
        """The cheapest plan of one group and its ms."""
        with one_blas_thread():
            own = OwnTimes(task.tables, task.topology, self.constants)
            model = CountedCostModel(own)
            for every_count in (False, True):  # parts that are no halves may fit where halves do not
                options = SplitOptions(task, model, sharding_types, max_shards, every_count)
                found = [split for _, split in Moldable(options, own).plans()[: self.by_rule]]
                if self.built and (not found or task.num_tables * task.num_devices <= LARGEST):
                    found += self._built(options, own)
                if found:
                    return min((self._better(split, model) for split in found), key=lambda each: each[0])
        raise NoPlacementFoundError(f"In all plans of {self.name} a table of task {task.name!r} finds no room.")

    def _built(self, options: SplitOptions, own: OwnTimes) -> list[SplitTables]:
        """The cheapest plans that are built."""
        built = Steps(options, own).build(self.weights)
        order = np.argsort(built.ms, kind="stable")[: self.built]
        return [built.split(int(number), options) for number in order if np.isfinite(built.ms[number])]

    def _better(self, split: SplitTables, model: CountedCostModel) -> tuple[float, SplitTables]:
        """The end of a descent from a plan, if there are any, and its ms."""
        if not self.moves:
            return split.items().cost_ms(split.device), split
        descent = Descent(split, np.random.default_rng(0), Budget(model, self.moves))
        descent.descend()
        return descent.best.cost, descent.best.found


def load_stepwise(
    arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int, **options: Any
) -> StepwiseAgent:
    """The agent of a training run; `options` are those of `StepwiseAgent`, errors those of `load_agent` and of it."""
    sets = len(arrays["weights"]) if "weights" in arrays and arrays["weights"].ndim else 0
    expected = {"weights": np.zeros((sets, len(Weight))), "constants": np.zeros(len(ROUGH))}
    require_arrays("The agent's file", arrays, expected)
    if not 1 <= sets <= MOST_PLANS or not all((np.abs(each) <= MOST_LOGARITHM).all() for each in arrays.values()):
        raise InvalidCheckpointError(
            f"The agent's file must hold 1 to {MOST_PLANS} sets of weights, {sets} here, and numbers from "
            f"-{MOST_LOGARITHM:g} to {MOST_LOGARITHM:g} alone."
        )
    return StepwiseAgent(about["agent"], arrays["weights"], arrays["constants"], **options)
