"""The environments step with a neural cost model as with any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.cost_models.neural import save_cost_model

ENV = "shard_gym:EmbeddingPlacement-v0"
TOLERANCE = 1e-4
"""Products of float32 matrices are rounded differently for one row and for many."""

MakeFile = Callable[[str], str]


@pytest.fixture(scope="module")
def file(fitted: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeFile:
    folder: Path = tmp_path_factory.mktemp("models")

    def make(architecture: str) -> str:
        save_cost_model(fitted(architecture), folder / f"{architecture}.safetensors")
        return str(folder / f"{architecture}.safetensors")

    return make


@pytest.mark.parametrize("architecture", ["dreamshard", "pooled"])
def test_scalar_and_vector_environments_agree(architecture: str, file: MakeFile) -> None:
    suite, count = "mixdim-4", 4
    many = gymnasium.make_vec(ENV, num_envs=count, suite=suite, cost_model=file(architecture), reward="dense")
    ones = [gymnasium.make(ENV, suite=suite, cost_model=file(architecture), reward="dense") for _ in range(count)]
    obs, _ = many.reset(seed=0)
    each = [env.reset(seed=k)[0] for k, env in enumerate(ones)]
    running, endings = np.ones(count, bool), 0
    rng = np.random.default_rng(0)
    while running.any():
        for key in obs:
            for k in np.flatnonzero(running):
                np.testing.assert_allclose(obs[key][k], each[k][key], rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
        actions = np.where(obs["action_mask"] > 0, rng.random(obs["action_mask"].shape), -1).argmax(axis=1)
        obs, rewards, over, _, _ = many.step(actions)
        for k in np.flatnonzero(running):
            each[k], reward, ended, _, info = ones[k].step(int(actions[k]))
            assert reward == pytest.approx(rewards[k], rel=TOLERANCE, abs=100 * TOLERANCE)
            assert ended == over[k]
            if ended and not info["failure"]:
                task, model = ones[k].unwrapped.task, ones[k].unwrapped.cost_model
                said = model.estimate(info["placement"][: task.num_tables], task.tables, task.topology)
                assert info["cost_ms"] == pytest.approx(said.total_ms, rel=TOLERANCE)
                endings += 1
            running[k] &= not ended
    assert endings >= count // 2
