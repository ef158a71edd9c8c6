"""The environments step with a neural cost model as with any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.cost_models.neural import load_cost_model, save_cost_model
from shard_gym.suites import load_suite

TOLERANCE = 1e-4
"""Products of float32 matrices are rounded differently for one row and for many."""


@pytest.mark.parametrize("count", [None, 4], ids=["scalar", "vector"])
@pytest.mark.parametrize("architecture", ["dreamshard", "pooled"])
def test_an_episode_costs_what_the_network_estimates(
    architecture: str, count: int | None, fitted: Any, tmp_path: Path
) -> None:
    path, suite = tmp_path / "model.safetensors", load_suite("mixdim-4", "train")
    save_cost_model(fitted(architecture), path)
    make = gymnasium.make if count is None else gymnasium.make_vec
    many = {} if count is None else {"num_envs": count}
    env: Any = make("shard_gym:EmbeddingPlacement-v0", **many, suite="mixdim-4", cost_model=str(path), reward="dense")
    rng, model, ended = np.random.default_rng(0), load_cost_model(path), 0
    obs, info = env.reset(seed=0)
    returns = np.zeros(count or 1)
    while ended < 4:
        mask = np.atleast_2d(obs["action_mask"])
        actions = np.where(mask > 0, rng.random(mask.shape), -1).argmax(axis=1)
        obs, rewards, over, _, info = env.step(int(actions[0]) if count is None else actions)
        returns += rewards
        for k in np.flatnonzero(over):
            task = suite[int(np.atleast_1d(info["task_index"])[k])]
            if not np.atleast_1d(info["failure"])[k]:
                placement = np.atleast_2d(info["placement"])[k][: task.num_tables]
                cost_ms = model.estimate(placement, task.tables, task.topology).total_ms
                assert np.atleast_1d(info["cost_ms"])[k] == pytest.approx(cost_ms, rel=TOLERANCE)
                assert -returns[k] == pytest.approx(cost_ms, rel=TOLERANCE, abs=100 * TOLERANCE)
            returns[k], ended = 0.0, ended + 1
        if count is None and over:
            obs, info = env.reset()
