"""PPO with action masks from RLlib, with the module for action masks that comes with it.

`ActionMaskingTorchRLModule` reads an observation with the keys "observations" and "action_mask"; a wrapper of ten lines
makes it. RLlib pins one release of Gymnasium, so install it in an environment of its own. With `--runners 2 --cluster
auto` two processes on the nodes of a Ray cluster step the environments, and this one learns.
"""

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import ray
import torch
import tyro
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
from ray.tune.registry import register_env

from shard_gym import evaluate
from shard_gym.agents import PolicyAgent, make_agent


@dataclass
class Args:
    """What to train on, and for how long."""

    suite: str = "dlrm-20x4"  # name of the suite
    timesteps: int = 100_000  # steps of training, of all environments together
    seed: int = 0  # of everything random
    num_envs: int = 16  # environments, in this process or spread over those of `runners`
    runners: int = 0  # processes on the nodes of a cluster that step environments; 0 for this process
    cluster: str = ""  # its address, or "auto" for the one that this machine belongs to; empty for none
    batch: int = 4000  # steps of one iteration


def masked(obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The observation as RLlib's module wants it: its numbers in one vector, and the mask."""
    numbers = [array for array in obs.values() if array.dtype == np.float32]
    return {"observations": np.concatenate(numbers), "action_mask": obs["action_mask"].astype(np.float32)}


def make_env(config: dict) -> gymnasium.Env:
    """Called by RLlib, also in its workers; so the id in the configuration names the module that registers it."""
    env = gymnasium.make(**config)
    size = sum(each.shape[0] for each in env.observation_space.values() if each.dtype == np.float32)
    numbers = spaces.Box(-np.inf, np.inf, (size,), np.float32)
    mask = spaces.Box(0.0, 1.0, (int(env.action_space.n),), np.float32)
    space = spaces.Dict({"observations": numbers, "action_mask": mask})
    return gymnasium.wrappers.TransformObservation(env, masked, space)


def train(config: dict, args: Args) -> Callable[[dict[str, np.ndarray], np.ndarray], int]:
    """The policy; `config` holds the arguments of `gymnasium.make`."""
    if args.cluster:
        ray.init(args.cluster, log_to_driver=False)
    else:
        cpus = max(args.runners, 1)
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    register_env("embedding-placement", make_env)
    algorithm = (
        PPOConfig()
        .environment("embedding-placement", env_config=config)
        .env_runners(
            num_env_runners=args.runners, num_envs_per_env_runner=max(args.num_envs // max(args.runners, 1), 1)
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=ActionMaskingTorchRLModule,
                model_config={"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"},
            )
        )
        .training(
            lr=[[0, 1e-3], [args.timesteps, 0.0]],
            gamma=1.0,
            lambda_=0.95,
            train_batch_size_per_learner=args.batch,
            minibatch_size=500,
            num_epochs=5,
            entropy_coeff=0.01,
            vf_clip_param=float("inf"),  # returns are minus the cost in ms, more than the default allows
            use_kl_loss=False,
            grad_clip=0.5,
        )
        .debugging(seed=args.seed, log_level="ERROR")
        .build_algo()
    )
    for _ in range(max(args.timesteps // args.batch, 1)):
        algorithm.train()
    module = algorithm.get_module()
    algorithm.stop()
    ray.shutdown()

    @torch.no_grad()
    def policy(obs: dict[str, np.ndarray], mask: np.ndarray) -> int:
        """The most likely legal device."""
        single = {key: torch.as_tensor(array[None]) for key, array in masked(obs).items()}
        return int(module.forward_inference({"obs": single})["action_dist_inputs"].argmax())

    return policy


def main(args: Args) -> None:
    """Score the agent on the test tasks, whose tables training never saw, beside two to compare with."""
    config = {"suite": args.suite, "split": "train", "reward": "dense", "observation": "compact"}
    config["id"] = "shard_gym:EmbeddingPlacement-v0"
    env = make_env(config).unwrapped
    sizes = {"max_tables": env.max_tables, "max_devices": env.max_devices}
    trained = PolicyAgent("rllib-ppo", train(config, args), **sizes, observation="compact")
    for agent in (trained, make_agent("random"), make_agent("lookup-greedy")):
        print(f"{agent.name}: {evaluate(agent, args.suite).mean_cost_ms:.3f} ms")


if __name__ == "__main__":
    main(tyro.cli(Args))
