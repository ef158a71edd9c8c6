"""The environments step with a neural cost model as with any other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from shard_gym.agents import make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.neural import save_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

ENV = "shard_gym:EmbeddingPlacement-v0"
TOLERANCE = 1e-4
"""Products of float32 matrices are rounded differently for one row and for many."""

MakeFile = Callable[[str], str]

some_networks = pytest.mark.parametrize("architecture", ["dreamshard", "neuroshard", "pooled"])


@pytest.fixture(scope="module")
def file(fitted: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeFile:
    folder: Path = tmp_path_factory.mktemp("models")

    def make(architecture: str) -> str:
        save_cost_model(fitted(architecture), folder / f"{architecture}.safetensors")
        return str(folder / f"{architecture}.safetensors")

    return make


@some_networks
def test_both_checkers_pass(architecture: str, file: MakeFile) -> None:
    env = gymnasium.make(ENV, suite="mixdim-4", cost_model=file(architecture)).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check_env(env)
        sb3_check_env(env, warn=True)


@some_networks
def test_scalar_and_vector_environments_agree(architecture: str, file: MakeFile) -> None:
    suite, count = "mixdim-4", 8
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


@some_networks
def test_failures_cost_more_than_any_placement(architecture: str, file: MakeFile) -> None:
    env = gymnasium.make(ENV, suite="mixdim-4", cost_model=file(architecture), max_devices=9)
    worst, rng = -np.inf, np.random.default_rng(0)
    for episode in range(12):
        _, info = env.reset(options={"task": 5})
        over, reward = False, 0.0
        while not over:
            device = rng.choice(np.flatnonzero(info["action_mask"])) if episode % 2 else info["action_mask"].argmax()
            _, reward, over, _, info = env.step(int(device))  # the first device while it has room: crowded
        worst = max(worst, -np.inf if info["failure"] else -reward)
    env.reset(options={"task": 5})
    _, failed, _, _, info = env.step(8)
    assert info["failure"] == 1
    assert env.unwrapped.failure()["reason"] == "illegal_action"
    assert -failed == env.unwrapped.problem.penalty_ms[0]
    assert 0 < worst < -failed < np.inf


@some_networks
def test_agents_plan_with_it(architecture: str, file: MakeFile) -> None:
    model = make_cost_model(file(architecture))
    tasks = TaskSuite("few", load_suite("mixdim-4", "test").tasks[:3])
    searched = evaluate(make_agent("local-search", cost_model=model, max_queries=300), tasks)
    careless = evaluate(make_agent("random"), tasks)
    assert searched.mean_cost_ms < careless.mean_cost_ms
