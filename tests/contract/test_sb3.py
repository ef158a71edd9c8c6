"""Stable-Baselines3's stock algorithms and vector environments run on the environments as they are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.registration import ENVIRONMENTS

ILLEGAL_ACTION = 1
"""As infos number it."""

# Mixed sizes, padded beyond the largest task; and one small fixed size.
SETTINGS = [{"suite": "generalize", "max_tables": 220, "max_devices": 20}, {"suite": "dlrm-20x4"}]
PLACING = [env_id for env_id in ENVIRONMENTS if "Replanning" not in env_id]

# Whole episodes of replanning, of 336 steps, are those of test_vector_parity.py.
DRIFTING = "EmbeddingReplanning-v0"
CUT = {"headroom": True, "max_episode_steps": 40}
DRIFTING_SETTINGS = [{"suite": "growth-600", **CUT}, {"suite": "spot-600", "max_parts": 1000, "max_devices": 20, **CUT}]


class Collect(BaseCallback):
    """Keeps the infos of all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.infos: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        self.infos += self.locals["infos"]
        return True

    @property
    def failures(self) -> list[int]:
        return [info["failure"] for info in self.infos if info["failure"]]

    @property
    def completed(self) -> int:
        return sum(bool((info["placement"] >= 0).any()) for info in self.infos)


def maker(env_id: str, **arguments: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    return lambda: Monitor(gymnasium.make(f"shard_gym:{env_id}", **arguments))


def collected(model: Any, steps: int) -> Collect:
    infos = Collect()
    model.learn(steps, callback=infos)
    assert model.num_timesteps >= steps
    assert all(torch.isfinite(weights).all() for weights in model.policy.parameters())
    return infos


MASKED = [
    (env_id, {"observation": each, **arguments})
    for env_id, each, arguments in zip(PLACING, OBSERVATIONS, cycle(SETTINGS), strict=False)
]
MASKED.append(("EmbeddingSharding-v0", {"observation": "compact", "suite": "tier-4"}))  # with host memory


@pytest.mark.parametrize(("env_id", "arguments"), [*MASKED, (DRIFTING, DRIFTING_SETTINGS[1])])
def test_maskable_ppo_never_picks_an_illegal_action(env_id: str, arguments: dict[str, Any]) -> None:
    vector = SubprocVecEnv if env_id == PLACING[0] else DummyVecEnv
    envs = vector([maker(env_id, **arguments)] * 2)
    model = MaskablePPO("MultiInputPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
    infos = collected(model, 200)
    assert ILLEGAL_ACTION not in infos.failures
    assert infos.completed + len(infos.failures) >= 2
    returns, _ = evaluate_policy(model, envs, n_eval_episodes=2, warn=False)
    assert -np.inf < returns < 0
    envs.close()


UNMASKED = {
    PPO: {"n_steps": 64, "batch_size": 32, "n_epochs": 1},
    DQN: {"learning_starts": 50, "buffer_size": 500},
    RecurrentPPO: {"policy": "MultiInputLstmPolicy", "n_steps": 64, "batch_size": 32, "n_epochs": 1},
}
UNMASKED_CASES = [
    *((env_id, PPO, {"reward": "dense", **SETTINGS[0]}) for env_id in PLACING),
    *((DRIFTING, algorithm, DRIFTING_SETTINGS[0]) for algorithm in UNMASKED),
]


@pytest.mark.parametrize(("env_id", "algorithm", "arguments"), UNMASKED_CASES)
def test_unmasked_agents_learn_from_illegal_actions_too(env_id: str, algorithm: Any, arguments: dict[str, Any]) -> None:
    """They meet full devices, and padding where there is some."""
    options: dict[str, Any] = UNMASKED[algorithm]
    env = maker(env_id, **arguments)()
    model = algorithm(env=env, seed=0, device="cpu", **{"policy": "MultiInputPolicy", **options})
    assert ILLEGAL_ACTION in collected(model, 300).failures
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(model.predict(obs)[0])
