"""The attention policy: probabilities add up, padding and order change nothing, memory is kept, and it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.agents.attention.agent import AttentionAgent, AttentionPlanAgent, load_attention
from shard_gym.agents.attention.learner import AttentionLearner
from shard_gym.agents.attention.network import AttentionPolicy, new_policy
from shard_gym.agents.attention.rollout import Batch, log_probabilities, play
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.cost_models.neural.pooled_sharding import PooledShardingModel
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError
from shard_gym.evaluation import evaluate
from shard_gym.placement import check_placement
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSuite

MakeTask = Callable[..., Task]
MODEL = make_sharding_cost_model("analytical")
LEARNED = PooledShardingModel(PooledShardingModel.new_weights(np.random.default_rng(0)))


@pytest.fixture(scope="module", params=[False, True], ids=["placements", "plans"])
def policy(request: pytest.FixtureRequest) -> AttentionPolicy:
    return new_policy(16, 2, request.param, np.random.default_rng(0))


def agent_of(policy: AttentionPolicy, **options: Any) -> AttentionAgent:
    kind = AttentionPlanAgent if policy.splits else AttentionAgent
    return kind("a", policy, LEARNED, **options)


def renumbered(placement: np.ndarray) -> list[int]:
    """The devices in the order in which they are used first: empty devices are equal to the policy."""
    seen: dict[int, int] = {}
    return [seen.setdefault(device, len(seen)) for device in placement.tolist()]


def small(random_task: MakeTask) -> Task:
    """Two tables of 8 columns on two devices: at most 3 + 3 parts each, so all plans are few."""
    task = random_task(np.random.default_rng(1), 2, 2)
    return replace(task, tables=task.tables.with_dims(np.full(2, 8)), known_placement=None)


def test_the_probabilities_of_all_rollouts_add_up_to_one(policy: AttentionPolicy, random_task: MakeTask) -> None:
    """And each is drawn as often as training computes: step by step and all steps at once are one policy."""
    batch = Batch.of([small(random_task)], 4_000, MODEL, plans=policy.splits)
    rollouts = play(policy, batch, np.random.default_rng(0))
    logs, entropy = log_probabilities(policy, batch, rollouts.trajectories)
    ways, probability = rollouts.trajectories, logs.detach().exp().numpy()
    code = [tuple(row) for row in np.where(ways.taken, ways.action, -1).tolist()]
    seen = {way: (code.count(way) / len(code), probability[code.index(way)]) for way in set(code)}
    assert len(seen) > (20 if policy.splits else 3)
    assert sum(expected for _, expected in seen.values()) == pytest.approx(1.0, abs=0.02 if policy.splits else 1e-5)
    for share, expected in seen.values():
        assert share == pytest.approx(expected, abs=5 * float(np.sqrt(expected / len(code))) + 1e-3)
    for way in set(code):
        same = probability[[each == way for each in code]]
        assert np.ptp(same) < 1e-5
    assert 0.0 < entropy.min().item() <= entropy.max().item() <= np.log(5)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_costs_at_the_end_are_those_of_the_plans(random_task: MakeTask, seed: int) -> None:
    """The devices of a rollout add up what the cost model says of the plan that it records, at every size."""
    rng = np.random.default_rng(seed)
    tasks = [
        replace(random_task(rng, int(rng.integers(1, 9)), int(rng.integers(1, 5))), name=f"t{n}", known_placement=None)
        for n in range(2)
    ]
    policy = new_policy(16, 1, bool(seed % 2), np.random.default_rng(0))
    batch = Batch.of(tasks, 3, MODEL, plans=policy.splits)
    rollouts = play(policy, batch, rng, 2.0)
    costs = rollouts.costs()[1]
    for episode in np.flatnonzero(rollouts.complete).tolist():
        task = tasks[episode // 3]
        if policy.splits:
            cost = MODEL.estimate_plan(rollouts.plan(episode), task.tables, task.topology).total_ms
        else:
            cost = MODEL.estimate(rollouts.placement(episode), task.tables, task.topology).total_ms
        assert costs[episode] == pytest.approx(cost, rel=1e-9)


def test_what_a_device_holds_is_what_it_was_given(random_task: MakeTask) -> None:
    """All tables are whole at the end, and their shares of the lookups add up to those of the task."""
    task = random_task(np.random.default_rng(8), 7, 3)
    batch = Batch.of([task], 40, MODEL, plans=True)
    rollouts = play(new_policy(16, 1, True, np.random.default_rng(0)), batch, np.random.default_rng(1))
    ways = rollouts.trajectories
    for episode in np.flatnonzero(rollouts.complete).tolist():
        given = np.zeros(7)
        np.add.at(given, ways.table[episode], ways.given[episode].sum(axis=-1))
        np.testing.assert_allclose(given, 1.0, rtol=1e-6)
        assert (ways.variant[episode][ways.taken[episode]] < 0).sum() == (ways.action[episode] == 3).sum()


def test_padding_changes_nothing(policy: AttentionPolicy, random_task: MakeTask) -> None:
    tasks = [
        replace(random_task(np.random.default_rng(seed), *size), name=f"t{seed}")
        for seed, size in enumerate([(9, 4), (4, 2), (7, 3)])
    ]
    rollouts = play(policy, Batch.of(tasks, 1, MODEL, plans=False), None)
    for number, task in enumerate(tasks):
        placement = check_placement(rollouts.placement(number), task.tables, task.topology)
        assert renumbered(placement) == renumbered(agent_of(policy, samples=1).place(task))


def test_the_order_of_the_tables_changes_nothing(policy: AttentionPolicy, random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(5), 12, 3)
    order = np.random.default_rng(0).permutation(12)
    shuffled = replace(task, tables=task.tables.select(order), known_placement=None)
    agent = agent_of(policy, samples=1)
    assert renumbered(agent.place(shuffled)) == renumbered(agent.place(task)[order])


def test_no_device_gets_more_than_it_holds(policy: AttentionPolicy, random_task: MakeTask) -> None:
    """With four tables of half a device on two devices every placement that is found is two and two."""
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0, 0, 0, 0])
    cap = 2 * int(tables.memory_bytes[0])
    task = random_task(np.random.default_rng(3), 1, 2)
    full = Task("full", tables, replace(task.topology, memory_cap_bytes=np.full(2, cap)))
    for samples in (1, 8):
        agent = agent_of(policy, samples=samples)
        assert np.bincount(agent.place(full)).tolist() == [2, 2]
        uneven = replace(task.topology, memory_cap_bytes=np.array([2 * cap, cap // 2 - 1]))
        assert agent.place(Task("one", tables, uneven)).tolist() == [0] * 4
        half = replace(task.topology, memory_cap_bytes=np.full(2, cap * 3 // 4))
        with pytest.raises(NoPlacementFoundError, match="has room for it"):
            agent.place(Task("three", tables.select([0, 0, 0]), half))


def test_the_agent_keeps_the_rollout_that_its_cost_model_prefers(
    policy: AttentionPolicy, random_task: MakeTask
) -> None:
    """With the true cost in place of the learned one, more samples are never worse, and the first is the greedy one."""
    task = replace(random_task(np.random.default_rng(6), 12, 3), known_placement=None)
    kind = AttentionPlanAgent if policy.splits else AttentionAgent
    costs = []
    for samples in (1, 4, 64):
        agent = kind("a", policy, MODEL, samples=samples)
        costs.append(MODEL.estimate_plan(agent.plan(task), task.tables, task.topology).total_ms)
        assert agent.plan(task) == agent.plan(task)
    assert costs[0] >= costs[1]
    assert costs[0] > costs[2]
    greedy = kind("a", policy, MODEL, samples=4, temperature=0.0)
    assert MODEL.estimate_plan(greedy.plan(task), task.tables, task.topology).total_ms == pytest.approx(costs[0])


def greedy_of(learner: AttentionLearner) -> AttentionAgent:
    agent = learner.agent()
    agent.samples = 1
    return agent


@pytest.mark.parametrize("name", ["dlrm-20x4", "shard-4"])
def test_it_learns(name: str) -> None:
    """After 60 steps its greedy answers for unseen tables cost less than those of the weights that it began with."""
    train, test = load_suite(name, "train"), load_suite(name)
    some = replace(test, tasks=test.tasks[:10])
    options: dict[str, Any] = {"tasks": 4, "rollouts": 12, "kept": 3, "hidden": 16, "layers": 1, "learning_rate": 3e-3}
    learner = AttentionLearner(train, MODEL, 0, iterations=3, updates=20, **options, records=4, cost_updates=5)
    before = evaluate(greedy_of(learner), some).mean_cost_ms
    for _ in range(3):
        learner.iterate()
        learner.iteration += 1
    after = evaluate(greedy_of(learner), some)
    assert after.mean_cost_ms < 0.9 * before
    assert all(result.true_cost_queries == 0 for result in after.tasks)
    assert learner.planned_queries == 3 * 20 * 4 * 12
    assert 0.8 * learner.planned_queries < learner.true_cost_queries <= learner.planned_queries  # some get stuck


def test_wrong_options_and_files_are_refused(policy: AttentionPolicy, random_task: MakeTask) -> None:
    suite = TaskSuite("one", (random_task(np.random.default_rng(0), 4, 2),))
    for wrong in ({"hidden": 12}, {"rollouts": 1}, {"entropy": -1.0}, {"layers": 0}, {"hidden": 2048}, {"kept": 0}):
        with pytest.raises(InvalidOptionError):
            AttentionLearner(suite, MODEL, 0, **wrong)
    for wrong in ({"samples": 0}, {"temperature": -1.0}):
        with pytest.raises(InvalidOptionError):
            agent_of(policy, **wrong)
    learner = AttentionLearner(suite, MODEL, 0, hidden=16, layers=2)
    about, arrays = {"agent": "attention", **learner.about()}, learner.weights()
    assert isinstance(load_attention(arrays, about, MODEL, 0), AttentionAgent)
    for changed in ({"layers": 3}, {"hidden": 2**40}, {"hidden": 24}, {"hidden": 12}, {"plans": True}, {"plans": 1}):
        with pytest.raises(InvalidCheckpointError):
            load_attention(arrays, about | changed, MODEL, 0)
    with pytest.raises(InvalidCheckpointError):
        load_attention({name: array for name, array in arrays.items() if "cost." not in name}, about, MODEL, 0)
