"""Answers: what an agent returns for a task, a placement of whole tables or a sharding plan.

`answers_to(task)` says which, and how answers of that kind are asked for, checked, costed and stored. What holds for
both, such as evaluations and entries of the leaderboards, goes through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shard_gym.cost_models import CostModel, make_cost_model, make_sharding_cost_model
from shard_gym.cost_models.base import PENALTY_MARGIN, AdditiveCostModel, FloatArray
from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.placement import check_placement, placement_from_json, placement_to_json
from shard_gym.sharding import ShardingPlan, check_plan, plan_of_placement
from shard_gym.sharding.files import shardings_from_json, shardings_to_json
from shard_gym.sharding.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.sharding.variants import variants_of, with_all_widths
from shard_gym.tasks import Task

Answer = Any
"""A (T,) int64 placement or a `ShardingPlan`, checked."""


class Answers(ABC):
    """A kind of answers.

    Attributes:
        noun: "placement" or "plan"; in files the key of an answer.
    """

    noun: str

    @abstractmethod
    def asker(self, agent: Any) -> Callable[[Task], Any]:
        """The function of an agent that answers a task; not callable if it has none."""

    @abstractmethod
    def checked(self, given: Any, task: Task) -> Answer:
        """What an agent returned, checked.

        Raises:
            InvalidPlacementError: it is no valid answer (of plans, the subclass InvalidPlanError).
            MemoryExceededError: a device is over its memory cap.
        """

    @abstractmethod
    def to_json(self, answer: Answer) -> list[Any]:
        """The answer as a JSON value."""

    @abstractmethod
    def from_json(self, value: Any, task: Task) -> Answer:
        """The checked answer in a JSON value; raises the errors of `checked`."""

    @abstractmethod
    def model(self, cost_model: CostModel | str) -> CostModel:
        """The cost model for these answers.

        Raises:
            InvalidOptionError: it does not cost such answers.
        """

    @abstractmethod
    def cost_ms(self, answer: Answer, task: Task, model: CostModel) -> float:
        """The cost of a checked answer."""

    @abstractmethod
    def penalty_ms(self, task: Task, model: CostModel) -> float:
        """What a task without a valid answer is charged; above the cost of every valid one."""

    @abstractmethod
    def lower_bound_ms(self, task: Task, model: AdditiveCostModel) -> float:
        """A lower bound on the cost of every valid answer, without a solver."""

    @abstractmethod
    def canonical(self, answer: Answer) -> bytes:
        """Equal for answers that differ in the numbers of the devices only: a suite's devices are alike."""


class _Placements(Answers):
    """Placements of whole tables."""

    noun = "placement"

    def asker(self, agent: Any) -> Callable[[Task], Any]:
        """See `Answers`; a function is an agent, too."""
        place: Callable[[Task], Any] = getattr(agent, "place", agent)
        return place

    def checked(self, given: Any, task: Task) -> Answer:
        """See `Answers`."""
        return check_placement(given, task.tables, task.topology)

    def to_json(self, answer: Answer) -> list[Any]:
        """See `Answers`: T device numbers."""
        return placement_to_json(answer)

    def from_json(self, value: Any, task: Task) -> Answer:
        """See `Answers`."""
        return placement_from_json(value, task.tables, task.topology)

    def model(self, cost_model: CostModel | str) -> CostModel:
        """See `Answers`."""
        return make_cost_model(cost_model)

    def cost_ms(self, answer: Answer, task: Task, model: CostModel) -> float:
        """See `Answers`."""
        return float(model.estimate(answer, task.tables, task.topology).total_ms)

    def penalty_ms(self, task: Task, model: CostModel) -> float:
        """See `Answers`."""
        return float(model.penalty_ms(task.tables, task.topology))

    def lower_bound_ms(self, task: Task, model: AdditiveCostModel) -> float:
        """See `Answers`."""
        return float(model.cost_bounds(model.table_loads(task.tables, task.topology), task.topology)[0])

    def canonical(self, answer: Answer) -> bytes:
        """See `Answers`."""
        return _renumbered(answer).tobytes()


