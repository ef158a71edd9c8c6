"""The problem of placement: a device for each table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models import AdditiveCostModel, CostModel, make_cost_model
from shard_gym.hardware import Cluster
from shard_gym.plans.placement import Placement, check_placement, placement_from_json, placement_to_json
from shard_gym.tables import Tables
from shard_gym.tasks.problems.base import Problem
from shard_gym.tasks.problems.likeness import kept_together
from shard_gym.tasks.task import Task


class PlacementProblem(Problem[Task]):
    """Answers are (T,) int64 device numbers."""

    name = "placement"
    env_id = "EmbeddingPlacement-v0"
    noun = "placement"
    takes = "an object with place(task), or a function of a task that returns a placement"

    @override
    def asker(self, agent: Any) -> Callable[[Task], Any]:
        place: Callable[[Task], Any] = getattr(agent, "place", agent)
        return place

    @override
    def checked(self, returned: Any, task: Task) -> Placement:
        placement = check_placement(returned, task.tables, task.topology)
        task.require_constraints(placement)
        return placement

    @override
    def to_json(self, answer: Placement) -> list[int]:
        return placement_to_json(answer)

    @override
    def from_json(self, value: Any, task: Task) -> Placement:
        placement = placement_from_json(value, task.tables, task.topology)
        task.require_constraints(placement)
        return placement

    @override
    def model(self, cost_model: CostModel | str) -> CostModel:
        return make_cost_model(cost_model)

    @override
    def cost_ms(self, answer: Placement, task: Task, model: CostModel) -> float:
        return float(model.estimate(answer, task.tables, task.topology).total_ms)

    @override
    def costs_ms(self, answers: Sequence[Placement], task: Task, model: AdditiveCostModel) -> FloatArray:
        loads, cluster = table_loads(task, model)
        device_loads = np.stack([model.reduce(loads, placement, task.num_devices) for placement in answers])
        return model.costs(device_loads, cluster)[1]

    @override
    def penalty_ms(self, task: Task, model: CostModel) -> float:
        return float(model.penalty_ms(task.tables, task.topology))

    @override
    def lower_bound_ms(self, task: Task, model: AdditiveCostModel) -> float:
        return float(model.bounds(model.loads(task.tables, task.topology), task.topology)[0])

    @override
    def probe_ms(self, task: Task, model: AdditiveCostModel) -> tuple[float, float]:
        known, cost = task.known_placement, 0.0
        if known is not None:
            cost = float(self.costs_ms([known], task, model)[0])
        return self.penalty_ms(task, model), cost

    @override
    def tables_of(self, task: Task) -> Tables:
        return task.tables

    @override
    def canonical(self, answer: Placement, task: Task) -> bytes:
        """The devices numbered in their order of appearance: the devices of a suite are equal."""
        _, first, inverse = np.unique(answer, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[inverse]).tobytes()

    @override
    def traits(self, answer: Placement, task: Task) -> FloatArray:
        """(T, D) 1 where a table is."""
        return np.eye(task.num_devices)[answer]

    @override
    def likeness(self, own: Sequence[Any], others: Sequence[Any], task: Task, model: CostModel) -> FloatArray:
        return kept_together(own, others, alone_ms(task, model))


@lru_cache(maxsize=1024)
def table_loads(task: Task, model: AdditiveCostModel) -> tuple[FloatArray, Cluster]:
    """(T, K) loads of the whole tables of a task, and its topology as arrays; kept for the next answers."""
    return model.loads(task.tables, task.topology), task.topology.cluster()


def alone_ms(task: Task, model: CostModel) -> FloatArray:
    """(T,) cost of each table alone on a device."""
    assert isinstance(model, AdditiveCostModel)
    return model.single_table_costs(table_loads(task, model)[0], task.topology)


def cost_in_turn(task: Task, model: AdditiveCostModel) -> float:
    """The cost of table t on device t modulo D, whether it fits or not."""
    loads, cluster = table_loads(task, model)
    placement = np.arange(task.num_tables) % task.num_devices
    return float(model.costs(model.reduce(loads, placement, task.num_devices), cluster)[1])
