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
from shard_gym.errors import MemoryExceededError
from shard_gym.sharding import check_plan
from shard_gym.suites import load_suite

pytest.importorskip("scipy")
MODEL = make_sharding_cost_model("analytical")


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_plan_costs_less(random_task: Any, random_plan: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(1, 6))
    task = random_task(rng, int(rng.integers(1, 6)), devices, dims=(8, 20, 48, 64, 132), devices_per_host=2)
    bound = plan_lower_bound_ms(task.tables, task.topology, MODEL)
    costs = []
    for _ in range(20):
        plan = random_plan(rng, task.tables, task.topology)
        try:
            costs.append(MODEL.estimate_plan(check_plan(plan, task.tables, task.topology), task.tables, task.topology))
        except MemoryExceededError:
            continue
    searched = PlanSearchAgent(max_queries=300).plan(task)
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
