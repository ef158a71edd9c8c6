"""The attention policy: probabilities add up, padding and order change nothing, memory is kept, and it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents.attention.agent import (
    MAX_TEMPERATURE,
    AttentionAgent,
    AttentionPolicy,
    Batch,
    load_attention,
    log_probabilities,
    play,
    shard_load,
)
from shard_gym.agents.attention.learner import AttentionLearner
from shard_gym.agents.training import make_learner
from shard_gym.agents.training.modules import new_module
from shard_gym.common.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    NoPlacementFoundError,
    TrainingDivergedError,
)
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.envs.core.episode_state import ILLEGAL_ACTION
from shard_gym.evaluation import evaluate
from shard_gym.plans import check_plan, plan_of_placement
from shard_gym.plans.placement import check_placement
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE
from shard_gym.tasks import Task, TaskSuite, load_suite
from shard_gym.tasks.forms import FINER, FORMS, NO_LIMIT, formed, forms_of, whole

MakeTask = Callable[..., Task]
MODEL = make_cost_model(additive=True, splits=True)
LEARNED = PooledCostModel(PooledCostModel.new_weights(np.random.default_rng(0)))


@pytest.fixture(scope="module")
def policy() -> AttentionPolicy:
    return new_module(lambda: AttentionPolicy(16, 2), np.random.default_rng(0))


def agent_of(policy: AttentionPolicy, **options: Any) -> AttentionAgent:
    return AttentionAgent("a", policy, LEARNED, **options)


def renumbered(placement: np.ndarray) -> list[int]:
    """The devices in the order in which they are used first: empty devices are equal to the policy."""
    seen: dict[int, int] = {}
    return [seen.setdefault(device, len(seen)) for device in placement.tolist()]


def test_the_probabilities_of_all_rollouts_add_up_to_one(policy: AttentionPolicy, random_task: MakeTask) -> None:
    """And each is drawn as often as training computes: step by step and all steps at once are one policy."""
    batch = Batch.of([random_task(np.random.default_rng(1), 3, 2)], 4_000, MODEL)
    rollouts = play(policy, batch, np.random.default_rng(0))
    assert rollouts.trajectories is not None
    logs, entropy = log_probabilities(policy, batch, rollouts.trajectories)
    probability, code = logs.detach().exp().numpy(), rollouts.trajectories.action @ [4, 2, 1]
    seen = {way: (float((code == way).mean()), probability[code == way]) for way in np.unique(code).tolist()}
    assert len(seen) == 8
    assert sum(expected[0] for _, expected in seen.values()) == pytest.approx(1.0, abs=1e-5)
    for share, expected in seen.values():
        assert np.ptp(expected) < 1e-5
        assert share == pytest.approx(expected[0], abs=5 * float(np.sqrt(expected[0] / len(code))))
    assert 0.0 < entropy.min().item() <= entropy.max().item() <= np.log(2) + 1e-6


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_costs_at_the_end_are_those_of_the_plans(random_task: MakeTask, seed: int) -> None:
    """A placement of the parts, and what is spread over all devices, cost what the plan costs that is made of them."""
    rng = np.random.default_rng(seed)
    tasks = [
        replace(random_task(rng, int(rng.integers(1, 9)), int(rng.integers(1, 5))), name=f"t{n}", known_placement=None)
        for n in range(2)
    ]
    forms = [form for task in tasks for form in (whole(task), *forms_of(task))]
    batch = Batch.of([replace(form.task, name=f"f{n}") for n, form in enumerate(forms)], 2, MODEL)
    policy = new_module(lambda: AttentionPolicy(16, 1), np.random.default_rng(0))
    rollouts = play(policy, batch, rng, MAX_TEMPERATURE if seed % 2 else 2.0)
    assert not (rollouts.state.status == ILLEGAL_ACTION).any()
    costs = rollouts.costs(np.stack([form.loads(MODEL) for form in forms]))[1]
    for episode in np.flatnonzero(rollouts.complete).tolist():
        form = forms[episode // 2]
        plan = check_plan(form.plan(rollouts.placement(episode)), form.origin.tables, form.origin.topology)
        estimate = MODEL.estimate(plan, form.origin.tables, form.origin.topology)
        assert costs[episode] == pytest.approx(estimate.total_ms, rel=1e-9)


def test_the_learned_cost_reads_the_shards_of_the_plan(random_task: MakeTask) -> None:
    """Its inputs of a rollout give the loads with which the agent estimates it."""
    task = random_task(np.random.default_rng(8), 7, 3)
    task = replace(task, tables=task.tables.with_dims(np.array([128, 64, 32, 16, 8, 4, 128])), known_placement=None)
    for form in forms_of(task):
        placement = np.arange(form.task.num_tables) % 3
        load = shard_load(form, placement)
        inputs, devices = load.inputs(PooledCostModel), load.devices
        loads = LEARNED._loads(inputs, load.host_megabytes(), task.topology)
        held = LEARNED.reduce(loads, devices, 3)
        parts = LEARNED.reduce(LEARNED.loads(form.task.tables, task.topology), placement, 3)
        np.testing.assert_allclose(held, LEARNED.add(parts, np.tile(form.loads(LEARNED), (3, 1))), rtol=1e-5)


def test_forms_halve_what_is_wide_and_spread_what_is_heavy(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(2), 4, 2)
    same = task.tables.select([0, 0, 0, 0])
    factors = same.pooling_factor * [1.0, 1.0, 1.0, 50.0]
    tables = replace(same.with_dims(np.array([128, 64, 12, 16])), pooling_factor=factors)
    task = Task("wide", tables, task.topology)
    found = {(form.widest, form.heavy): formed(task, form) for form in FORMS}
    widths = {key: form.task.tables.embedding_dim.tolist() for key, form in found.items() if form is not None}
    assert widths[NO_LIMIT, "table_wise"] == [128, 64, 12, 16]
    assert widths[64, "table_wise"] == [64, 64, 64, 12, 16]
    assert widths[32, "row_wise"] == [32] * 6 + [12]
    for kind in ("row_wise", "data_parallel"):
        form = found[64, kind]
        assert form is not None
        assert {key: each.tolist() for key, each in form.spread.items()} == {kind: [3]}
        assert form.task.topology.memory_cap_bytes.max() < task.topology.memory_cap_bytes.max()
    even = Task("even", tables.select([0, 0, 1, 1]), task.topology)
    assert [len(each.task.tables) for each in forms_of(even)] == [4, 6, 12]  # nothing is heavy, so the rest is equal


def test_forms_spread_the_sequences_that_exchange_most(random_task: MakeTask) -> None:
    """Not the pooled tables beside them, though all have as many lookups: of those blocks of rows send more."""
    task = random_task(np.random.default_rng(2), 4, 4)
    tables = task.tables.select([0, 0, 0, 0]).with_dims(np.array([128, 128, 4, 128]))
    tables = replace(tables, pooled=np.array([True, False, False, True]))
    spread: dict[str, set[int]] = {kind: set() for kind in (ROW_WISE, DATA_PARALLEL)}
    for form in forms_of(replace(task, tables=tables, known_placement=None)):
        for kind, chosen in form.spread.items():
            spread[kind] |= set(chosen.tolist())
    assert spread == {ROW_WISE: {1}, DATA_PARALLEL: {1}}


def test_a_table_that_halves_cannot_make_small_enough_is_spread(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(2), 3, 2)
    same = task.tables.select([0, 0, 0])
    tables = replace(same.with_dims(np.array([4, 16, 16])), num_embeddings=same.num_embeddings * [20, 1, 1])
    caps = np.full(2, int(tables.memory_bytes[0] * 0.7))
    tight = Task("tight", tables, replace(task.topology, memory_cap_bytes=caps), splittable=True)
    form = formed(tight, FORMS[0])
    assert form is not None
    assert form.spread["row_wise"].tolist() == [0]
    agent = agent_of(new_module(lambda: AttentionPolicy(16, 1), np.random.default_rng(0)), samples=9)
    assert check_plan(agent.plan(tight), tables, tight.topology).tables[0].sharding_type == "row_wise"


def test_neither_padding_nor_the_order_of_the_tables_changes_anything(
    policy: AttentionPolicy, random_task: MakeTask
) -> None:
    tasks = [
        replace(random_task(np.random.default_rng(seed), *size), name=f"t{seed}")
        for seed, size in enumerate([(9, 4), (4, 2), (7, 3)])
    ]
    rollouts, agent = play(policy, Batch.of(tasks, 1, MODEL), None), agent_of(policy, samples=1)
    for number, task in enumerate(tasks):
        placement = renumbered(agent.place(task))
        assert renumbered(check_placement(rollouts.placement(number), task.tables, task.topology)) == placement
        order = np.random.default_rng(0).permutation(task.num_tables)
        shuffled = replace(task, tables=task.tables.select(order), known_placement=None)
        assert renumbered(agent.place(shuffled)) == renumbered(agent.place(task)[order])


def test_no_device_gets_more_than_it_holds(policy: AttentionPolicy, random_task: MakeTask) -> None:
    """With four tables of half a device on two devices every placement that is found is two and two."""
    tables, task = (random_task(np.random.default_rng(3), 1, devices) for devices in (1, 2))
    four, cap = tables.tables.select([0, 0, 0, 0]), 2 * int(tables.tables.memory_bytes[0])
    full, half = (
        Task("full", each, replace(task.topology, memory_cap_bytes=np.full(2, room)))
        for each, room in ((four, cap), (four.select([0, 1, 2]), cap * 3 // 4))
    )
    for samples in (1, 8):
        assert np.bincount(agent_of(policy, samples=samples).place(full)).tolist() == [2, 2]
        with pytest.raises(NoPlacementFoundError, match="has room for it"):
            agent_of(policy, samples=samples).place(half)


@pytest.mark.parametrize("plans", [False, True])
def test_the_agent_keeps_the_rollout_that_its_cost_model_prefers(
    policy: AttentionPolicy, random_task: MakeTask, plans: bool
) -> None:
    """With the true cost in place of the learned one, more samples are never worse, and the first is the greedy one."""
    task = replace(random_task(np.random.default_rng(6), 12, 3), known_placement=None)

    def cost(agent: AttentionAgent) -> float:
        plan = agent.plan(task) if plans else plan_of_placement(agent.place(task), task.tables)
        return MODEL.estimate(plan, task.tables, task.topology).total_ms

    costs = [cost(AttentionAgent("a", policy, MODEL, samples=samples)) for samples in (1, 36, 360)]
    assert costs[0] >= costs[1] >= costs[2]
    assert costs[0] > costs[2]
    assert cost(AttentionAgent("a", policy, MODEL, samples=36, temperature=0.0)) == pytest.approx(costs[0])


def greedy_of(learner: AttentionLearner) -> AttentionAgent:
    agent = learner.agent()
    agent.samples = 1
    return agent


@pytest.mark.parametrize("name", ["dlrm-20x4", "shard-4"])
def test_it_learns(name: str, trained: Any) -> None:
    """After 20 steps its greedy answers for unseen tables cost less than those of the weights that it began with."""
    train, some = (
        replace(each, tasks=tuple(sorted(each, key=lambda task: task.num_tables)[:count]))
        for each, count in ((load_suite(name, "train"), 10), (load_suite(name), 3))
    )
    options: dict[str, Any] = {"tasks": 2, "rollouts": 8, "kept": 3, "hidden": 16, "layers": 1, "learning_rate": 3e-3}
    learner = AttentionLearner(train, MODEL, 0, iterations=2, updates=10, **options, records=4, cost_updates=5)
    before = evaluate(greedy_of(learner), some).mean_cost_ms
    trained(learner)
    after = evaluate(greedy_of(learner), some)
    assert after.mean_cost_ms < 0.9 * before
    assert all(result.true_cost_queries == 0 for result in after.tasks)
    assert learner.planned_queries == 2 * 10 * 2 * 8
    assert 0.7 * learner.planned_queries < learner.true_cost_queries <= learner.planned_queries  # some get stuck


def test_where_memory_is_short_parts_get_smaller(policy: AttentionPolicy, random_task: MakeTask) -> None:
    """Six tables of 45% of a device and one of 20% on three devices: whole, or in halves, they leave 10% thrice."""
    one = random_task(np.random.default_rng(3), 1, 3)
    same = one.tables.select([0] * 7).with_dims(np.full(7, 32))
    rows = np.array([45_000] * 6 + [20_000])
    tables = replace(same, num_embeddings=rows, distinct_rows=np.minimum(same.distinct_rows, rows))
    tables = replace(tables, workload=replace(tables.workload, optimizer="sgd"))
    caps = np.full(3, 100_000 * int(tables.row_bytes[0]))
    task = Task("short", tables, replace(one.topology, memory_cap_bytes=caps), splittable=True)
    agent = agent_of(policy, samples=900)
    for forms in (FORMS, FINER):
        assert agent._tried(task, forms_of(task, forms), 30) is None
    check_plan(agent.plan(task), tables, task.topology)


def test_a_run_is_identified_by_the_devices_of_all_its_suites() -> None:
    learner = AttentionLearner(load_suite("mixdim-4", "train"), MODEL, 0, also="mixdim-8", **FEW)
    assert learner.device_counts == {4, 8}


FEW: dict[str, Any] = {"updates": 1, "tasks": 2, "rollouts": 3, "hidden": 8, "layers": 1, "records": 2}


def test_tables_that_nearly_fill_a_device_are_learnt_from_as_they_are(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(3), 1, 2)
    tables = task.tables.select([0, 0])
    size = int(tables.memory_bytes[0])
    device = replace(task.topology.device, memory_bytes=size + 1)
    topology = replace(task.topology, device=device, memory_cap_bytes=np.full(2, size))
    learner = AttentionLearner(TaskSuite("tight", (Task("tight", tables, topology),)), MODEL, 0, **FEW)
    learner.iterate()
    assert learner.agent().place(Task("tight", tables, topology)).tolist() in ([0, 1], [1, 0])


def test_one_task_whose_tables_may_be_split_makes_it_learn_plans(random_task: MakeTask) -> None:
    whole_tables, other = (random_task(np.random.default_rng(n), 5, 2) for n in range(2))
    suite = TaskSuite("mixed", (whole_tables, replace(other, name="b", splittable=True, known_placement=None)))
    learner = AttentionLearner(suite, make_cost_model("analytical"), 0, **FEW)
    assert learner.cost_model.fingerprint == MODEL.fingerprint
    learner.iterate()


def test_tables_of_two_workloads_are_refused(random_task: MakeTask) -> None:
    one, other = (random_task(np.random.default_rng(n), 3, 2) for n in range(2))
    fp32 = replace(other.tables, workload=replace(other.tables.workload, weight_dtype="fp32"))
    suite = TaskSuite("two", (one, Task("b", fp32, other.topology)))
    for name in ("attention", "autoshard"):
        with pytest.raises(InvalidOptionError, match="Tables of one workload are wanted"):
            make_learner(name, suite)


def test_a_cost_model_that_cannot_cost_spread_tables_is_refused_before_training() -> None:
    class WholeOnly(AnalyticalShardingModel):
        def loads(self, shards: Any, topology: Any, sharding_type: str = "table_wise") -> Any:
            if sharding_type == "row_wise":
                raise InvalidOptionError("no rows")
            return super().loads(shards, topology, sharding_type)

    with pytest.raises(InvalidOptionError, match="also splits tables row_wise"):
        AttentionLearner(load_suite("shard-4", "train"), WholeOnly(), 0, **FEW)


def test_a_policy_that_diverged_says_so(random_task: MakeTask) -> None:
    broken = new_module(lambda: AttentionPolicy(16, 1), np.random.default_rng(0))
    with torch.no_grad():
        broken.query.bias.fill_(torch.inf)
    with pytest.raises(TrainingDivergedError, match="its training diverged"):
        agent_of(broken).place(random_task(np.random.default_rng(0), 8, 2))


def test_wrong_options_and_files_are_refused(policy: AttentionPolicy, random_task: MakeTask) -> None:
    for wrong in ({"samples": 0}, {"temperature": -1.0}, {"temperature": 1e9}):
        with pytest.raises(InvalidOptionError):
            agent_of(policy, **wrong)
    suite = TaskSuite("one", (random_task(np.random.default_rng(0), 4, 2),))
    learner = AttentionLearner(suite, MODEL, 0, hidden=16, layers=2)
    about, arrays = {"agent": "attention", **learner.about()}, learner.weights()
    for changed in ({"layers": 3}, {"hidden": 24}, {"hidden": 12}, {"layers": "2"}):
        with pytest.raises(InvalidCheckpointError):
            load_attention(arrays, about | changed, MODEL, 0)
