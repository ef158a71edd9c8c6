"""Answers to tasks: what is the same plan, and bounds that hold for every legal one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.agents import PolicyAgent, make_agent
from shard_gym.answers import PLANS
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.hardware import hardware_profile
from shard_gym.sharding import ShardingPlan, TableSharding, column_wise, data_parallel, row_wise, table_wise
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

MODEL = make_sharding_cost_model("analytical")


def with_dims(tables: Tables, dims: list[int]) -> Tables:
    return tables.select(np.arange(len(dims))).with_dims(np.array(dims))


def task_of(tables: Tables, num_devices: int = 4, **changes: object) -> Task:
    return Task("plans", tables, hardware_profile("a100-dgx").topology(num_devices), splittable=True, **changes)


def test_the_same_plan_written_otherwise_is_the_same(four_tables: Tables) -> None:
    """Copies of entries are found by it: what costs the same by its very nature must not look different."""
    tables = with_dims(four_tables, [64, 64, 32, 32])
    topology = task_of(tables).topology
    whole, halves = table_wise(tables, 0, 2), column_wise(tables, 1, [0, 3])
    plan = ShardingPlan((whole, halves, data_parallel(tables, 2, topology), row_wise(tables, 3, topology)))
    replicas = plan.tables[2]
    same = [
        (TableSharding("column_wise", whole.shards), *plan.tables[1:]),
        (whole, column_wise(tables, 1, [3, 0]), *plan.tables[2:]),
        (whole, replace(halves, shards=halves.shards[::-1]), *plan.tables[2:]),
        (whole, halves, replace(replicas, shards=replicas.shards[::-1]), plan.tables[3]),
        (table_wise(tables, 0, 1), column_wise(tables, 1, [2, 0]), *plan.tables[2:]),  # devices renumbered
    ]
    others = [
        (table_wise(tables, 0, 0), *plan.tables[1:]),  # beside a half now
        (whole, column_wise(tables, 1, [0, 3], [16, 48]), *plan.tables[2:]),
        (*plan.tables[:3], data_parallel(tables, 3, topology)),
    ]
    assert {PLANS.canonical(ShardingPlan(each)) for each in same} == {PLANS.canonical(plan)}
    assert PLANS.canonical(plan) not in {PLANS.canonical(ShardingPlan(each)) for each in others}


@pytest.mark.parametrize("dims", [[120], [12], [68], [36, 100], [200], [136, 1000]])
def test_bounds_hold_for_columns_that_are_no_halves(four_tables: Tables, dims: list[int]) -> None:
    """Any widths that are multiples of 4 are legal, and a valid plan is never worse than none."""
    for num_devices in (1, 4):
        tables = with_dims(four_tables, dims)
        task = task_of(tables, num_devices)
        narrow = [column_wise(tables, table, [0] * (dim // 4)) for table, dim in enumerate(dims)]
        wide, wider = (
            [
                column_wise(tables, table, [0] * len(widths), widths)
                for table, dim in enumerate(dims)
                for widths in [[width] * (dim // width) + [dim % width] * (dim % width > 0)]
            ]
            for width in (32, 128)
        )
        for shardings in (narrow, wide, wider):
            cost = MODEL.estimate_plan(ShardingPlan(tuple(shardings)), tables, task.topology).total_ms
            assert PLANS.lower_bound_ms(task, MODEL) <= cost * (1 + 1e-12)
            assert cost < PLANS.penalty_ms(task, MODEL)


def test_a_suite_may_have_tasks_of_both_kinds_in_any_order(four_tables: Tables) -> None:
    split = task_of(four_tables)
    whole = replace(split, name="whole", splittable=False)
    for tasks in ((split, whole), (whole, split)):
        results = evaluate(make_agent("plan-search", max_queries=500), TaskSuite("both", tasks)).tasks
        assert {result.task: result.plan is not None for result in results} == {"plans": True, "whole": False}


def test_agents_that_play_whole_tables_fail_where_one_fits_no_device(four_tables: Tables) -> None:
    tables = four_tables.select([1, 0]).with_dims(np.array([128, 4]))
    half = int(tables.memory_bytes[0]) // 2
    topology = hardware_profile("a100-dgx").topology(4, memory_cap_bytes=max(half, int(tables.memory_bytes[1])) + 1)
    task = Task("large", tables, topology, splittable=True)
    agent = PolicyAgent("first", lambda _, mask: int(mask.argmax()), max_tables=2, max_devices=4)
    (result,) = evaluate(agent, TaskSuite("one", (task,))).tasks
    assert "fits no device whole" in result.failure
