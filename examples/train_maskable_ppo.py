"""Train stock MaskablePPO of sb3-contrib on one suite and score it on tasks whose tables it never saw."""

from dataclasses import dataclass

import tyro

from shard_gym import evaluate
from shard_gym.agents import make_agent
from shard_gym.agents.sb3 import train_maskable_ppo


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"  # name of the suite
    timesteps: int = 300_000  # steps of training
    seed: int = 0  # of everything random


def main(args: Args) -> None:
    """Score the agent on the tasks it was trained on, and on the test tasks beside two to compare with."""
    agent = train_maskable_ppo(args.suite, total_timesteps=args.timesteps, seed=args.seed)
    result = evaluate(agent, args.suite, split="train")
    print(f"in training: {result.mean_cost_ms:.3f} ms, {result.failures} failures of {len(result.tasks)} tasks")
    for each in (agent, make_agent("random"), make_agent("lookup-greedy")):
        print(f"{each.name}: {evaluate(each, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
