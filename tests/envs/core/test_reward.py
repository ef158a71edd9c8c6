"""Rewards: they sum to minus the cost or the penalty, and a custom one plugs in."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.reward import Transition
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.tasks import Task, TaskSuite

MODEL = make_cost_model("analytical")


def rewards_of(env: Any, actions: Any) -> tuple[list[float], dict[str, Any]]:
    env.reset(seed=0)
    rewards: list[float] = []
    for action in actions:
        _, reward, terminated, _, info = env.step(int(action))
        rewards.append(reward)
        if terminated:
            break
    return rewards, info


@given(seed=st.integers(0, 2**32 - 1))
def test_dense_and_terminal_rewards_have_the_same_sum(random_task: Any, env_of: Any, seed: int) -> None:
    """Of complete placements, and of those that an action outside the devices ends on the way."""
    rng = np.random.default_rng(seed)
    task = random_task(rng, 8, 3)
    actions = rng.integers(3, size=8)
    if seed % 2:
        actions[rng.integers(8)] = 3
    dense, info = rewards_of(env_of(task, reward="dense", max_devices=4), actions)
    terminal, _ = rewards_of(env_of(task, reward="terminal", max_devices=4), actions)
    assert info["failure"] == seed % 2
    assert sum(dense) == pytest.approx(terminal[-1], rel=1e-12)
    assert not any(terminal[:-1])
    assert all(reward < 0 for reward in (terminal[-1], dense[0]))
    assert all(reward <= 1e-12 for reward in dense)  # a table that joins never makes the others faster


@given(seed=st.integers(0, 2**32 - 1))
def test_normalized_rewards_are_the_cost_in_lower_bounds(random_task: Any, env_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 9)), int(rng.integers(1, 5)), devices_per_host=int(rng.integers(1, 4)))
    env = env_of(task, reward="normalized", max_devices=5)
    rewards, info = rewards_of(env, rng.integers(task.num_devices, size=task.num_tables))
    bound = MODEL.bounds(MODEL.loads(task.tables, task.topology), task.topology)[0]
    assert rewards[-1] == pytest.approx(-info["cost_ms"] / bound)
    assert rewards[-1] <= -1 + 1e-12
    assert not any(rewards[:-1])
    failed, _ = rewards_of(env, [4])
    assert failed[-1] < rewards[-1]


@given(seed=st.integers(0, 2**32 - 1))
def test_balance_is_the_least_compute_time_over_the_largest(random_task: Any, env_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(1, 5))
    task = random_task(rng, int(rng.integers(1, 9)), devices)
    env = env_of(task, reward="balance", max_devices=5)  # devices that are not there do not count
    rewards, info = rewards_of(env, rng.integers(devices, size=task.num_tables))
    phases = MODEL.estimate(info["placement"], task.tables, task.topology).phases_ms
    compute = phases[:, 0] + phases[:, 3]
    assert rewards[-1] == pytest.approx(compute.min() / compute.max())
    assert not any(rewards[:-1])
    assert rewards_of(env, [4])[0] == [-1.0]  # no such device


def test_balance_charges_the_memory_that_was_missing(random_task: Any, env_of: Any) -> None:
    """A third table where two and a half have room lacks a fifth of the memory; where none has room, the least."""
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0, 0, 0])
    topology = random_task(np.random.default_rng(3), 1, 2).topology
    memory = int(tables.memory_bytes[0])
    roomy = Task("roomy", tables, replace(topology, memory_cap_bytes=np.full(2, memory * 5 // 2)))
    assert rewards_of(env_of(roomy, reward="balance"), [0, 0, 0])[0] == pytest.approx([0.0, 0.0, -0.2], abs=1e-6)
    uneven = Task("uneven", tables, replace(topology, memory_cap_bytes=np.array([memory * 19 // 10, memory * 5 // 4])))
    rewards, info = rewards_of(env_of(uneven, reward="balance"), [0, 1])
    assert info["failure"] == 2
    assert rewards == pytest.approx([0.0, -0.1 / 1.9], abs=1e-6)


def test_a_custom_reward_sees_the_whole_transition_and_may_keep_it(random_task: Any, env_of: Any) -> None:
    """The state changes in place; the numbers of a transition do not."""
    seen: list[Transition] = []
    kept: list[Transition] = []

    class Bonus:
        def __call__(self, transition: Transition) -> np.ndarray:
            seen.append(transition)
            kept.append(copy.deepcopy(transition))
            return np.where(transition.over, np.where(transition.failed, -1.0, 1.0), 0.25)

    env = env_of(random_task(np.random.default_rng(0), 3, 2), reward=Bonus(), max_devices=3)
    assert rewards_of(env, [0, 1, 0])[0] == [0.25, 0.25, 1.0]
    assert [bool(each.over[0]) for each in seen] == [False, False, True]
    assert [each.cost_before_ms[0] for each in seen[1:]] == [each.cost_after_ms[0] for each in seen[:-1]]
    assert seen[0].cost_before_ms.tolist() == [0.0]
    assert rewards_of(env, [0, 2])[0] == [0.25, -1.0]
    assert seen[-1].final_cost_ms.tolist() == seen[-1].penalty_ms.tolist()
    for now, then in zip(seen, kept, strict=True):
        for name in vars(then).keys() - {"actions", "problem", "state"}:  # these are the environment's own
            assert np.array_equal(getattr(now, name), getattr(then, name)), name


@pytest.mark.parametrize(
    "returned",
    [None, float("nan"), "much", [1.0, 2.0]],
)
def test_a_reward_that_returns_no_numbers_is_named(random_task: Any, env_of: Any, returned: Any) -> None:
    def broken(transition: Transition) -> Any:
        return returned

    env = env_of(random_task(np.random.default_rng(0), 4, 2), reward=broken)
    env.reset(seed=0)
    with pytest.raises(InvalidOptionError, match="The reward 'broken' must return 1 finite"):
        env.step(int(env.action_masks().argmax()))


def test_normalized_rewards_need_a_bound(random_task: Any, env_of: Any) -> None:
    env = env_of(random_task(np.random.default_rng(0), 2, 2), reward="normalized")
    env.reset(seed=0)
    env.unwrapped.problem.lower_bound_ms[:] = 0.0
    env.step(0)
    with pytest.raises(InvalidOptionError, match="Use the reward 'terminal'"):
        env.step(0)


@pytest.mark.parametrize("value", [0.5, np.full(4, 0.5, np.float16), np.ones(4, np.int64)])
def test_a_reward_of_any_kind_gives_float64_and_nothing_where_an_episode_was_over(random_task: Any, value: Any) -> None:
    tasks = TaskSuite("one", (random_task(np.random.default_rng(0), 2, 2),))
    env = EmbeddingPlacementVectorEnv(4, tasks, reward=lambda transition: value)
    env.reset(seed=0)
    rewards = [env.step(np.zeros(4, np.int64))[1] for _ in range(3)]
    assert all(each.dtype == np.float64 for each in rewards)
    assert np.array_equal(rewards, [np.full(4, value), np.full(4, value), np.zeros(4)])
