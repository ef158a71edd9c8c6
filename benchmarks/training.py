"""MaskablePPO on scalar environments and on the vector environment.

All train on dlrm-20x4 and are scored on its test tasks:

    scalar    eight environments in a DummyVecEnv, as the documentation of Stable-Baselines3 shows it, 150,000 steps
    vector    the vector environment with the same stock policy, 300,000 steps (`train_maskable_ppo`)
    sets      the vector environment with a policy that sees devices as a set, 12 iterations (learner `maskable-ppo`)
"""

from __future__ import annotations

import statistics

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from timing import Stopwatch

import shard_gym
from shard_gym.agents import Agent, PolicyAgent
from shard_gym.agents.sb3 import masked_policy, train_maskable_ppo
from shard_gym.agents.training import make_learner

SUITE = "dlrm-20x4"


def scalar(seed: int) -> Agent:
    """Train on eight scalar environments."""
    options = {"suite": SUITE, "split": "train", "reward": "dense"}
    env = make_vec_env(shard_gym.EmbeddingPlacementEnv, n_envs=8, seed=seed, env_kwargs=options)
    model = MaskablePPO("MultiInputPolicy", env, n_steps=256, batch_size=512, ent_coef=0.01, seed=seed, device="cpu")
    model.learn(150_000)
    return PolicyAgent("scalar", masked_policy(model), max_tables=20, max_devices=4)


def vector(seed: int) -> Agent:
    """Train on the vector environment."""
    return train_maskable_ppo(SUITE, total_timesteps=300_000, seed=seed)


def sets(seed: int) -> Agent:
    """Train the learner on the vector environment."""
    learner = make_learner("maskable-ppo", SUITE, seed=seed, iterations=12)
    while learner.iteration < learner.iterations:
        learner.iterate()
        learner.iteration += 1
    return learner.agent()


def measure(seeds: int) -> dict[str, dict[str, float]]:
    """Medians over the seeds of the seconds of training and of the mean test cost."""
    torch.set_num_threads(1)  # the networks are small
    record = {}
    for train in (scalar, vector, sets):
        seconds, costs = [], []
        for seed in range(seeds):
            with Stopwatch() as watch:
                agent = train(seed)
            seconds.append(watch.seconds)
            costs.append(shard_gym.evaluate(agent, SUITE).mean_cost_ms)
        found = {"seconds": round(statistics.median(seconds), 1), "test_cost_ms": round(statistics.median(costs), 3)}
        record[train.__name__] = found
    return record
