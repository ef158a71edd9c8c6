"""The attention policy: probabilities add up, padding and order change nothing, memory is kept, and it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from shard_gym.agents.attention.agent import AttentionAgent, load_attention
from shard_gym.agents.attention.features import described
from shard_gym.agents.attention.learner import AttentionLearner
from shard_gym.agents.attention.network import AttentionPolicy, new_policy
from shard_gym.agents.attention.rollout import Batch, Rollouts, log_probabilities, play
from shard_gym.agents.training.torch_arrays import module_arrays
from shard_gym.cost_models import make_cost_model
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError
from shard_gym.evaluation import evaluate
from shard_gym.placement import check_placement
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSuite

MakeTask = Callable[..., Task]


@pytest.fixture(scope="module")
def policy() -> AttentionPolicy:
    return new_policy(16, 2, np.random.default_rng(0))


def renumbered(placement: np.ndarray) -> list[int]:
    """The devices in the order in which they are used first: empty devices are equal to the policy."""
    seen: dict[int, int] = {}
    return [seen.setdefault(device, len(seen)) for device in placement.tolist()]


def gumbel(batch: Batch, count: int) -> np.ndarray:
    tasks, tables = batch.padding.shape
    shape = (tables, tasks, count, batch.caps.shape[1])
    return np.random.default_rng(0).gumbel(size=shape).astype(np.float32)


def test_the_probabilities_of_all_placements_add_up_to_one(policy: AttentionPolicy, random_task: MakeTask) -> None:
    batch = Batch.of([described(random_task(np.random.default_rng(1), 3, 2))])
    every = torch.tensor(list(product(range(2), repeat=3)))[None]
    legal = torch.ones((*every.shape, 2), dtype=torch.bool)
    logs, entropy = log_probabilities(policy, batch, Rollouts(every, legal, torch.ones(1, 8, dtype=torch.bool)))
    assert logs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert 0.0 < entropy.min().item() <= entropy.max().item() <= np.log(2) + 1e-6


def test_placements_are_drawn_with_the_probabilities_that_training_computes(
    policy: AttentionPolicy, random_task: MakeTask
) -> None:
    """The way step by step and the way of all steps at once are two programs; they must be one policy."""
    batch = Batch.of([described(random_task(np.random.default_rng(2), 3, 2))])
    rollouts = play(policy, batch, 20_000, gumbel(batch, 20_000))
    logs = log_probabilities(policy, batch, rollouts)[0][0].detach().exp().numpy()
    code = rollouts.actions[0].numpy() @ [4, 2, 1]
    for each in np.unique(code):
        share, expected = (code == each).mean(), logs[code == each]
        assert np.ptp(expected) < 1e-5
        assert share == pytest.approx(expected[0], abs=4 * float(np.sqrt(expected[0] / 20_000)))


def test_padding_changes_nothing(policy: AttentionPolicy, random_task: MakeTask) -> None:
    tasks = [random_task(np.random.default_rng(seed), *size) for seed, size in enumerate([(9, 4), (4, 2), (7, 3)])]
    together = Batch.of([described(task) for task in tasks])
    rollouts = play(policy, together, 1, None)
    for number, task in enumerate(tasks):
        placement = check_placement(rollouts.placements(together, number)[0], task.tables, task.topology)
        assert renumbered(placement) == renumbered(AttentionAgent("alone", policy).place(task))


def test_the_order_of_the_tables_changes_nothing(policy: AttentionPolicy, random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(5), 12, 3)
    order = np.random.default_rng(0).permutation(12)
    shuffled = replace(task, tables=task.tables.select(order), known_placement=None)
    agent = AttentionAgent("a", policy)
    assert renumbered(agent.place(shuffled)) == renumbered(agent.place(task)[order])


def test_no_device_gets_more_than_it_holds(policy: AttentionPolicy, random_task: MakeTask) -> None:
    """With four tables of half a device on two devices every placement that is found is two and two."""
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0, 0, 0, 0])
    cap = 2 * int(tables.memory_bytes[0])
    task = random_task(np.random.default_rng(3), 1, 2)
    full = Task("full", tables, replace(task.topology, memory_cap_bytes=np.full(2, cap)))
    assert np.bincount(AttentionAgent("a", policy).place(full)).tolist() == [2, 2]
    uneven = replace(task.topology, memory_cap_bytes=np.array([2 * cap, cap // 2 - 1]))
    assert AttentionAgent("a", policy).place(Task("one", tables, uneven)).tolist() == [0] * 4
    three = Task("three", tables.select([0, 0, 0]), replace(task.topology, memory_cap_bytes=np.full(2, cap * 3 // 4)))
    with pytest.raises(NoPlacementFoundError, match="has room for it"):
        AttentionAgent("a", policy).place(three)


def test_it_learns_to_balance() -> None:
    """After 60 steps its greedy placements of unseen tables cost less than those of the weights that it began with."""
    train, test = load_suite("dlrm-20x4", "train"), load_suite("dlrm-20x4")
    some = replace(test, tasks=test.tasks[:10])
    learner = AttentionLearner(
        train, make_cost_model("analytical"), 0, iterations=3, updates=20, tasks=4, rollouts=12, hidden=16, layers=1
    )
    before = evaluate(learner.agent(), some).mean_cost_ms
    for _ in range(3):
        learner.iterate()
        learner.iteration += 1
    after = evaluate(learner.agent(), some)
    assert after.mean_cost_ms < 0.9 * before
    assert all(result.true_cost_queries == 0 for result in after.tasks)
    assert learner.planned_queries == 3 * 20 * 4 * 12
    assert 0.9 * learner.planned_queries < learner.true_cost_queries <= learner.planned_queries  # some get stuck


def test_wrong_options_and_files_are_refused(policy: AttentionPolicy, random_task: MakeTask) -> None:
    suite = TaskSuite("one", (random_task(np.random.default_rng(0), 4, 2),))
    for wrong in ({"hidden": 12}, {"rollouts": 1}, {"entropy": -1.0}, {"layers": 0}, {"hidden": 2048}):
        with pytest.raises(InvalidOptionError):
            AttentionLearner(suite, make_cost_model("analytical"), 0, **wrong)
    about = {"agent": "attention", "hidden": 16, "layers": 2}
    assert isinstance(load_attention(module_arrays(policy), about, make_cost_model("analytical"), 0), AttentionAgent)
    for changed in ({"layers": 3}, {"hidden": 2**40}, {"hidden": 24}, {"hidden": 12}):
        with pytest.raises(InvalidCheckpointError):
            load_attention(module_arrays(policy), about | changed, make_cost_model("analytical"), 0)
