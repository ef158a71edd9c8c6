"""Stable-Baselines3 on the environment, stock: nothing here that a user could not write in ten lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.policy import Policy, PolicyAgent
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import ObservationDict
from shard_gym.errors import MissingExtraError

if TYPE_CHECKING:
    from sb3_contrib import MaskablePPO


def train_maskable_ppo(
    suite: str,
    *,
    total_timesteps: int,
    split: str = "train",
    reward: str = "dense",
    cost_model: str | AdditiveCostModel = "analytical",
    num_envs: int = 8,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> PolicyAgent:
    """An agent that MaskablePPO with the stock MultiInputPolicy learnt on `suite`.

    Args:
        suite: name of a suite.
        total_timesteps: steps to train for, over all environments.
        split: split to train on.
        reward: reward to train with.
        cost_model: model that estimates the costs.
        num_envs: environments stepped together, in this process.
        seed: of everything random. Equal seeds, equal agents on one machine.
        on_step: called with the number of steps made so far.

    Raises:
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    try:
        import torch
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.env_util import make_vec_env
    except ImportError as error:
        raise MissingExtraError("sb3-contrib", "sb3", "Training with MaskablePPO") from error
    env = make_vec_env(
        EmbeddingPlacementEnv,
        n_envs=num_envs,
        seed=seed,
        env_kwargs={"suite": suite, "split": split, "reward": reward, "cost_model": cost_model},
    )
    max_tables, max_devices = env.get_attr("max_tables")[0], env.get_attr("max_devices")[0]
    model = MaskablePPO("MultiInputPolicy", env, n_steps=256, batch_size=512, ent_coef=0.01, seed=seed, device="cpu")

    def report(local_names: dict[str, Any], _: dict[str, Any]) -> bool:
        if on_step:
            on_step(local_names["self"].num_timesteps)
        return True

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is so small that a second thread costs more than it gives
    try:
        model.learn(total_timesteps, callback=report)
    finally:
        torch.set_num_threads(threads)
        env.close()
    return PolicyAgent(
        "maskable-ppo", masked_policy(model), max_tables=max_tables, max_devices=max_devices, cost_model=cost_model
    )


def masked_policy(model: MaskablePPO) -> Policy:
    """The most likely legal action of a MaskablePPO model, as a policy."""

    def choose(observation: ObservationDict, mask: NDArray[np.bool_]) -> int:
        action, _ = model.predict(observation, action_masks=mask, deterministic=True)
        return int(action)

    return choose
