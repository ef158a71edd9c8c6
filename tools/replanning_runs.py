"""Runs `EmbeddingReplanning-v0` in an RL library: `python tools/replanning_runs.py torchrl`.

Each function trains for a few episodes, or hours of them, as the example of the library does where that fits. It shows
that the environment works there, not how good an agent gets. `tools/libraries.py check` calls this file in the
environment of the library.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ENV_ID = "shard_gym:EmbeddingReplanning-v0"
SUITE = "drift-medium-120"
HOURS = 3 * 24  # decisions that are trained on in each environment

NUM_ENVS = 8


def make() -> gymnasium.Env[Any, Any]:
    return gymnasium.make(ENV_ID, suite=SUITE, split="train")


def stable_baselines3() -> int:
    """PPO; all actions are legal in this suite. Where tables grow, `illegal="redirect"` stands in for masks."""
    from stable_baselines3 import PPO

    return _trained_with_sb3(PPO, "MultiInputPolicy")


def sb3_contrib() -> int:
    """MaskablePPO, which asks for the masks, and RecurrentPPO."""
    from sb3_contrib import MaskablePPO, RecurrentPPO

    masked = _trained_with_sb3(MaskablePPO, "MultiInputPolicy", n_epochs=2)
    return masked + _trained_with_sb3(RecurrentPPO, "MultiInputLstmPolicy", n_epochs=2)


def _trained_with_sb3(algorithm: Any, policy: str, **options: Any) -> int:
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([make] * NUM_ENVS)
    model = algorithm(policy, envs, n_steps=HOURS, batch_size=72, seed=0, device="cpu", **options)
    return int(model.learn(HOURS * NUM_ENVS).num_timesteps)


def cleanrl() -> int:
    """A policy gradient in one loop on the vector environment, with masks."""
    import torch
    from torch.distributions import Categorical

    torch.manual_seed(0)
    envs = gymnasium.make_vec(ENV_ID, num_envs=NUM_ENVS, suite=SUITE, split="train", autoreset_mode="SAME_STEP")
    size, actions = spaces.flatdim(envs.single_observation_space), int(envs.single_action_space.n)
    network = torch.nn.Sequential(torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, actions))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    obs, _ = envs.reset(seed=0)
    log_probabilities, rewards = [], []
    for _ in range(HOURS):
        vector = np.concatenate([obs[key] for key in envs.single_observation_space], axis=1)
        scores = network(torch.as_tensor(vector, dtype=torch.float32))
        chosen = Categorical(logits=scores.masked_fill(torch.as_tensor(obs["action_mask"]) == 0, -torch.inf))
        action = chosen.sample()
        obs, reward, *_ = envs.step(action.numpy())
        log_probabilities.append(chosen.log_prob(action))
        rewards.append(torch.as_tensor(reward, dtype=torch.float32))
    later = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probabilities) * (later - later.mean(1, keepdim=True))).mean()
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    return HOURS * NUM_ENVS


def torchrl() -> int:
    import torchrl_ppo as example

    envs = gymnasium.make_vec(ENV_ID, num_envs=NUM_ENVS, suite=SUITE, split="train", autoreset_mode="DISABLED")
    example.train(envs, HOURS, example.Args(timesteps=HOURS * NUM_ENVS, num_envs=NUM_ENVS))
    return HOURS * NUM_ENVS


def rllib() -> int:
    import rllib_ppo as example

    config = {"id": ENV_ID, "suite": SUITE, "split": "train"}
    example.train(config, example.Args(timesteps=HOURS * NUM_ENVS, num_envs=NUM_ENVS, batch=HOURS * NUM_ENVS))
    return HOURS * NUM_ENVS


def tianshou() -> int:
    import tianshou_dqn as example

    example.train(lambda: example.with_masks(make()), example.Args(timesteps=HOURS * NUM_ENVS, num_envs=NUM_ENVS))
    return HOURS * NUM_ENVS


def minari() -> int:
    """Two episodes with their infos, written and read again, and the environment that is made from the data set."""
    import minari as library
    from minari.data_collector.episode_buffer import EpisodeBuffer

    env, buffers, name = make(), [], "replanning/check-v0"
    for task in (0, 14):
        seen: list[Any] = [env.reset(seed=0, options={"task": task})]
        steps: list[Any] = []
        while not steps or not steps[-1][1]:
            obs, reward, terminated, _, info = env.step(2 if len(steps) % 24 == 0 else 0)
            seen.append((obs, info))
            steps.append((reward, terminated))
        rewards, ends = map(np.array, zip(*steps, strict=True))
        buffers.append(
            EpisodeBuffer(
                seed=0,
                options={"task": task},
                observations={key: np.stack([each[key] for each, _ in seen]) for key in obs},
                actions=np.where(np.arange(len(steps)) % 24 == 0, 2, 0),
                rewards=rewards,
                terminations=ends,
                truncations=np.zeros(len(steps), bool),
                infos={key: np.array([each[key] for _, each in seen]) for key in info},
            )
        )
    about = {"algorithm_name": "a plan a day", "description": "A check of Minari.", "author": "ShardGym"}
    library.create_dataset_from_buffers(name, buffers, env=env.spec, eval_env=env.spec, author_email="-", **about)
    found = library.load_dataset(name)
    assert found.recover_environment().observation_space == env.observation_space == found.observation_space
    for episode, buffer in zip(found, buffers, strict=True):
        assert all(np.array_equal(episode.observations[key], buffer.observations[key]) for key in obs)
        assert all(np.array_equal(episode.infos[key], buffer.infos[key]) for key in info)
    return int(found.total_steps)


_LIBRARIES = (stable_baselines3, sb3_contrib, cleanrl, torchrl, rllib, tianshou, minari)
RUNS = {each.__name__.replace("_", "-"): each for each in _LIBRARIES}
"""By the names of tools/libraries.py; each returns its steps."""


def main(name: str) -> None:
    """Run one and print its steps and seconds as the last line, in JSON."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    begin = time.perf_counter()
    steps = RUNS[name]()
    print(json.dumps({"steps": steps, "seconds": round(time.perf_counter() - begin)}))


if __name__ == "__main__":
    main(sys.argv[1])
