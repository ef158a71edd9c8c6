"""AutoShard: V-trace, the policy step by step and at once, what is measured, and that it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.agents.autoshard.agent import AutoShardAgent, AutoShardNetwork, play, scored
from shard_gym.agents.autoshard.learner import CAPACITY, AutoShardLearner, MeasuredDevices, vtrace
from shard_gym.agents.training.modules import new_module
from shard_gym.common.errors import InvalidCheckpointError, NoPlacementFoundError
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.tasks import Task, TaskSuite, load_suite

MakeTask = Callable[..., Task]
MODEL = make_cost_model("analytical")


@pytest.fixture(scope="module", params=[True, False], ids=["common scale", "raw"])
def network(request: pytest.FixtureRequest) -> AutoShardNetwork:
    return new_module(lambda: AutoShardNetwork(request.param), np.random.default_rng(0))


def test_vtrace_of_a_written_out_example() -> None:
    """Three steps, ratios 2, 0.5 and 1, a reward of 1 at the end, values 0.5, 0.25 and 0; from the last step back:

    v_2 = 0 + 1 (1 + 0 - 0) = 1; v_1 = 0.25 + 0.5 (0 + 0 - 0.25) + 0.5 (1 - 0) = 0.625;
    v_0 = 0.5 + 1 (0 + 0.25 - 0.5) + 1 (0.625 - 0.25) = 0.625.
    """
    ratios, rewards, values = np.array([[2.0, 0.5, 1.0], [0.0, 0.0, 1.0], [0.5, 0.25, 0.0]])[:, None]
    targets, advantages = vtrace(ratios, rewards, values, np.ones((1, 3)))
    assert targets[0].tolist() == [0.625, 0.625, 1.0]
    assert advantages[0].tolist() == [0.625 - 0.5, 0.5 * (1.0 - 0.25), 1.0]


@given(seed=st.integers(0, 2**32 - 1))
def test_vtrace_of_the_policy_that_played_is_the_return(seed: int) -> None:
    """And steps beyond the end of an episode change nothing."""
    rng = np.random.default_rng(seed)
    rewards, values, length = rng.normal(size=(2, 7)), rng.normal(size=(2, 7)), rng.integers(1, 8, size=2)
    taken = (np.arange(7) < length[:, None]).astype(float)
    targets, advantages = vtrace(np.ones((2, 7)), rewards * taken, values, taken)
    for episode, steps in enumerate(length):
        to_go = np.cumsum(rewards[episode, :steps][::-1])[::-1]
        np.testing.assert_allclose(targets[episode, :steps], to_go, atol=1e-12)
        np.testing.assert_allclose(advantages[episode, :steps], to_go - values[episode, :steps], atol=1e-12)
        assert not targets[episode, steps:].any()
        assert not advantages[episode, steps:].any()


def test_the_way_of_all_steps_at_once_is_the_way_step_by_step(network: AutoShardNetwork, random_task: MakeTask) -> None:
    tasks = [replace(random_task(np.random.default_rng(n), n + 2, 2 + n % 2), name=f"t{n}") for n in range(4)]
    ways = play(network, tasks, np.random.default_rng(0)).trajectories
    logs = scored(network, ways).logits.log_softmax(dim=-1).gather(-1, ways.actions[..., None])[..., 0]
    np.testing.assert_allclose(logs[ways.taken].detach(), ways.log_probability[ways.taken], atol=1e-5)
    assert ways.taken.sum(dim=1).tolist() == [task.num_tables for task in tasks]


def test_tables_come_by_their_predicted_cost(network: AutoShardNetwork, random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(0), 9, 3)
    inputs = play(network, [task], None).trajectories.inputs[0]
    costs = network.costs(network.latents(inputs)).detach().numpy()
    assert (np.diff(costs) <= 1e-6).all()


def test_the_order_of_the_tables_changes_nothing(network: AutoShardNetwork, random_task: MakeTask) -> None:
    task, order = random_task(np.random.default_rng(5), 12, 3), np.random.default_rng(0).permutation(12)
    shuffled = replace(task, tables=task.tables.select(order), known_placement=None)
    agent = AutoShardAgent("a", network)
    assert agent.place(shuffled).tolist() == agent.place(task)[order].tolist()


def test_masks_keep_memory_and_without_them_episodes_fail(network: AutoShardNetwork, random_task: MakeTask) -> None:
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0, 0, 0, 0])
    task = random_task(np.random.default_rng(3), 1, 2)
    network = copy.deepcopy(network)
    network.normalize(tables)
    full = Task("full", tables, replace(task.topology, memory_cap_bytes=np.full(2, 2 * tables.memory_bytes[0])))
    assert np.bincount(AutoShardAgent("a", network).place(full)).tolist() == [2, 2]
    drawn = [play(network, [full], np.random.default_rng(n), masks=False, reward="balance") for n in range(20)]
    assert {bool(each.complete[0]) for each in drawn} == {True, False}
    charged = [each.trajectories.rewards.sum() for each in drawn if not each.complete[0]]
    assert np.allclose(charged, -0.5)  # a third table where two have room
    three = Task(
        "three",
        tables.select([0, 0, 0]),
        replace(full.topology, memory_cap_bytes=full.topology.memory_cap_bytes * 3 // 4),
    )
    with pytest.raises(NoPlacementFoundError, match="has room for it"):
        AutoShardAgent("a", network).place(three)


def test_the_cost_network_gets_what_was_measured(random_task: MakeTask) -> None:
    """Forward and backward of each device that has tables, and the number of these tables."""
    task = random_task(np.random.default_rng(0), 6, 3)
    learner = AutoShardLearner(TaskSuite("one", (task,)), MODEL, 0, iterations=2, episodes=4, cost_updates=1)
    learner.iterate()
    assert learner.true_cost_queries == 4
    arrays = learner.state()
    sets = np.split(arrays["devices.tables"], np.cumsum(arrays["devices.counts"])[:-1])
    for tables, cost in zip(sets, arrays["devices.costs_ms"], strict=True):
        placement = np.ones(6, np.int64)
        placement[tables] = 0
        phases = MODEL.estimate(placement, task.tables, task.topology).phases_ms[0]
        assert cost == pytest.approx(phases[0] + phases[3])


def test_a_placement_that_cannot_be_measured_is_no_good_balance(
    random_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is charged the penalty on one device, which is balance 0, and the cost network does not learn from it."""
    suite = TaskSuite("one", (random_task(np.random.default_rng(0), 6, 3),))
    learner = AutoShardLearner(suite, MODEL, 0, preset="paper", masks=True, episodes=3, cost_updates=0)
    monkeypatch.setattr(learner, "true_cost", lambda *_: None)
    assert learner.iterate().numbers["mean_return"] == 0.0
    assert not len(learner.state()["devices.counts"])


