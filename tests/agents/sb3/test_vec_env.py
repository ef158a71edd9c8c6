"""The vector environment under Stable-Baselines3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

from shard_gym import EmbeddingPlacementEnv
from shard_gym.agents.sb3.vec_env import PlacementVecEnv
from shard_gym.common.errors import InvalidOptionError


def make(num_envs: int = 3, **options: Any) -> PlacementVecEnv:
    return PlacementVecEnv(num_envs, **{"suite": "dlrm-20x4", "split": "test", "reward": "dense", **options})


def test_it_returns_what_scalar_environments_return() -> None:
    vec = make()
    vec.seed(7)
    vec.set_options([{"task": number} for number in (4, 0, 9)])
    seen = vec.reset()
    scalars = [EmbeddingPlacementEnv("dlrm-20x4", "test", reward="dense") for _ in range(3)]
    assert [info["task_index"] for info in vec.reset_infos] == [4, 0, 9]
    for number, (env, task) in enumerate(zip(scalars, (4, 0, 9), strict=True)):
        first, _ = env.reset(seed=7 + number, options={"task": task})
        assert all(np.array_equal(first[key], seen[key][number]) for key in first)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(45):
        masks = get_action_masks(vec)
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        seen, rewards, dones, infos = vec.step(actions)
        assert rewards.dtype == np.float32
        for number, env in enumerate(scalars):
            observation, reward, over, _, info = env.step(int(actions[number]))
            assert (np.float32(reward), over) == (rewards[number], dones[number])
            if over:
                ended += 1
                last = infos[number].pop("terminal_observation")
                assert infos[number].pop("TimeLimit.truncated") is False
                assert all(np.array_equal(observation[key], last[key]) for key in observation)
                assert infos[number].keys() == info.keys()
                assert all(np.array_equal(infos[number][key], info[key]) for key in info)
                observation, _ = env.reset()
            else:
                assert infos[number] == {}
            assert all(np.array_equal(observation[key], seen[key][number]) for key in observation)
    assert ended == 6


def test_masks_come_in_one_call() -> None:
    vec = make()
    assert is_masking_supported(vec)  # also before the first reset, when `MaskableEvalCallback` asks
    assert not vec.has_attr("no_attribute")
    vec.reset()
    assert is_masking_supported(vec)
    masks = vec.env_method("action_masks")
    assert len(masks) == 3
    assert np.array_equal(np.stack(masks), vec.envs.action_masks())
    assert np.array_equal(vec.env_method("action_masks", indices=[2])[0], masks[2])
    assert vec.env_method("failure", indices=[0, 2]) == [None, None]
    assert vec.get_attr("task", indices=1) == [vec.envs.episodes.task(1)]
    with pytest.raises(AttributeError, match="no method or attribute 'plan'"):
        vec.env_method("plan")


def test_bad_options_are_named_errors() -> None:
    with pytest.raises(InvalidOptionError, match="autoreset_mode"):
        make(autoreset_mode="DISABLED")
    vec = make()
    vec.set_options({"tasks": 3})
    with pytest.raises(InvalidOptionError, match="'tasks'"):
        vec.reset()
    with pytest.raises(InvalidOptionError, match="for all"):
        vec.set_attr("render_mode", None, indices=[0])
    with pytest.raises(InvalidOptionError, match=r"It makes its environments itself: PlacementVecEnv\(64, suite="):
        PlacementVecEnv(EmbeddingPlacementEnv("dlrm-20x4"))  # type: ignore[arg-type]
