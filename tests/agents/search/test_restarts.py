"""`plan-search` with several seeds: how many are tried, and which plan is the answer."""

from __future__ import annotations

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.agents.search import PlanSearchAgent
from shard_gym.agents.search.plan_search import Ended
from shard_gym.agents.search.restarts import MANY, MAX_SEEDS, RestartedSearch, restarted
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task, load_suite

MODEL = AnalyticalShardingModel()


def mlperf(devices: int) -> Task:
    """26 tables on as many devices; on 16 the plans of seeds differ much."""
    tables = load_pool("mlperf-dlrm-dcnv2").tables
    return Task("dcn16", tables, hardware_profile("a100-dgx").topology(devices, reserve=0.15), splittable=True)


def cost_ms(plan, task: Task) -> float:
    return MODEL.estimate(plan, task.tables, task.topology).total_ms


def test_seeds_that_differ_are_tried_and_the_cheapest_plan_is_the_answer() -> None:
    task, budget, first = mlperf(16), 12_000, 1
    agent = restarted(make_agent("plan-search", max_queries=budget, seed=first))
    assert isinstance(agent, RestartedSearch)
    costs = [
        cost_ms(make_agent("plan-search", max_queries=budget, seed=first + k).plan(task), task)
        for k in range(MAX_SEEDS)
    ]
    assert max(costs[:2]) > 1.01 * min(costs[:2])
    answer = agent.plan(task)
    assert cost_ms(answer, task) == min(costs) < costs[0]
    assert agent.tried is not None
    assert agent.tried.seeds == tuple(range(first, first + MAX_SEEDS))
    assert agent.tried.evaluations == agent.true_cost_queries(MODEL.fingerprint) >= MAX_SEEDS * budget
    assert agent.tried.ended == Ended.BUDGET
    assert [cost for cost, _ in agent.found] == sorted(costs)
    assert agent.plan(task) == answer  # the first seed is that of the agent again


def test_seeds_that_agree_are_tried_twice() -> None:
    task = load_suite("shard-8")[0]
    agent = restarted(make_agent("plan-search", max_queries=20_000))
    agent.plan(task)
    costs = [cost for cost, _ in agent.found]
    assert len(costs) == 2
    assert max(costs) < 1.01 * min(costs)


def test_a_search_that_ends_by_itself_is_not_restarted() -> None:
    tables = Tables.from_zipf([1000, 2000], 4, 1.0, 0.0, Workload(128))
    task = Task("two", tables, hardware_profile("a100-dgx").topology(2), splittable=True)
    agent = restarted(make_agent("plan-search"))
    agent.plan(task)
    assert agent.tried.seeds == (0,)
    assert agent.tried.ended == Ended.NOTHING_NEW


def test_whole_tables_are_searched_with_several_seeds_too() -> None:
    task = Task("whole", mlperf(16).tables, mlperf(16).topology)
    agent = restarted(make_agent("plan-search", max_queries=1_000))
    placement = agent.place(task)
    costs = [MODEL.estimate(each, task.tables, task.topology).total_ms for _, each in agent.found]
    assert MODEL.estimate(placement, task.tables, task.topology).total_ms == min(costs)
    assert len(agent.tried.seeds) >= 2


def test_a_search_of_many_tables_and_devices_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, devices = MANY // 64 + 1, 64
    tables = Tables.from_zipf(np.full(count, 1000), 16, 1.0, 0.0, Workload(1024))
    task = Task("many", tables, hardware_profile("a100-dgx").topology(devices), splittable=True)
    agent = restarted(make_agent("plan-search", max_queries=300))
    agent.plan(task)
    assert agent.tried.seeds == (0,)
    assert agent.tried.ended == Ended.BUDGET


def test_other_agents_stay_as_they_are() -> None:
    greedy = make_agent("lane-greedy")
    assert restarted(greedy) is greedy
    assert isinstance(make_agent("plan-search"), PlanSearchAgent)
