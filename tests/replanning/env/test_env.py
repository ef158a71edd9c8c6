"""`EmbeddingReplanning-v0`: its arguments, spaces, options of a reset, and where tasks come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError, InvalidTaskError
from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.tasks import load_suite

MakeEnv = Callable[..., EmbeddingReplanningEnv]
Tasks = dict[str, DriftTask]


def test_named_suites_have_the_sizes_of_their_largest_task() -> None:
    for name, actions in (("drift-strong-600", 5), ("growth-600", 9)):
        suite = load_suite(name, "train")
        env = gymnasium.make("shard_gym:EmbeddingReplanning-v0", suite=name)
        assert env.action_space == gymnasium.spaces.Discrete(actions)
        assert env.observation_space["device_mask"].shape == (suite.max_devices,)
        assert env.unwrapped._episodes.infos()["placement"].shape == (1, suite.max_parts)


def test_a_task_is_drawn_named_or_given(kinds_of_tasks: Tasks, env_for: MakeEnv) -> None:
    env = env_for(*kinds_of_tasks.values(), info_text=True)
    drawn = {env.reset(seed=seed)[1]["task_index"] for seed in range(30)}
    assert drawn == set(range(5))
    assert env.reset(seed=3)[1]["task"] == env.reset(seed=3)[1]["task"]
    for key in (1, "growing", kinds_of_tasks["growing"]):
        _, info = env.reset(options={"task": key})
        assert (info["task"], info["task_index"]) == ("growing", 1)
        assert env.task is kinds_of_tasks["growing"]
    stranger = replace(kinds_of_tasks["plain"], name="growing")  # of the same name
    assert env.reset(options={"task": stranger})[1]["task_index"] == -1


def test_a_task_larger_than_the_padding_is_refused(kinds_of_tasks: Tasks, env_for: MakeEnv) -> None:
    env = env_for(kinds_of_tasks["plain"])
    for name, message in (("growing", "up to 8 parts.*room for 6.*max_parts=8"), ("split", "up to 40 parts")):
        with pytest.raises(InvalidTaskError, match=message):
            env.reset(options={"task": kinds_of_tasks[name]})
    with pytest.raises(InvalidTaskError, match=r"up to 4 devices.*max_devices=4"):
        env_for(kinds_of_tasks["plain"], max_parts=40).reset(options={"task": kinds_of_tasks["spot"]})
    env = env_for(kinds_of_tasks["plain"], max_parts=40, max_devices=4)
    for task in kinds_of_tasks.values():
        obs, info = env.reset(options={"task": task})
        assert env.observation_space.contains(obs)
        assert info["placement"].shape == (40,)


def test_a_rejected_task_leaves_the_episode_as_it_is(
    kinds_of_tasks: Tasks, drift_task: Any, env_for: MakeEnv, same: Any
) -> None:
    env = env_for(kinds_of_tasks["growing"])
    env.reset(seed=0)
    env.step(1)
    before = env._observation(), env._info()
    level = replace(kinds_of_tasks["growing"].level, pruned=0.0)
    with pytest.raises(InvalidTaskError, match="no placement was found"):
        env.reset(options={"task": drift_task(6, 2, level=level, cap=0.9)})
    assert same(before, (env._observation(), env._info()))


class Source:
    """Tasks without numbers."""

    max_parts, max_devices, grows = 6, 2, False

    def __init__(self, task: DriftTask) -> None:
        self._task = task

    def sample(self, rng: np.random.Generator) -> DriftTask:
        return replace(self._task, seed=int(rng.integers(3)))


def test_tasks_can_come_from_a_custom_source(kinds_of_tasks: Tasks) -> None:
    env = EmbeddingReplanningEnv(Source(kinds_of_tasks["plain"]))
    seeds = set()
    for seed in range(6):
        _, info = env.reset(seed=seed)
        seeds.add(env.task.seed)
        assert info["task_index"] == -1
    assert len(seeds) > 1
    with pytest.raises(InvalidOptionError, match="has no numbered tasks; pass a DriftTask"):
        env.reset(options={"task": 0})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": "speed"}, "reward must be 'time' or 'excess', not 'speed'"),
        ({"illegal": "ignore"}, "illegal must be"),
        ({"headroom": 1}, "headroom must be True, False, or None"),
        ({"max_parts": 5}, "max_parts must be an integer of at least 6"),
        ({"max_devices": 1}, "max_devices must be an integer of at least 2"),
        ({"suite": 3}, "suite must be the name of a suite of replanning"),
        ({"suite": "mlperf-x8"}, "a suite of placement: its environment is EmbeddingPlacement-v0"),  # it has no train
        ({"suite": "spot-600", "split": "val"}, "has the splits"),
    ],
)
def test_wrong_arguments_are_refused(kinds_of_tasks: Tasks, wrong: dict[str, Any], message: str) -> None:
    suite = DriftSuite("own", (kinds_of_tasks["plain"],))
    with pytest.raises(InvalidOptionError, match=message):
        EmbeddingReplanningEnv(**{"suite": suite, **wrong})