class _Plans(Answers):
    """Sharding plans."""

    noun = "plan"

    def asker(self, agent: Any) -> Callable[[Task], Any]:
        """See `Answers`; of an agent that only places, the plan of whole tables."""
        place: Callable[[Task], Any] = getattr(agent, "place", agent)
        plan: Callable[[Task], Any] = getattr(agent, "plan", place)
        if plan is not place or not callable(place):
            return plan
        return lambda task: plan_of_placement(check_placement(place(task), task.tables, task.topology), task.tables)

    def checked(self, given: Any, task: Task) -> Answer:
        """See `Answers`."""
        return check_plan(given, task.tables, task.topology)

    def to_json(self, answer: Answer) -> list[Any]:
        """See `Answers`: for each table its sharding type and its shards, five integers each."""
        return shardings_to_json(answer)

    def from_json(self, value: Any, task: Task) -> Answer:
        """See `Answers`."""
        return shardings_from_json(value, task.tables, task.topology)

    def model(self, cost_model: CostModel | str) -> CostModel:
        """See `Answers`."""
        return make_sharding_cost_model(cost_model)

    def cost_ms(self, answer: Answer, task: Task, model: CostModel) -> float:
        """See `Answers`."""
        assert isinstance(model, ShardingCostModel)
        return float(model.estimate_plan(answer, task.tables, task.topology).total_ms)

    def penalty_ms(self, task: Task, model: CostModel) -> float:
        """See `Answers`."""
        return PENALTY_MARGIN * self._bounds(task, model)[1]

    def lower_bound_ms(self, task: Task, model: AdditiveCostModel) -> float:
        """See `Answers`."""
        return self._bounds(task, model)[0]

    @staticmethod
    def _bounds(task: Task, model: CostModel) -> tuple[float, float]:
        assert isinstance(model, ShardingCostModel)
        dims = task.tables.embedding_dim
        variants = variants_of(task.tables, task.topology, max_halvings=int(dims.max() // 4).bit_length() - 1)
        if (dims & (dims - 1)).any():  # halves of other dims are not the cheapest and costliest columns
            variants = with_all_widths(variants, task.topology)
        return model.variant_bounds(variants, model.variant_loads(variants, task.topology), task.topology)

    def canonical(self, answer: Answer) -> bytes:
        """See `Answers`; nor do the order of shards, which of two equal shards is where, or a whole table's type."""
        everywhere: list[tuple[int, str]] = []
        held: dict[int, list[tuple[int, str, int]]] = {}
        for table, sharding in enumerate(answer.tables):
            kind, shards = sharding.sharding_type, sharding.shards
            if kind in (ROW_WISE, DATA_PARALLEL):
                everywhere.append((table, kind))
                continue
            for shard in shards:
                held.setdefault(int(shard.device), []).append(
                    (table, TABLE_WISE if len(shards) == 1 else kind, int(shard.num_columns))
                )
        return repr((everywhere, sorted(map(sorted, held.values())))).encode()


def _renumbered(devices: np.ndarray) -> np.ndarray:
    """The devices numbered in their order of appearance."""
    _, first, inverse = np.unique(devices, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


PLACEMENTS: Answers = _Placements()
PLANS: Answers = _Plans()


def answers_to(task: Task) -> Answers:
    """The kind of answers to a task: plans if its tables may be split, else placements."""
    return PLANS if task.splittable else PLACEMENTS


def costs_ms(answers: Sequence[ShardingPlan], task: Task, model: ShardingCostModel) -> FloatArray:
    """(P,) ms of P checked plans of a task."""
    loads = np.stack([model.plan_loads(plan, task.tables, task.topology) for plan in answers])
    return model.costs(loads, task.topology.cluster())[1]
