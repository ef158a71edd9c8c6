"""Train stock MaskablePPO on one suite and score it on tasks whose tables it never saw."""

from dataclasses import dataclass

import tyro

from shard_gym import evaluate
from shard_gym.agents.sb3 import train_maskable_ppo


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"
    """name of the suite"""
    timesteps: int = 300_000
    """steps of training"""
    seed: int = 0
    """of everything random"""


if __name__ == "__main__":
    args = tyro.cli(Args)
    agent = train_maskable_ppo(args.suite, total_timesteps=args.timesteps, seed=args.seed)
    for split in ("train", "test"):
        result = evaluate(agent, args.suite, split=split)
        print(f"{split}: {result.mean_cost_ms:.2f} ms, {result.failures} failures of {len(result.tasks)} tasks")