def test_only_the_last_devices_are_remembered() -> None:
    devices = MeasuredDevices()
    for number in range(CAPACITY + 7):
        devices.add(np.array([number % 5]), float(number))
    assert len(devices) == CAPACITY
    again = MeasuredDevices.from_arrays(devices.to_arrays(), 5)
    drawn, same = (each.batch(100, np.random.default_rng(0)) for each in (devices, again))
    assert all(np.array_equal(one, other) for one, other in zip(drawn, same, strict=True))
    assert drawn[2].min() >= 7
    for wrong in (
        {"counts": np.zeros(CAPACITY, np.int64)},
        {"tables": np.full(CAPACITY, 5)},
        {"costs_ms": np.zeros(3)},
    ):
        with pytest.raises(InvalidCheckpointError):
            MeasuredDevices.from_arrays(devices.to_arrays() | wrong, 5)


def test_it_learns_to_balance(trained: Any) -> None:
    """After 6 steps its placements of unseen tables cost less than those of the weights that it began with."""
    train, test = load_suite("dlrm-20x4", "train"), load_suite("dlrm-20x4")
    some = replace(test, tasks=test.tasks[:3])
    learner = AutoShardLearner(train, MODEL, 0, iterations=6)
    before = evaluate(learner.agent(), some).mean_cost_ms
    trained(learner)
    after = evaluate(learner.agent(), some)
    assert after.mean_cost_ms < 0.9 * before
    assert all(result.true_cost_queries == 0 for result in after.tasks)
