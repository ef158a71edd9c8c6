"""The cost of serving is the forward of the analytical model."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model, make_sharding_cost_model
from shard_gym.cost_models.base import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM
from shard_gym.cost_models.inference import InferenceCostModel
from shard_gym.cost_models.plan_bounds import plan_lower_bound_ms
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.problems import problem_of
from shard_gym.sharding import ShardingPlan, column_wise, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.tables import Tables
from shard_gym.tasks import Task
from shard_gym.topology import Topology
from shard_gym.workload import Workload

SERVING, TRAINING = InferenceCostModel(), AnalyticalShardingModel()


def tables_of(count: int = 5, pooled: bool = True) -> Tables:
    rng = np.random.default_rng(count)
    rows, dims = rng.integers(1000, 90_000, count), rng.choice([16, 64, 128], count)
    return Tables.from_zipf(rows, dims, rng.uniform(1, 9, count), 1.0, Workload(4096, "fp32", "sgd"), pooled=pooled)


def topology_of(devices: int = 8, host: bool = False) -> Topology:
    profile = hardware_profile("a100-dgx")
    topology = replace(profile.topology(devices), devices_per_host=4)
    return replace(topology, host=profile.host_memory(2**20)) if host else topology


def plan_of(tables: Tables, topology: Topology) -> ShardingPlan:
    return ShardingPlan(
        (
            table_wise(tables, 0, 1),
            column_wise(tables, 1, [3, 0], [tables.embedding_dim[1] // 2] * 2),
            row_wise(tables, 2, topology),
            table_row_wise(tables, 3, topology, 1),
            data_parallel(tables, 4, topology),
        )
    )


@pytest.mark.parametrize("host", [False, True])
def test_phases_are_those_of_the_forward(host: bool) -> None:
    tables, topology = tables_of(), topology_of(host=host)
    plan = plan_of(tables, topology)
    serving = SERVING.estimate_plan(plan, tables, topology)
    trained = TRAINING.estimate_plan(plan, tables, topology)
    assert not serving.phases_ms[:, [BACKWARD, BACKWARD_COMM]].any()
    assert (serving.phases_ms[:, FORWARD_COMM] == trained.phases_ms[:, FORWARD_COMM]).all()
    assert serving.total_ms == pytest.approx(serving.phases_ms.max(axis=0).sum(), rel=1e-12)
    same = serving.phases_ms[:, FORWARD] == trained.phases_ms[:, FORWARD]
    assert same.all() or host  # the rows of a replica compete by their reads where no gradient reads all
    assert (serving.phases_ms[:, FORWARD] <= trained.phases_ms[:, FORWARD] * (1 + 1e-12)).all()


@pytest.mark.parametrize("host", [False, True])
def test_the_fast_ways_have_the_costs_of_complete_placements(host: bool) -> None:
    """An episode of the environment, step by step, and a search."""
    tables, topology = tables_of(6), topology_of(host=host)
    task = Task("t", tables, topology)
    placement = make_agent("local-search", cost_model=SERVING, max_queries=2000).place(task)
    cost = SERVING.estimate(placement, tables, topology).total_ms
    low, penalty = (problem_of(task).lower_bound_ms(task, SERVING), problem_of(task).penalty_ms(task, SERVING))
    assert low <= cost < penalty
    loads = SERVING.table_loads(tables, topology)
    device = np.array([SERVING.reduce(loads, placement, 8)])
    assert SERVING.costs(device, topology.cluster())[1][0] == cost


def test_bounds_hold_on_all_placements_of_a_tiny_task() -> None:
    tables, topology = tables_of(5), topology_of(3)
    task = Task("t", tables, replace(topology, devices_per_host=8))
    low, high = problem_of(task).lower_bound_ms(task, SERVING), problem_of(task).penalty_ms(task, SERVING)
    costs = [SERVING.estimate(np.array(each), tables, task.topology).total_ms for each in product(range(3), repeat=5)]
    assert low <= min(costs) <= max(costs) < high


def test_a_search_replicates_what_memory_allows() -> None:
    """Where there is room, copies on all devices exchange nothing; where there is none, tables are split up."""
    tables, roomy = tables_of(6), topology_of()
    tight = replace(roomy, memory_cap_bytes=np.full(8, int(tables.memory_bytes.sum() / 5)))
    model, costs = make_sharding_cost_model("analytical-inference"), []
    for topology in (roomy, tight):
        plan = make_agent("plan-search", cost_model=model, max_queries=5000).plan(
            Task("t", tables, topology, splittable=True)
        )
        costs.append(model.estimate_plan(plan, tables, topology))
    assert not costs[0].phases_ms[:, FORWARD_COMM].any()
    assert costs[1].phases_ms[:, FORWARD_COMM].any()
    assert costs[0].total_ms < costs[1].total_ms
    everywhere = ShardingPlan(tuple(data_parallel(tables, table, roomy) for table in range(6)))
    assert costs[0].total_ms <= model.estimate_plan(everywhere, tables, roomy).total_ms


def test_what_serving_does_not_have_is_refused() -> None:
    assert make_cost_model("analytical-inference").fingerprint == "analytical-inference-v2"
    with pytest.raises(InvalidOptionError, match="never averaged"):
        SERVING.with_replicas()
    with pytest.raises(InvalidOptionError, match="no lower bound under the cost model 'analytical-inference'"):
        plan_lower_bound_ms(tables_of(), topology_of(), SERVING)
