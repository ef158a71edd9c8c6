"""MaskablePPO on scalar environments and on the vector environment: `python benchmarks/sb3.py` prints JSON.

All train on dlrm-20x4 and are scored on its test tasks:

    scalar    eight environments in a DummyVecEnv, as the documentation of Stable-Baselines3 shows it
    vector    the vector environment with the same stock policy (`shard_gym.agents.sb3.train_maskable_ppo`)
    sets      the vector environment with a policy that sees devices as a set (the learner `maskable-ppo`)
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env

import shard_gym
from shard_gym.agents import Agent, PolicyAgent
from shard_gym.agents.sb3 import masked_policy, train_maskable_ppo
from shard_gym.agents.training import make_learner

SUITE = "dlrm-20x4"


@dataclass
class Args:
    """How much to train."""

    seeds: int = 3
    """runs of each"""
    scalar_steps: int = 150_000
    """steps on the scalar environments"""
    vector_steps: int = 300_000
    """steps on the vector environment"""
    set_iterations: int = 12
    """iterations of the learner, each an episode of 256 environments"""


def scalar(seed: int, steps: int) -> PolicyAgent:
    """Train on eight scalar environments."""
    env = make_vec_env(
        shard_gym.EmbeddingPlacementEnv,
        n_envs=8,
        seed=seed,
        env_kwargs={"suite": SUITE, "split": "train", "reward": "dense"},
    )
    model = MaskablePPO("MultiInputPolicy", env, n_steps=256, batch_size=512, ent_coef=0.01, seed=seed, device="cpu")
    model.learn(steps)
    return PolicyAgent("scalar", masked_policy(model), max_tables=20, max_devices=4)


def vector(seed: int, steps: int) -> PolicyAgent:
    """Train on the vector environment."""
    return train_maskable_ppo(SUITE, total_timesteps=steps, seed=seed)


def sets(seed: int, iterations: int) -> Agent:
    """Train the learner on the vector environment."""
    learner = make_learner("maskable-ppo", SUITE, seed=seed, iterations=iterations)
    while learner.iteration < learner.iterations:
        learner.iterate()
        learner.iteration += 1
    return learner.agent()


def run(recipe: Any, seeds: int, steps: int) -> dict[str, Any]:
    """Seconds of training and mean test cost of each seed, and their medians."""
    seconds, costs = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        agent = recipe(seed, steps)
        seconds.append(time.perf_counter() - started)
        costs.append(shard_gym.evaluate(agent, SUITE).mean_cost_ms)
    return {
        "steps_or_iterations": steps,
        "seconds": [round(each, 1) for each in seconds],
        "test_cost_ms": [round(each, 3) for each in costs],
        "median_seconds": round(statistics.median(seconds), 1),
        "median_test_cost_ms": round(statistics.median(costs), 3),
    }


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(1)  # for both: the network is small
    records = {
        "scalar": run(scalar, args.seeds, args.scalar_steps),
        "vector": run(vector, args.seeds, args.vector_steps),
        "sets": run(sets, args.seeds, args.set_iterations),
    }
    unit = records["scalar"]["median_seconds"]
    ratios = {name: round(record["median_seconds"] / unit, 3) for name, record in records.items()}
    print(json.dumps({**records, "seconds_to_scalar": ratios}, indent=1))
