"""NeuroShard: its beam search against a plain computation, what it measures, and that its plans are good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents.neuroshard.agent import BeamSearch, _Parts, place_greedily
from shard_gym.agents.neuroshard.learner import NeuroShardLearner, paper_load
from shard_gym.agents.search import PlanSearchAgent
from shard_gym.agents.search.splits import SplitOptions
from shard_gym.agents.training import make_learner
from shard_gym.agents.training.loads import load_of, random_shards
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError
from shard_gym.common.io.arrays import under
from shard_gym.cost_models import CostEstimate, CountedEstimates, make_cost_model
from shard_gym.cost_models.fitting.data.shards import ShardRecorder
from shard_gym.cost_models.fitting.training import Samples, relative_loss, trainable
from shard_gym.cost_models.neural.network import NORMALIZATION
from shard_gym.cost_models.neural.neuroshard import NeuroShardCostModel
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.plans import SHARDING_TYPES, check_plan
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite, load_suite

MODEL = make_cost_model(additive=True, splits=True)


@pytest.fixture(scope="module")
def tasks() -> TaskSuite:
    return TaskSuite("four", load_suite("shard-4", "train").tasks[:4])


def learner(suite: TaskSuite, **options: Any) -> NeuroShardLearner:
    made = make_learner("neuroshard", suite, **options)
    assert isinstance(made, NeuroShardLearner)
    return made


def test_the_load_of_a_plan_costs_what_the_plan_costs(tasks: TaskSuite) -> None:
    for task in tasks:
        split = PlanSearchAgent(max_queries=3_000).split(task)
        estimate = MODEL.estimate(split.plan(), task.tables, task.topology)
        assert load_of(split).estimate(MODEL).total_ms == pytest.approx(estimate.total_ms, rel=1e-9)


def test_loads_are_drawn_as_the_paper_draws_them(tasks: TaskSuite) -> None:
    rng = np.random.default_rng(0)
    counts: dict[bool, set[int]] = {True: set(), False: set()}
    for one_device in (True, False) * 60:
        load = paper_load(tasks, one_device, rng)
        (shards,) = load.shards
        counts[one_device].add(len(shards.tables))
        assert load.topology.num_devices == (1 if one_device else 4)
        assert set(shards.tables.embedding_dim.tolist()) <= {4, 8, 16, 32, 64, 128}
        held = np.bincount(shards.devices, shards.tables.memory_bytes, load.topology.num_devices)
        assert held.max() <= load.topology.device.memory_bytes
    assert min(counts[True]) == 1
    assert max(counts[True]) <= 15
    assert 10 <= min(counts[False]) < max(counts[False]) <= 59


def test_random_loads_have_shards_of_all_types_that_the_network_estimates(tasks: TaskSuite) -> None:
    rng = np.random.default_rng(0)
    loads = [random_shards(tasks, 3, PooledCostModel.sharding_types, rng) for _ in range(60)]
    kinds = {shards.sharding_type for load in loads for shards in load.shards}
    assert kinds == {"column_wise", "row_wise", "data_parallel"}
    for load in loads:
        inputs = load.inputs(PooledCostModel)
        assert len(inputs) == len(load.devices)
        assert np.isfinite(inputs).all()
        assert load.estimate(MODEL).total_ms > 0
    widths = {int(w) for load in loads for s in load.shards for w in s.tables.embedding_dim}
    assert len(widths) > 4


def test_after_few_measurements_its_plans_are_nearly_those_of_a_search_on_the_true_cost(tasks: TaskSuite) -> None:
    """And its estimates of them are, which those of an untrained network are not."""

    def costs_of(agent: Any) -> tuple[Any, Any]:
        """(4,) ms of its plans, and relative errors of its estimates of them."""
        plans = [agent.plan(task) for task in tasks]
        true, own = (
            np.array([model.estimate(p, t.tables, t.topology).total_ms for p, t in zip(plans, tasks, strict=True)])
            for model in (MODEL, agent.cost_model)
        )
        return true, np.abs(own / true - 1)

    made = learner(tasks, iterations=1, measurements=60, cost_updates=120, queries=1_000)
    _, untrained = costs_of(made.agent())
    made.iterate()
    (reference, _), (costs, errors) = (costs_of(agent) for agent in (PlanSearchAgent(max_queries=1_000), made.agent()))
    assert np.median(costs / reference) < 1.1
    assert np.median(errors) < 0.15 < 0.4 < np.median(untrained)


def test_every_weight_of_the_network_for_shards_gets_a_gradient(tasks: TaskSuite) -> None:
    made = learner(tasks, iterations=2, measurements=40, cost_updates=1)
    made.iterate()
    recorder = ShardRecorder()
    recorder.restore(under("data.", made.state()))
    data = recorder.dataset()
    samples, weights = Samples(data, PooledCostModel), trainable(under("cost.", made.weights()))
    relative_loss(weights, samples, np.random.default_rng(0), 64).backward()
    for name, tensor in weights.items():
        if not name.endswith(NORMALIZATION):
            assert tensor.grad is not None, name
            assert tensor.grad.abs().max() > 0, name


def test_a_network_of_column_shards_is_trained_on_those_alone(tasks: TaskSuite) -> None:
    rng = np.random.default_rng(0)
    loads = [random_shards(tasks, 3, NeuroShardCostModel.sharding_types, rng) for _ in range(30)]
    assert {shards.sharding_type for load in loads for shards in load.shards} == {"column_wise"}
    made = learner(tasks, network="neuroshard", iterations=2, measurements=3, cost_updates=3, queries=200)
    for made.iteration in range(2):
        made.iterate()
    check_plan(made.agent().plan(tasks[0]), tasks[0].tables, tasks[0].topology)
    network = made.agent().cost_model
    with pytest.raises(InvalidOptionError, match="'neuroshard' does not estimate row_wise shards, only table_wise and"):
        PlanSearchAgent(network, SHARDING_TYPES).plan(tasks[0])


def test_damaged_measurements_and_models_of_whole_tables_are_refused(tasks: TaskSuite) -> None:
    with pytest.raises(InvalidOptionError, match="does not support split tables"):
        make_learner("neuroshard", tasks, cost_model=CountedEstimates(make_cost_model("analytical")))
    made = learner(tasks, iterations=2, measurements=2, cost_updates=2)
    made.iterate()
    state = made.state()
    state["data.devices"] = state["data.devices"] + 100
    with pytest.raises(InvalidCheckpointError, match="devices must number the devices of each placement"):
        learner(tasks, iterations=2, measurements=2, cost_updates=2).load_state(state)
    del state["data.start"]
    with pytest.raises(InvalidCheckpointError, match="not usable"):
        learner(tasks, iterations=2, measurements=2, cost_updates=2).load_state(state)


COLUMNS = ("table_wise", "column_wise")


def options_of(task: Task, max_shards: int = 8) -> SplitOptions:
    return SplitOptions(task, MODEL, COLUMNS, max_shards)


def plain_greedy(task: Task, parts: Tables, limit: float) -> list[int] | None:
    """A device for each part: by descending cost alone, to the device with the shortest forward and backward."""
    whole = replace(task.topology, memory_cap_bytes=np.full(task.num_devices, 2**60))
    columns = parts.embedding_dim * parts.num_features
    held: list[list[int]] = [[] for _ in range(task.num_devices)]

    def estimate(own: list[int]) -> CostEstimate:
        return MODEL.estimate(np.zeros(len(own), np.int64), parts.select(own), whole)

    def compute_and_memory(own: list[int]) -> tuple[float, int]:
        return (float(estimate(own).phases_ms[0, [0, 3]].sum()) if own else 0.0), int(parts.memory_bytes[own].sum())

    for part in sorted(range(len(parts)), key=lambda each: -estimate([each]).total_ms):
        fitting = [
            own
            for own, cap in zip(held, task.topology.memory_cap_bytes, strict=True)
            if parts.memory_bytes[[*own, part]].sum() <= cap
            and columns[[*own, part]].sum() <= limit * columns.sum() / task.num_devices
        ]
        if not fitting:
            return None
        min(fitting, key=compute_and_memory).append(part)
    return [next(device for device, own in enumerate(held) if part in own) for part in range(len(parts))]


@pytest.mark.parametrize("seed", range(4))
def test_the_greedy_grid_places_as_a_plain_loop_does(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 7, 3, slack=3.0 if seed % 2 else None, dims=(8, 32, 60 if seed < 2 else 64))
    level, options = np.zeros(7, np.int64), options_of(task)
    sets = [_Parts(np.arange(7), level)]
    sets.append(sets[0].halved(int(task.tables.embedding_dim.argmax()), options.levels))
    limits = np.array([1.1, 1.5, 3.0])
    devices, costs = place_greedily(options, sets, limits)
    feasible = 0
    for number, parts in enumerate(sets):
        widths = options.levels.width[parts.table, parts.level]
        assert widths.sum() == task.tables.embedding_dim.sum()
        tables = task.tables.select(parts.table).with_dims(widths)
        for run, limit in enumerate(limits):
            plain = plain_greedy(task, tables, float(limit))
            assert (plain is None) == (costs[number, run] == np.inf)
            if plain is not None:
                feasible += 1
                assert devices[number, run, : len(tables)].tolist() == plain
    assert feasible


def test_splits_lower_the_cost_and_make_tables_fit(random_task: Any) -> None:
    task = random_task(np.random.default_rng(1), 5, 4, dims=(64, 128))
    options = options_of(task)
    unsplit = BeamSearch(max_splits=0).search(options)
    assert (unsplit.level == 0).all()
    found = BeamSearch().search(options)
    plan = check_plan(found.plan(), task.tables, task.topology)
    assert (found.level > 0).any()
    cost = MODEL.estimate(plan, task.tables, task.topology).total_ms
    assert cost < MODEL.estimate(unsplit.plan(), task.tables, task.topology).total_ms

    largest = int(task.tables.memory_bytes.max())
    caps = np.full(4, int(task.tables.memory_bytes.sum() / 4 * 1.2))
    assert largest > caps[0]
    tight = replace(task, topology=replace(task.topology, memory_cap_bytes=caps), splittable=True, known_placement=None)
    with pytest.raises(NoPlacementFoundError, match="Allow more"):
        BeamSearch(max_splits=0).search(options_of(tight))
    check_plan(BeamSearch().search(options_of(tight)).plan(), tight.tables, tight.topology)
