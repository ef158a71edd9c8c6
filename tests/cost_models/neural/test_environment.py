"""Environments step with a neural cost model as with any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.cost_models.neural import load_cost_model, save_cost_model
from shard_gym.tasks import load_suite

TOLERANCE = 1e-4
"""Products of float32 matrices are rounded differently for one row and for many."""


@pytest.mark.parametrize("architecture", ["dreamshard", "pooled"])
def test_an_episode_costs_what_the_network_estimates(architecture: str, fitted: Any, tmp_path: Path) -> None:
    path, suite = str(tmp_path / "model.safetensors"), load_suite("mixdim-4", "train")
    save_cost_model(fitted(architecture), path)
    env: Any = gymnasium.make_vec(
        "shard_gym:EmbeddingPlacement-v0", num_envs=4, suite="mixdim-4", cost_model=path, reward="dense"
    )
    rng, model, ended = np.random.default_rng(0), load_cost_model(path), 0
    obs, _ = env.reset(seed=0)
    returns = np.zeros(4)
    while ended < 4:
        mask = obs["action_mask"]
        obs, rewards, over, _, info = env.step(np.where(mask > 0, rng.random(mask.shape), -1).argmax(axis=1))
        returns += rewards
        for k in np.flatnonzero(over):
            task = suite[int(info["task_index"][k])]
            if not info["failure"][k]:
                placement = info["placement"][k][: task.num_tables]
                cost_ms = model.estimate(placement, task.tables, task.topology).total_ms
                assert info["cost_ms"][k] == pytest.approx(cost_ms, rel=TOLERANCE)
                assert -returns[k] == pytest.approx(cost_ms, rel=TOLERANCE, abs=100 * TOLERANCE)
            returns[k], ended = 0.0, ended + 1
