"""The cost of serving is the forward of the analytical model."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import gymnasium
import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.agents.training import make_learner
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AnalyticalShardingModel, InferenceCostModel, make_cost_model
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.cost_models.analytical.traffic import sent_bytes
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM
from shard_gym.evaluation import evaluate
from shard_gym.hardware import Replicas, Topology, hardware_profile
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.plans.memory import training_memory
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, load_suite, problem_of

SERVING, TRAINING = InferenceCostModel(), AnalyticalShardingModel()


def tables_of(count: int = 5, pooled: bool = True) -> Tables:
    rng = np.random.default_rng(count)
    rows, dims = rng.integers(1000, 90_000, count), rng.choice([16, 64, 128], count)
    return Tables.from_zipf(
        rows, dims, rng.uniform(1, 9, count), 1.0, Workload(4096, "fp32", training=False), pooled=pooled
    )


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
    serving = SERVING.estimate(plan, tables, topology)
    trained = TRAINING.estimate(plan, tables.with_training(training=True), topology)
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
    loads = SERVING.loads(tables, topology)
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
    model, costs = make_cost_model("analytical-inference", additive=True, splits=True), []
    for topology in (roomy, tight):
        plan = make_agent("plan-search", cost_model=model, max_queries=5000).plan(
            Task("t", tables, topology, splittable=True)
        )
        costs.append(model.estimate(plan, tables, topology))
    assert not costs[0].phases_ms[:, FORWARD_COMM].any()
    assert costs[1].phases_ms[:, FORWARD_COMM].any()
    assert costs[0].total_ms < costs[1].total_ms
    everywhere = ShardingPlan(tuple(data_parallel(tables, table, roomy) for table in range(6)))
    assert costs[0].total_ms <= model.estimate(everywhere, tables, roomy).total_ms


def test_each_model_refuses_the_tables_of_the_other() -> None:
    tables, topology = tables_of(), topology_of()
    placement = np.zeros(5, np.int64)
    with pytest.raises(InvalidOptionError, match="'analytical' does not support tables that are served"):
        TRAINING.estimate(placement, tables, topology)
    with pytest.raises(InvalidOptionError, match="does not support tables that are trained"):
        SERVING.estimate(placement, tables.with_training(training=True), topology)


def test_what_is_served_has_no_states_and_no_gradients() -> None:
    tables, topology = tables_of().with_training(optimizer="adam"), topology_of()
    assert (tables.memory_bytes == tables.num_embeddings * tables.embedding_dim * 4).all()
    plan = plan_of(tables, topology)
    trained = tables.with_training(training=True, optimizer="sgd")
    parts, of_training = (training_memory(plan, each, 8).of_devices for each in (tables, trained))
    assert (parts[:, :3] == of_training[:, :3]).all()
    assert of_training[:, 3].any()
    assert not parts[:, 3].any()
    sent, sent_in_training = (sent_bytes(plan, each, topology) for each in (tables, trained))
    assert not sent["all_reduce"].any()
    assert sent["all_to_all"].sum() == pytest.approx(sent_in_training["all_to_all"].sum() / 2)


def test_a_suite_of_serving_is_scored_by_its_own_model() -> None:
    """'analytical', the default everywhere, stands for it: in environments, evaluations, training and boards."""
    suite = load_suite("inference-8")
    assert (suite.cost_model, load_suite("shard-8").cost_model) == ("analytical-inference", "analytical")
    assert not suite[0].tables.workload.training
    env = gymnasium.make("EmbeddingSharding-v0", suite="inference-8", split="test")
    env.reset(seed=0)
    assert env.unwrapped.cost_model.name == "analytical-inference"  # type: ignore[attr-defined]
    few = replace(suite, tasks=suite.tasks[:2])
    assert evaluate(make_agent("lookup-greedy"), few).cost_model == SERVING.fingerprint
    assert load_scorer("inference-8").model.name == "analytical-inference"
    assert make_learner("dreamshard", "inference-8").cost_model.name == "analytical-inference"


def test_what_serving_does_not_have_is_refused() -> None:
    assert make_cost_model("analytical-inference").fingerprint == "analytical-inference-v2"
    in_groups = replace(topology_of(), replicas=Replicas(2, 1, 10))
    with pytest.raises(InvalidOptionError, match="'analytical-inference' does not support plans for groups"):
        model_of(in_groups, SERVING)
    with pytest.raises(InvalidOptionError, match="'analytical-inference' does not support plans for groups"):
        SERVING.with_replicas()
