"""Double DQN with action masks from Tianshou 2, on scalar environments.

Tianshou's discrete policies read an observation with the attributes `obs` and `mask`; a wrapper of ten lines makes it.
"""

from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium import spaces
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from shard_gym import evaluate
from shard_gym.agents import PolicyAgent, make_agent

KEYS = ("current_table", "current_table_costs", "device_costs", "device_memory", "progress")
"""Of the observation; the network reads their concatenation."""


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"
    """name of the suite"""
    timesteps: int = 100_000
    """steps of training, of all environments together"""
    seed: int = 0
    """of everything random"""
    num_envs: int = 16
    """environments, stepped one after the other"""


def masked(obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The observation as Tianshou wants it."""
    return {"obs": np.concatenate([obs[key] for key in KEYS]), "mask": obs["action_mask"].astype(bool)}


def make_env(suite: str) -> gymnasium.Env:
    env = gymnasium.make(
        "shard_gym:EmbeddingPlacement-v0", suite=suite, split="train", reward="dense", observation="compact"
    )
    size = sum(env.observation_space[key].shape[0] for key in KEYS)
    devices = int(env.action_space.n)
    space = spaces.Dict({"obs": spaces.Box(-np.inf, np.inf, (size,)), "mask": spaces.MultiBinary(devices)})
    return gymnasium.wrappers.TransformObservation(env, masked, space)


def train(args: Args) -> PolicyAgent:
    np.random.seed(args.seed)  # Tianshou explores with NumPy's global generator
    torch.manual_seed(args.seed)
    env = make_env(args.suite)
    envs = DummyVectorEnv([lambda: make_env(args.suite) for _ in range(args.num_envs)])
    envs.seed(args.seed)
    net = Net(
        state_shape=env.observation_space["obs"].shape, action_shape=int(env.action_space.n), hidden_sizes=[128, 128]
    )
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=1.0)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=1.0, target_update_freq=200)
    collector = Collector(algorithm, envs, VectorReplayBuffer(50_000, args.num_envs), exploration_noise=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=args.timesteps,
            collection_step_num_env_steps=10 * args.num_envs,
            update_step_num_gradient_steps_per_sample=1 / 16,
            batch_size=256,
            # From random to almost greedy, over the first half.
            training_fn=lambda epoch, steps: policy.set_eps_training(max(0.05, 1 - 2 * steps / args.timesteps)),
            verbose=False,
            show_progress=False,
        )
    )
    algorithm.eval()

    @torch.no_grad()
    def choose(obs: dict[str, np.ndarray], mask: np.ndarray) -> int:
        """The legal device of the highest value."""
        single = {key: array[None] for key, array in masked(obs).items()}
        return int(policy(Batch(obs=Batch(single), info=Batch())).act[0])

    sizes = {"max_tables": env.unwrapped.max_tables, "max_devices": env.unwrapped.max_devices}
    return PolicyAgent("tianshou-dqn", choose, **sizes, observation="compact")


def main(args: Args) -> None:
    """Score the agent on the test tasks, whose tables training never saw, beside two to compare with."""
    for agent in (train(args), make_agent("random"), make_agent("lookup-greedy")):
        print(f"{agent.name}: {evaluate(agent, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
