"""The problem of sharding: a sharding plan, in which tables may be split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.cost_models.base import AdditiveCostModel, bounds_of_plans
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, check_answer, plan_of_placement
from shard_gym.plans.files import (
    GROUPS,
    groups_from_json,
    groups_to_json,
    shardings_from_json,
    shardings_to_json,
)
from shard_gym.plans.placement import check_placement
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ONE_GROUP, ROW_WISE, TABLE_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables
from shard_gym.tasks.groups import task_of_group, task_of_plan, tasks_of_groups
from shard_gym.tasks.problems.base import Problem
from shard_gym.tasks.problems.likeness import kept_together
from shard_gym.tasks.problems.placement import alone_ms, cost_in_turn
from shard_gym.tasks.task import Task


class ShardingProblem(Problem[Task]):
    """Answers are `ShardingPlan`s; JSON has for each table its sharding type and its shards, five integers each."""

    name = "sharding"
    env_id = "EmbeddingSharding-v0"
    noun = "plan"
    rivals = goals = (*Problem.rivals, "hugectr")
    takes = "an object with place(task) or plan(task), or a function of a task that returns a placement"

    @override
    def asker(self, agent: Any) -> Callable[[Task], Any]:
        """The function of an agent that plans; of one that only places, the plan of whole tables."""
        place: Callable[[Task], Any] = getattr(agent, "place", agent)
        plan: Callable[[Task], Any] = getattr(agent, "plan", place)
        if plan is not place or not callable(place):
            return plan
        return lambda task: plan_of_placement(check_placement(place(task), task.tables, task.topology), task.tables)

    @override
    def checked(self, returned: Any, task: Task) -> ShardingPlan:
        own = task_of_plan(returned, task) if isinstance(returned, ShardingPlan) else task
        empty_blocks = own.constraints is not None and own.constraints.empty_blocks
        plan = check_answer(returned, own.tables, own.topology, empty_blocks)
        own.require_constraints(plan)
        return plan

    @override
    def to_json(self, answer: ShardingPlan) -> Any:
        shardings = shardings_to_json(answer)
        if answer.groups == ONE_GROUP:
            return shardings
        return {GROUPS: groups_to_json(answer.groups), "shardings": shardings}

    @override
    def from_json(self, value: Any, task: Task) -> ShardingPlan:
        groups = ONE_GROUP
        if isinstance(value, dict) and set(value) == {GROUPS, "shardings"}:
            groups, value = groups_from_json(value[GROUPS]), value["shardings"]
        own = task_of_group(task, groups)
        plan = shardings_from_json(value, own.tables, own.topology, groups)
        own.require_constraints(plan)
        return plan

    @override
    def model(self, cost_model: CostModel | str) -> CostModel:
        return make_cost_model(cost_model, splits=True)

    @override
    def cost_ms(self, answer: ShardingPlan, task: Task, model: CostModel) -> float:
        own = task_of_plan(answer, task)
        return float(_model_of(own, model).estimate(answer, own.tables, own.topology).total_ms)

    @override
    def costs_ms(self, answers: Sequence[ShardingPlan], task: Task, model: AdditiveCostModel) -> FloatArray:
        assert isinstance(model, AdditiveCostModel)
        costs, groups = np.empty(len(answers)), [plan.groups for plan in answers]
        for each in dict.fromkeys(groups):
            some = [position for position, own in enumerate(groups) if own == each]
            loads = part_loads(task_of_group(task, each), model)
            costs[some] = loads.costs_ms([answers[position] for position in some])
        return costs

    @override
    def penalty_ms(self, task: Task, model: CostModel) -> float:
        return max(
            _model_of(own, model).penalty_ms(own.tables, own.topology, splits=True) for own in tasks_of_groups(task)
        )

    @override
    def lower_bound_ms(self, task: Task, model: AdditiveCostModel) -> float:
        assert isinstance(model, AdditiveCostModel)
        return min(
            bounds_of_plans(model_of(own.topology, model), own.tables, own.topology)[0] for own in tasks_of_groups(task)
        )

    @override
    def probe_ms(self, task: Task, model: AdditiveCostModel) -> tuple[float, float]:
        return self.penalty_ms(task, model), cost_in_turn(task, model)

    @override
    def tables_of(self, task: Task) -> Tables:
        return task.tables

    @override
    def canonical(self, answer: ShardingPlan, task: Task) -> bytes:
        """Without the numbers of devices, the order of shards, which of two equal shards is where, or the sharding type
        of a whole table, or the layout of groups where it makes no difference."""
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
        groups = task_of_plan(answer, task).topology
        more = () if groups.fast_group == "host" else (groups.domain_size,)
        of_groups = () if groups.replicas is None else (groups.replicas, groups.devices_per_host, *more)
        return repr((*of_groups, everywhere, sorted(map(sorted, held.values())))).encode()

    @override
    def traits(self, answer: ShardingPlan, task: Task) -> FloatArray:
        """(T, D) share of the weights of each table on each device up to the last that holds any, copies counted."""
        held = [
            (table, int(shard.device), int(shard.num_rows) * int(shard.num_columns))
            for table, sharding in enumerate(answer.tables)
            for shard in sharding.shards
        ]
        tables, devices, weights = map(np.array, zip(*held, strict=True))
        shares = np.zeros((len(answer.tables), int(devices.max()) + 1))
        np.add.at(shares, (tables, devices), weights)
        whole: FloatArray = shares / shares.sum(axis=1, keepdims=True)
        return whole

    @override
    def likeness(self, own: Sequence[Any], others: Sequence[Any], task: Task, model: CostModel) -> FloatArray:
        return kept_together(own, others, alone_ms(task, model))


class PartLoads:
    """The loads of the parts of the tables of one task without groups.

    Those of a sharding type, and of a width, are computed for all tables when a plan first has such a part.

    Attributes:
        task: whose tables.
        model: the cost model of its devices.
    """

    def __init__(self, task: Task, model: AdditiveCostModel) -> None:
        self.task, self.model = task, model
        self._loads: dict[tuple[str, int], FloatArray] = {}

    def costs_ms(self, plans: Sequence[ShardingPlan]) -> FloatArray:
        """(P,) costs of P answers (`check_answer`), of the bits of `estimate`."""
        device_loads = np.stack([self.of_devices(*self.each_shard(plan)) for plan in plans])
        return self.model.costs(device_loads, self.task.topology.cluster())[1]

    def of_devices(self, loads: FloatArray, shards: NDArray[np.int64]) -> FloatArray:
        """(D, K) loads of the devices, from what `each_shard` returns."""
        return self.model.reduce(loads, shards[:, 1], self.task.num_devices)

    def each_shard(self, plan: ShardingPlan) -> tuple[FloatArray, NDArray[np.int64]]:
        """(S, K) loads of each shard of an answer, and (S, 6) its `shard_arrays`: see `loads_of_shards`."""
        shards = plan.shard_arrays()
        table, columns = shards[:, 0], shards[:, 5]
        kinds = np.array([SHARDING_TYPES.index(each.sharding_type) for each in plan.tables])[table]
        forms = np.where(kinds == SHARDING_TYPES.index(COLUMN_WISE), columns, 0) * len(SHARDING_TYPES) + kinds
        groups = len(self.task.tables.workloads)
        loads = np.empty((len(table), self.model.num_loads_with(self.task.topology.host is not None, groups)))
        for form in np.unique(forms).tolist():
            width, kind = divmod(form, len(SHARDING_TYPES))
            chosen = forms == form
            loads[chosen] = self._of_part(SHARDING_TYPES[kind], width)[table[chosen]]
        return loads, shards

    def _of_part(self, kind: str, width: int) -> FloatArray:
        """(T, K) loads of a part of each table; column shards have `width` columns, or those that there are."""
        if (kind, width) not in self._loads:
            tables, topology = self.task.tables, self.task.topology
            widths = np.minimum(tables.embedding_dim, width) if kind == COLUMN_WISE else None
            shards = shard_tables(tables, kind, topology, widths)
            self._loads[kind, width] = self.model.loads(shards, topology, kind)
        return self._loads[kind, width]


@lru_cache(maxsize=256)
def part_loads(task: Task, model: AdditiveCostModel) -> PartLoads:
    """Those of a task, or of that of one group, kept for the next plans."""
    return PartLoads(task, model_of(task.topology, model))


def _model_of(task: Task, model: CostModel) -> CostModel:
    """`model`, for the devices of a task of one group."""
    return model_of(task.topology, model) if isinstance(model, AdditiveCostModel) else model
