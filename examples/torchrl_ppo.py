"""PPO with action masks from TorchRL's parts: collector, MaskedCategorical, generalized advantages and clipped loss.

`GymWrapper` takes the vector environment as one batched environment. TorchRL resets it, so autoreset is disabled.
"""

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import tyro
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import CatTensors, Compose, DTypeCastTransform, GymWrapper, TransformedEnv
from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from shard_gym import evaluate
from shard_gym.agents import PolicyAgent, make_agent


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"  # name of the suite
    timesteps: int = 500_000  # steps of training, of all environments together
    seed: int = 0  # of everything random
    num_envs: int = 256  # environments stepped together


def train(envs: gymnasium.vector.VectorEnv, steps: int, args: Args) -> Callable:
    """The policy, trained on a vector environment whose autoreset is disabled, with rollouts of so many steps."""
    torch.manual_seed(args.seed)
    space, devices = envs.single_observation_space, int(envs.single_action_space.n)
    keys = [key for key in space if space[key].dtype == np.float32]  # the network reads their concatenation
    env = TransformedEnv(
        GymWrapper(envs, categorical_action_encoding=True),
        Compose(
            CatTensors(keys, "observation", del_keys=False),
            DTypeCastTransform(torch.int8, torch.bool, in_keys=["action_mask"]),
        ),
    )
    env.set_seed(args.seed)
    size = env.observation_spec["observation"].shape[-1]
    actor = ProbabilisticActor(
        TensorDictModule(MLP(size, devices, num_cells=[128, 128]), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        spec=env.action_spec_unbatched,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(size, 1, num_cells=[128, 128]), ["observation"])
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01, critic_coeff=0.5)
    batch = args.num_envs * steps
    iterations = max(args.timesteps // batch, 1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, iterations)
    collector = Collector(
        env,
        actor,
        frames_per_batch=batch,
        total_frames=iterations * batch,
        auto_register_policy_transforms=False,
    )

    for rollout in collector:  # (environments, steps)
        with torch.no_grad():
            advantage(rollout)
        flat = rollout.reshape(-1)
        for _ in range(4):
            for chosen in torch.randperm(batch).chunk(8):
                losses = loss(flat[chosen])
                sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        schedule.step()
    collector.shutdown()

    @torch.no_grad()
    def policy(obs, mask):
        """The most likely legal device."""
        observation = torch.cat([torch.as_tensor(obs[key]) for key in keys])
        distribution = actor.get_dist(TensorDict({"observation": observation, "action_mask": torch.as_tensor(mask)}))
        return int(distribution.mode)

    return policy


def main(args: Args) -> None:
    """Score the agent on the test tasks, whose tables training never saw, beside two to compare with."""
    name, options = "shard_gym:EmbeddingPlacement-v0", {"split": "train", "reward": "dense", "observation": "compact"}
    envs = gymnasium.make_vec(name, args.num_envs, suite=args.suite, autoreset_mode="DISABLED", **options)
    sizes = {"max_tables": envs.episodes.max_tables, "max_devices": envs.episodes.max_devices}
    policy = train(envs, envs.episodes.max_tables, args)
    for agent in (
        PolicyAgent("torchrl-ppo", policy, **sizes, observation="compact"),
        make_agent("random"),
        make_agent("lookup-greedy"),
    ):
        print(f"{agent.name}: {evaluate(agent, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
