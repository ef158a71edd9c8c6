"""Stock PPO of Stable-Baselines3, which knows no masks: an illegal action is redirected to a legal device.

With `illegal="redirect"` the table goes to the legal device with the least memory in use, for a small loss of reward.
With masks, see train_maskable_ppo.py.

On the test tasks of dlrm-20x4 it reaches 12.68, 12.39 and 12.44 ms with the seeds 0, 1 and 2, in 31 to 33 seconds each
on one CPU of an AMD EPYC (22 November 2026, cost model analytical-v2). random reaches 16.44 ms, lookup-greedy 13.34.
"""

from dataclasses import dataclass

import gymnasium
import numpy as np
import tyro
from stable_baselines3 import PPO

from shard_gym import Task, evaluate
from shard_gym.agents import make_agent
from shard_gym.agents.sb3.vec_env import PlacementVecEnv


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"  # name of the suite
    timesteps: int = 100_000  # steps of training, of all environments together
    seed: int = 0  # of everything random
    num_envs: int = 50  # environments stepped together


class RedirectedAgent:
    """Plays an episode for each task, under the same rule for illegal actions as in training."""

    name = "sb3-ppo"

    def __init__(self, model: PPO, suite: str):
        self.model = model
        # The suite gives the padding; the tasks to place are passed to reset().
        self.env = gymnasium.make(
            "shard_gym:EmbeddingPlacement-v0", suite=suite, split="train", observation="compact", illegal="redirect"
        )

    def place(self, task: Task) -> np.ndarray:
        obs, info = self.env.reset(options={"task": task})
        terminated = False
        while not terminated:
            action, _ = self.model.predict(obs, deterministic=True)
            obs, _, terminated, _, info = self.env.step(action)
        return info["placement"][: task.num_tables]  # -1 if no device had room for a table: a failure


def train(args: Args) -> RedirectedAgent:
    envs = PlacementVecEnv(
        args.num_envs, suite=args.suite, split="train", reward="dense", observation="compact", illegal="redirect"
    )
    model = PPO(
        "MultiInputPolicy",
        envs,
        learning_rate=1e-3,
        n_steps=2 * envs.envs.episodes.max_tables,
        batch_size=250,
        n_epochs=5,
        gamma=1.0,
        ent_coef=0.01,
        seed=args.seed,
        device="cpu",
    )
    return RedirectedAgent(model.learn(args.timesteps), args.suite)


def main(args: Args) -> None:
    """Score the agent on the test tasks, whose tables training never saw, beside two to compare with."""
    for agent in (train(args), make_agent("random"), make_agent("lookup-greedy")):
        print(f"{agent.name}: {evaluate(agent, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
