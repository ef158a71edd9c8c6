"""Runs `EmbeddingReplanning-v0` in an RL library: `python tools/replanning_runs.py torchrl`.

Each function trains for a few episodes, or hours of them, with the least code that the library needs. It shows that the
environment works there as it is, and how; not how good an agent gets. `tools/libraries.py check` calls this file in the
environment of the library.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

ENV_ID = "shard_gym:EmbeddingReplanning-v0"
SUITE = "drift-medium-120"
DAYS = 3
"""That are trained on in each environment."""

HOURS = 24 * DAYS
NUM_ENVS = 8


def make(keys: tuple[str, str] | None = None) -> gymnasium.Env[Any, Any]:
    """The environment; with two keys, observations are a vector under the first one and the mask under the other."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(ENV_ID, suite=SUITE, split="train")
    if keys is None:
        return env
    named = [key for key in env.observation_space if key != "action_mask"]
    size = sum(env.observation_space[key].shape[0] for key in named)

    def masked(obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        vector = np.concatenate([obs[key] for key in named]).astype(np.float32)
        return {keys[0]: vector, keys[1]: obs["action_mask"].astype(bool if keys[1] == "mask" else np.float32)}

    actions = int(env.action_space.n)
    mask = spaces.MultiBinary(actions) if keys[1] == "mask" else spaces.Box(0.0, 1.0, (actions,), np.float32)
    vector = spaces.Box(-np.inf, np.inf, (size,), np.float32)
    return TransformObservation(env, masked, spaces.Dict({keys[0]: vector, keys[1]: mask}))


def stable_baselines3() -> int:
    """PPO; all actions are legal in this suite. Where tables grow, `illegal="redirect"` stands in for masks."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    model = PPO("MultiInputPolicy", DummyVecEnv([make] * NUM_ENVS), n_steps=HOURS, batch_size=72, seed=0, device="cpu")
    return int(model.learn(HOURS * NUM_ENVS).num_timesteps)


def sb3_contrib() -> int:
    """MaskablePPO, which asks for the masks, and RecurrentPPO."""
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    steps = 0
    for algorithm, policy in ((MaskablePPO, "MultiInputPolicy"), (RecurrentPPO, "MultiInputLstmPolicy")):
        envs = DummyVecEnv([make] * NUM_ENVS)
        model = algorithm(policy, envs, n_steps=HOURS, batch_size=72, n_epochs=2, seed=0, device="cpu")
        steps += int(model.learn(HOURS * NUM_ENVS).num_timesteps)
    return steps


def cleanrl() -> int:
    """A policy gradient in one loop on the vector environment, with masks."""
    import torch
    from torch.distributions import Categorical

    torch.manual_seed(0)
    envs = gymnasium.make_vec(ENV_ID, num_envs=NUM_ENVS, suite=SUITE, split="train", autoreset_mode="SAME_STEP")
    size, actions = spaces.flatdim(envs.single_observation_space), int(envs.single_action_space.n)
    network = torch.nn.Sequential(torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, actions))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    obs, _ = envs.reset(seed=0)
    log_probabilities, rewards = [], []
    for _ in range(HOURS):
        vector = np.concatenate([obs[key] for key in envs.single_observation_space], axis=1)
        scores = network(torch.as_tensor(vector, dtype=torch.float32))
        chosen = Categorical(logits=scores.masked_fill(torch.as_tensor(obs["action_mask"]) == 0, -torch.inf))
        action = chosen.sample()
        obs, reward, *_ = envs.step(action.numpy())
        log_probabilities.append(chosen.log_prob(action))
        rewards.append(torch.as_tensor(reward, dtype=torch.float32))
    later = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probabilities) * (later - later.mean(1, keepdim=True))).mean()
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    return HOURS * NUM_ENVS


def torchrl() -> int:
    """PPO: `GymWrapper` on the vector environment, `MaskedCategorical`, and the clipped loss."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import CatTensors, Compose, DTypeCastTransform, GymWrapper, TransformedEnv
    from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(0)
    envs = gymnasium.make_vec(ENV_ID, num_envs=NUM_ENVS, suite=SUITE, split="train", autoreset_mode="DISABLED")
    space = envs.single_observation_space
    keys = [key for key in space if space[key].dtype == np.float32]
    env = TransformedEnv(
        GymWrapper(envs, categorical_action_encoding=True),
        Compose(
            CatTensors(keys, "observation", del_keys=False),
            DTypeCastTransform(torch.int8, torch.bool, in_keys=["action_mask"]),
        ),
    )
    env.set_seed(0)
    size, actions = env.observation_spec["observation"].shape[-1], int(envs.single_action_space.n)
    actor = ProbabilisticActor(
        TensorDictModule(MLP(size, actions, num_cells=[64]), ["observation"], ["logits"]),
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        spec=env.action_spec_unbatched,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(size, 1, num_cells=[64]), ["observation"])
    loss = ClipPPOLoss(actor, critic)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    steps = HOURS * NUM_ENVS
    collector = Collector(env, actor, frames_per_batch=steps, total_frames=steps, auto_register_policy_transforms=False)
    for rollout in collector:
        with torch.no_grad():
            advantage(rollout)
        losses = loss(rollout.reshape(-1))
        sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        optimizer.step()
    collector.shutdown()
    return steps


def rllib() -> int:
    """PPO with the module for action masks that comes with RLlib."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
    from ray.tune.registry import register_env

    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    register_env("replanning", lambda config: make(("observations", "action_mask")))
    module = RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config={"fcnet_hiddens": [64]})
    steps = HOURS * NUM_ENVS
    algorithm = (
        PPOConfig()
        .environment("replanning")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
        .rl_module(rl_module_spec=module)
        .training(train_batch_size_per_learner=steps, minibatch_size=72, num_epochs=2)
        .debugging(seed=0, log_level="ERROR")
        .build_algo()
    )
    result = algorithm.train()
    algorithm.stop()
    ray.shutdown()
    return int(result["env_runners"]["num_env_steps_sampled"])


def tianshou() -> int:
    """Double DQN with masks."""
    import torch
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    torch.manual_seed(0)
    env = make(("obs", "mask"))
    envs = DummyVectorEnv([lambda: make(("obs", "mask")) for _ in range(NUM_ENVS)])
    actions = int(env.action_space.n)
    net = Net(state_shape=env.observation_space["obs"].shape, action_shape=actions, hidden_sizes=[64])
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.2)
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=50)
    collector = Collector(algorithm, envs, VectorReplayBuffer(5_000, NUM_ENVS), exploration_noise=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=HOURS * NUM_ENVS,
            collection_step_num_env_steps=10 * NUM_ENVS,
            update_step_num_gradient_steps_per_sample=1 / 16,
            batch_size=64,
            verbose=False,
            show_progress=False,
        )
    )
    return int(collector.collect_step)


def minari() -> int:
    """Two episodes with their infos, written and read again, and the environment that is made from the data set."""
    import minari as library
    from minari.data_collector.episode_buffer import EpisodeBuffer

    env, buffers, name = make(), [], "replanning/check-v0"
    for task in (0, 14):
        obs, info = env.reset(seed=0, options={"task": task})
        observations, infos, actions, rewards, over = [obs], [info], [], [], []
        while not (over and over[-1]):
            actions.append(2 if len(actions) % 24 == 0 else 0)
            obs, reward, terminated, _, info = env.step(actions[-1])
            observations.append(obs)
            infos.append(info)
            rewards.append(reward)
            over.append(terminated)
        buffers.append(
            EpisodeBuffer(
                seed=0,
                options={"task": task},
                observations={key: np.stack([each[key] for each in observations]) for key in obs},
                actions=np.array(actions),
                rewards=np.array(rewards),
                terminations=np.array(over),
                truncations=np.zeros(len(over), bool),
                infos={key: np.array([each[key] for each in infos]) for key in info},
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        about = {"algorithm_name": "a plan a day", "description": "A check of Minari.", "eval_env": env.spec}
        library.create_dataset_from_buffers(name, buffers, env=env.spec, author="ShardGym", author_email="-", **about)
        found = library.load_dataset(name)
        assert found.recover_environment().observation_space == env.observation_space == found.observation_space
        for episode, buffer in zip(found, buffers, strict=True):
            assert all(np.array_equal(episode.observations[key], buffer.observations[key]) for key in obs)
            assert all(np.array_equal(episode.infos[key], buffer.infos[key]) for key in info)
        return int(found.total_steps)


RUNS: dict[str, Callable[[], int]] = {
    "stable-baselines3": stable_baselines3,
    "sb3-contrib": sb3_contrib,
    "cleanrl": cleanrl,
    "torchrl": torchrl,
    "rllib": rllib,
    "tianshou": tianshou,
    "minari": minari,
}
"""By the names of tools/libraries.py; each returns its steps."""


def main(name: str) -> None:
    """Run one and print its steps and seconds as the last line, in JSON."""
    begin = time.perf_counter()
    steps = RUNS[name]()
    print(json.dumps({"steps": steps, "seconds": round(time.perf_counter() - begin)}))


if __name__ == "__main__":
    main(sys.argv[1])
