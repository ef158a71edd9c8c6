"""The vector environment of replanning returns, bit for bit, what scalar environments return; and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shard_gym.drift.suite import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.vector import EmbeddingReplanningVectorEnv
from shard_gym.errors import InvalidActionError, InvalidOptionError

Tasks = dict[str, DriftTask]
ID = "shard_gym:EmbeddingReplanning-v0"
NUM_ENVS = 4


@pytest.fixture(scope="module")
def suite(kinds_of_tasks: Tasks) -> DriftSuite:
    return DriftSuite("mixed", tuple(kinds_of_tasks.values()))


def draw(masks: np.ndarray, rng: np.random.Generator, any_action: float) -> np.ndarray:
    """(N,) actions: keep in most hours, else a legal one, and now and then any."""
    legal = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
    anything = rng.integers(masks.shape[1], size=len(masks))
    chance = rng.random(len(masks))
    return np.asarray(np.where(chance < any_action, anything, np.where(chance < 0.15, legal, 0)))


@pytest.mark.parametrize(
    ("mode", "more", "steps"),
    [
        (AutoresetMode.NEXT_STEP, {"reward": "time", "illegal": "terminate", "info_text": True}, 120),
        (AutoresetMode.SAME_STEP, {"reward": "excess", "illegal": "terminate"}, 120),
        (AutoresetMode.NEXT_STEP, {"reward": "excess", "illegal": "redirect"}, DECISIONS + 30),
        (AutoresetMode.SAME_STEP, {"reward": "time", "illegal": "redirect", "info_text": True}, DECISIONS + 30),
    ],
    ids=lambda value: value.name if isinstance(value, AutoresetMode) else None,
)
def test_every_step_is_that_of_scalar_environments(
    suite: DriftSuite, same: Any, mode: AutoresetMode, more: dict[str, Any], steps: int
) -> None:
    arguments = {"suite": suite, "max_devices": 6, **more}
    reference = SyncVectorEnv(
        [lambda: gymnasium.make(ID, disable_env_checker=True, **arguments)] * NUM_ENVS, autoreset_mode=mode
    )
    vector = gymnasium.make_vec(ID, num_envs=NUM_ENVS, autoreset_mode=mode, **arguments)
    envs, rng = (reference, vector), np.random.default_rng(0)
    expected, found = (env.reset(seed=1) for env in envs)
    assert same(expected, found)
    masks, ends, tasks, sums = found[0]["action_mask"], 0, set[int](), np.zeros(4)
    for _ in range(steps):
        actions = draw(masks, rng, 0.02 if more["illegal"] == "redirect" else 0.08)
        expected, found = (env.step(actions) for env in envs)
        for part, one, other in zip(("obs", "reward", "over", "cut", "info"), expected, found, strict=True):
            assert same(one, other), part
        obs, _, over, _, info = found
        masks, ends = obs["action_mask"], ends + int(over.sum())
        tasks |= set(info["task_index"].tolist())
        last = info.get("final_info", info)
        sums += [last["plans"].sum(), last["repairs"].sum(), last["failure"].sum(), last["redirected"].sum()]
    assert ends >= 3
    assert len(tasks) >= 3
    redirects = more["illegal"] == "redirect"
    assert sums[0] > 0
    assert sums[1] > 0
    assert (sums[2] > 0, sums[3] > 0) == (not redirects, redirects)


def test_some_can_be_reset_with_tasks_of_ones_own(suite: DriftSuite, same: Any) -> None:
    envs = EmbeddingReplanningVectorEnv(3, suite, autoreset_mode="DISABLED")
    first, infos = envs.reset(options={"tasks": [0, "growing", suite[2]]})
    assert infos["task_index"].tolist() == [0, 1, 2]
    for _ in range(5):
        obs, *_ = envs.step(np.array([0, 1, 2]))
    mask = np.array([False, True, False])
    again, infos = envs.reset(options={"reset_mask": mask, "task": "growing"})
    for key, array in again.items():
        assert np.array_equal(array[1], first[key][1])
        assert np.array_equal(array[[0, 2]], obs[key][[0, 2]])
    assert infos["_task_index"].tolist() == mask.tolist()
    alone, _ = EmbeddingReplanningVectorEnv(1, suite).reset(options={"task": "growing"})
    assert same({key: array[0] for key, array in alone.items()}, {key: array[1] for key, array in again.items()})


def test_no_two_results_share_memory(suite: DriftSuite, arrays_in: Callable[[Any], list[np.ndarray]]) -> None:
    envs = EmbeddingReplanningVectorEnv(2, suite)
    results = [envs.reset(seed=0), *(envs.step(np.array([0, 1])) for _ in range(3))]
    flat = [array for result in results for array in arrays_in(result)]
    inside = [array for array in vars(envs.episodes).values() if isinstance(array, np.ndarray)]
    assert len(inside) > 10
    for number, one in enumerate(flat):
        assert not any(np.shares_memory(one, other) for other in [*flat[number + 1 :], *inside])


def test_wrong_actions_and_arguments_are_refused(suite: DriftSuite) -> None:
    envs = EmbeddingReplanningVectorEnv(2, suite)
    with pytest.raises(ResetNeeded):
        envs.step(np.zeros(2, np.int64))
    envs.reset(seed=0)
    with pytest.raises(InvalidActionError, match="from 1 to 8 to make one of a kind, not 9 as for environment 1"):
        envs.step(np.array([0, 9]))
    for wrong in ({"num_envs": 0}, {"max_episode_steps": 3}, {"autoreset_mode": "never"}, {"reward": "speed"}):
        with pytest.raises(InvalidOptionError):
            EmbeddingReplanningVectorEnv(**{"num_envs": 2, "suite": suite, **wrong})
