"""Making environments: by id from a fresh process, from a JSON spec, as a vector, and with every render mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.envs.registration import ENVIRONMENTS


def in_a_fresh_process(script: str, folder: Path) -> str:
    """What `script` prints; any warning is an error."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "WARN" not in result.stderr
    return result.stdout


def test_environments_are_made_without_an_import(tmp_path: Path) -> None:
    ids = [f"shard_gym:{env_id}" for env_id in ENVIRONMENTS]
    script = f"""
import gymnasium
for env_id in {ids}:
    many, one = gymnasium.make_vec(env_id, num_envs=2, info_text=True), gymnasium.make(env_id, info_text=True)
    print([env.reset(seed=0)[1]["task"] for env in (many, one)])
"""
    assert in_a_fresh_process(script, tmp_path).count("/train/") == 3 * len(ids)


def test_importing_and_registering_again_changes_nothing(tmp_path: Path) -> None:
    script = """
import importlib, sys
import gymnasium, shard_gym
before = dict(gymnasium.registry)
importlib.reload(shard_gym)
for name in [name for name in sys.modules if name.partition(".")[0] == "shard_gym"]:
    del sys.modules[name]
import shard_gym
shard_gym.register_environments()
print(before == gymnasium.registry)
"""
    assert in_a_fresh_process(script, tmp_path).strip() == "True"


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_every_render_mode_renders_every_kind_of_state(env_id: str, kinds: Any) -> None:
    modes = gymnasium.make(env_id).metadata["render_modes"]
    assert "ansi" in modes
    for mode in modes:
        env = gymnasium.make(env_id, **kinds[env_id].small, render_mode=mode)
        env.reset(seed=0)
        pictures = [env.render()]
        terminated = False
        while not terminated:
            terminated = env.step(int(env.unwrapped.action_masks().argmax()))[2]
            if len(pictures) < 2 or terminated:
                pictures.append(env.render())
        env.reset(seed=0)
        assert env.step(kinds[env_id].illegal)[4]["failure"] == 1
        pictures.append(env.render())
        if mode == "ansi":
            assert all(isinstance(picture, str) for picture in pictures)
            assert len(set(pictures)) == len(pictures)
        else:
            assert {(type(picture), picture.dtype, picture.ndim) for picture in pictures} == {
                (np.ndarray, np.dtype(np.uint8), 3)
            }
            assert {picture.shape for picture in pictures} == {(*pictures[0].shape[:2], 3)}
            assert not np.array_equal(pictures[0], pictures[-2])
        env.close()


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_rendering_without_a_mode_warns_and_gives_nothing(env_id: str) -> None:
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_a_flattened_observation_stays_float32(env_id: str, kinds: Any) -> None:
    flat = gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id, **kinds[env_id].small))
    observation, _ = flat.reset(seed=0)
    assert (flat.observation_space.dtype, observation.dtype) == (np.float32, np.float32)
    assert flat.observation_space.contains(observation)


def test_the_default_tasks_of_sharding_may_be_split() -> None:
    assert gymnasium.make("EmbeddingSharding-v0", info_text=True).reset(seed=0)[1]["task"].startswith("shard-4/train/")
