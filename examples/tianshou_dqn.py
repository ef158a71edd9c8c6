"""Double DQN with action masks from Tianshou 2, on scalar environments.

Tianshou's discrete policies read an observation with the attributes `obs` and `mask`; a wrapper of ten lines makes it.
"""

from collections.abc import Callable
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


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"  # name of the suite
    timesteps: int = 100_000  # steps of training, of all environments together
    seed: int = 0  # of everything random
    num_envs: int = 16  # environments, stepped one after the other


def masked(obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The observation as Tianshou wants it: its numbers in one vector, and the mask."""
    numbers = [array for array in obs.values() if array.dtype == np.float32]
    return {"obs": np.concatenate(numbers), "mask": obs["action_mask"].astype(bool)}


def with_masks(env: gymnasium.Env) -> gymnasium.Env:
    size = sum(each.shape[0] for each in env.observation_space.values() if each.dtype == np.float32)
    mask = spaces.MultiBinary(int(env.action_space.n))
    space = spaces.Dict({"obs": spaces.Box(-np.inf, np.inf, (size,)), "mask": mask})
    return gymnasium.wrappers.TransformObservation(env, masked, space)


def train(make_env: Callable[[], gymnasium.Env], args: Args) -> Callable[[dict[str, np.ndarray], np.ndarray], int]:
    """The policy; `make_env` makes an environment with masks."""
    np.random.seed(args.seed)  # Tianshou explores with NumPy's global generator
    torch.manual_seed(args.seed)
    env = make_env()
    envs = DummyVectorEnv([make_env] * args.num_envs)
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

    return choose


def main(args: Args) -> None:
    """Score the agent on the test tasks, whose tables training never saw, beside two to compare with."""

    def make_env() -> gymnasium.Env:
        name, options = "shard_gym:EmbeddingPlacement-v0", {"split": "train", "reward": "dense"}
        return with_masks(gymnasium.make(name, suite=args.suite, observation="compact", **options))

    env = make_env().unwrapped
    sizes = {"max_tables": env.max_tables, "max_devices": env.max_devices}
    trained = PolicyAgent("tianshou-dqn", train(make_env, args), **sizes, observation="compact")
    for agent in (trained, make_agent("random"), make_agent("lookup-greedy")):
        print(f"{agent.name}: {evaluate(agent, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
