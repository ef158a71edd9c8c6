"""Stock MaskablePPO with its stock policy on the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.base import Policy, PolicyAgent
from shard_gym.common.checks import checked_seed
from shard_gym.common.errors import InvalidOptionError, missing_extra
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episodes import Observation
from shard_gym.envs.core.reward import Reward
from shard_gym.tasks import TaskSource

if TYPE_CHECKING:
    from sb3_contrib import MaskablePPO


def train_maskable_ppo(
    suite: str | TaskSource,
    *,
    total_timesteps: int = 300_000,
    split: str = "train",
    reward: str | Reward = "dense",
    observation: str | Observation = "full",
    cost_model: str | AdditiveCostModel = "analytical",
    num_envs: int = 256,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> PolicyAgent:
    """An agent trained on `suite` by MaskablePPO with the stock MultiInputPolicy.

    A rollout is one longest episode of every environment, so training takes whole multiples of num_envs * max_tables
    steps, at least one.

    Args:
        suite: name of a suite, or any source of tasks.
        total_timesteps: steps of training, of all environments together.
        split: split of a named suite to train on.
        reward: reward to train with.
        observation: observation to train and to place with.
        cost_model: model that estimates the costs.
        num_envs: environments stepped together.
        seed: of everything random. Equal seeds give equal agents on one machine.
        on_step: called with the number of steps done so far.

    Returns:
        The agent; `steps_trained` is the number of steps done.

    Raises:
        InvalidOptionError: `total_timesteps` or `num_envs` is below 1, or `seed` is not valid.
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    if total_timesteps < 1:
        raise InvalidOptionError(f"total_timesteps must be at least 1, not {total_timesteps!r}.")
    try:
        from sb3_contrib import MaskablePPO

        from shard_gym.agents.sb3.vec_env import PlacementVecEnv
        from shard_gym.common.system import one_thread
    except ImportError as error:
        raise missing_extra("sb3-contrib", "sb3", "Training with MaskablePPO") from error
    env = PlacementVecEnv(
        num_envs, suite=suite, split=split, reward=reward, observation=observation, cost_model=cost_model
    )
    max_tables, max_devices = env.envs.episodes.max_tables, env.envs.episodes.max_devices
    model = MaskablePPO(
        "MultiInputPolicy",
        env,
        learning_rate=1e-3,
        n_steps=max_tables,
        batch_size=1024,
        n_epochs=5,
        ent_coef=0.01,
        seed=checked_seed(seed),
        device="cpu",
    )

    def report(local_names: dict[str, Any], _: dict[str, Any]) -> bool:
        if on_step:
            on_step(local_names["self"].num_timesteps)
        return True

    with one_thread():
        model.learn(total_timesteps, callback=report)
    agent = PolicyAgent(
        "maskable-ppo",
        masked_policy(model),
        max_tables=max_tables,
        max_devices=max_devices,
        observation=observation,
        cost_model=cost_model,
    )
    agent.steps_trained = int(model.num_timesteps)
    return agent


def masked_policy(model: MaskablePPO) -> Policy:
    """The most likely legal action of a MaskablePPO model, as a policy."""

    def choose(observation: ObservationDict, mask: NDArray[np.bool_]) -> int:
        action, _ = model.predict(observation, action_masks=mask, deterministic=True)
        return int(action)

    return choose
