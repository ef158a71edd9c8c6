"""Lower bounds on the costs of plans: no plan costs less, whatever its shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents.plan_search import PlanSearchAgent
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.cost_models.plan_bounds import plan_lower_bound_ms
from shard_gym.errors import InvalidPlanError, MemoryExceededError
from shard_gym.sharding import (
    ShardingPlan,
    TableSharding,
    check_plan,
    column_wise,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.suites import load_suite
from shard_gym.tasks import Task

pytest.importorskip("scipy")
MODEL = make_sharding_cost_model("analytical")


def random_sharding(task: Task, table: int, rng: np.random.Generator) -> TableSharding:
    """One of any type, or columns of any widths on any devices."""
    tables, topology, devices = task.tables, task.topology, task.num_devices
    hosts = -(-devices // topology.devices_per_host)
    quarters = int(tables.embedding_dim[table]) // 4
    cuts = np.sort(rng.choice(quarters - 1, min(quarters - 1, int(rng.integers(1, 4))), replace=False) + 1)
    widths = (4 * np.diff([0, *cuts, quarters])).tolist()
    ways: list[Any] = [
        lambda: table_wise(tables, table, int(rng.integers(devices))),
        lambda: column_wise(tables, table, rng.integers(devices, size=len(widths)).tolist(), widths),
        lambda: row_wise(tables, table, topology),
        lambda: table_row_wise(tables, table, topology, int(rng.integers(hosts))),
        lambda: data_parallel(tables, table, topology),
    ]
    while True:
        try:
            return ways[int(rng.choice(5, p=[0.2, 0.5, 0.1, 0.1, 0.1]))]()
        except InvalidPlanError:
            continue


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_plan_costs_less(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(1, 6))
    task = random_task(rng, int(rng.integers(1, 6)), devices, dims=(8, 20, 48, 64, 132), devices_per_host=2)
    bound = plan_lower_bound_ms(task.tables, task.topology, MODEL)
    costs = []
    for _ in range(20):
        plan = ShardingPlan(tuple(random_sharding(task, table, rng) for table in range(task.num_tables)))
        try:
            costs.append(MODEL.estimate_plan(check_plan(plan, task.tables, task.topology), task.tables, task.topology))
        except (InvalidPlanError, MemoryExceededError):
            continue
    searched = PlanSearchAgent(max_queries=500).plan(task)
    costs.append(MODEL.estimate_plan(searched, task.tables, task.topology))
    assert 0 < bound <= min(cost.total_ms for cost in costs)


@pytest.mark.parametrize("name", ["shard-4", "shard-8"])
def test_it_says_more_than_the_bound_without_a_solver(name: str) -> None:
    """And on these tasks a search comes within a third of it."""
    task = load_suite(name)[0]
    bound = plan_lower_bound_ms(task.tables, task.topology, MODEL)
    plan = PlanSearchAgent(max_queries=20_000).plan(task)
    cost = MODEL.estimate_plan(plan, task.tables, task.topology).total_ms
    assert 0.75 * cost < bound < cost
