"""`illegal="redirect"`: an illegal action never ends an episode; the table goes elsewhere, and the reward is less."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.tasks import Task


def plainly(task: Task, order: list[int], actions: list[int]) -> tuple[list[int], list[bool]]:
    """The devices that receive the tables, and which of the actions were illegal: in plain integers, as documented."""
    needed, caps = task.tables.memory_bytes.tolist(), task.topology.memory_cap_bytes.tolist()
    used, devices, illegal = [0] * task.num_devices, [], []
    for table, action in zip(order, actions, strict=True):
        legal = [d for d in range(task.num_devices) if used[d] + needed[table] <= caps[d]]
        if not legal:
            break
        illegal.append(action not in legal)
        devices.append(min(legal, key=lambda d: used[d]) if illegal[-1] else action)
        used[devices[-1]] += needed[table]
    return devices, illegal


@given(seed=st.integers(0, 2**32 - 1))
def test_the_table_goes_to_the_legal_device_with_the_least_memory_in_use(
    random_task: Any, env_of: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    reward = list(REWARDS)[seed % 3]
    task = random_task(rng, int(rng.integers(2, 10)), int(rng.integers(1, 5)), slack=1.3)
    env, plain = (env_of(task, max_devices=6, reward=reward, illegal=each) for each in ("redirect", "terminate"))
    env.reset(seed=0)
    plain.reset(seed=0)
    actions = rng.integers(6, size=task.num_tables).tolist()
    devices, illegal = plainly(task, env.problem.order[0, : task.num_tables].tolist(), actions)
    unit = 1.0 if reward == "normalized" else float(env.problem.lower_bound_ms[0])
    for number, (action, device) in enumerate(zip(actions, devices, strict=False)):
        seen, gained, over, _, info = env.step(action)
        other, expected, ended, _, without = plain.step(device)
        assert gained == pytest.approx(expected - 0.05 * unit * illegal[number], rel=1e-12)
        assert over == ended == (number == len(devices) - 1)
        assert all(np.array_equal(seen[key], other[key]) for key in other)
        assert info["redirected"] == sum(illegal[: number + 1])
        assert info["failure"] == without["failure"] != 1
        assert info["cost_ms"] == without["cost_ms"]
        assert info["placement"].tolist() == without["placement"].tolist()
    assert env.reset()[1]["redirected"] == 0


def test_snapshots_clones_and_pickles_keep_the_count() -> None:
    env = EmbeddingPlacementEnv("dlrm-20x4", max_devices=6, illegal="redirect", reward="dense")
    _, info = env.reset(seed=3)
    for action in (5, 0, 4, 1):
        info = env.step(action)[4]
    assert info["redirected"] == 2
    task_index, snapshot, twins = info["task_index"], env.get_state(), [env.clone(), pickle.loads(pickle.dumps(env))]
    assert snapshot.redirected == 2
    expected = env.step(5)
    assert expected[4]["redirected"] == 3
    env.reset(seed=9)
    env.set_state(snapshot)
    for each in (env, *twins):
        _, reward, _, _, info = each.step(5)
        assert reward == expected[1]
        assert (info["redirected"], info["task_index"]) == (3, task_index)
        assert info["phase_costs_ms"].tolist() == expected[4]["phase_costs_ms"].tolist()
