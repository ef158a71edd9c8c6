"""RL4CO's AttentionModel, POMO or AMPPO, as they are, on whole tables; they see no costs.

`RL4CoEnv` is an environment of its base class, and `embeddings` says what its policies see of tables and devices.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import tyro
from lightning import seed_everything
from rl4co.models import POMO, AttentionModel, AttentionModelPolicy
from rl4co.models.zoo import AMPPO
from rl4co.utils import RL4COTrainer

from shard_gym import evaluate
from shard_gym.agents import make_agent
from shard_gym.agents.rl4co import RL4CoAgent, RL4CoEnv, embeddings
from shard_gym.envs.tensors import TensorPlacementEnv

STARTS = 8  # episodes of a task that POMO compares


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"  # name of the suite
    model: Literal["pomo", "am", "ppo"] = "pomo"  # POMO, AttentionModel, AMPPO
    timesteps: int = 500_000  # steps of training, of all episodes together
    seed: int = 0  # of everything random
    batch_size: int = 256  # episodes that are played together
    width: int = 64  # of embeddings


def train(env: RL4CoEnv, args: Args) -> AttentionModelPolicy:
    """The policy of a model of RL4CO, trained on the tasks of `env`."""
    policy = AttentionModelPolicy(
        env_name=env.name,
        embed_dim=args.width,
        feedforward_hidden=2 * args.width,
        num_encoder_layers=2,
        **embeddings(env, args.width),
    )
    starts = STARTS if args.model == "pomo" else 1
    options = {
        "batch_size": args.batch_size // starts,
        "train_data_size": args.timesteps // env.episodes.max_tables // starts,
        "val_data_size": 1,
        "test_data_size": 1,
        "optimizer_kwargs": {"lr": 1e-3},
    }
    if args.model == "pomo":
        model = POMO(env, policy, num_augment=0, num_starts=STARTS, **options)
    elif args.model == "am":
        model = AttentionModel(env, policy, baseline="exponential", **options)
    else:
        model = AMPPO(env, policy, critic_kwargs={"embed_dim": args.width}, **options)
    trainer = RL4COTrainer(
        max_epochs=1,
        accelerator="cpu",
        precision="32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    return policy


def main(args: Args) -> None:
    """Score the agent on the test tasks, whose tables training never saw, beside two to compare with."""
    seed_everything(args.seed, verbose=False)
    torch.set_num_threads(1)
    env = RL4CoEnv(TensorPlacementEnv(1, args.suite, observation="set", reward="normalized", seed=args.seed))
    agent = RL4CoAgent(f"rl4co-{args.model}", train(env, args), env)
    for each in (agent, make_agent("random"), make_agent("lookup-greedy")):
        print(f"{each.name}: {evaluate(each, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
