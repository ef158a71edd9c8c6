"""The algorithms of Stable-Baselines3 that train the set policies, and the settings that suit them.

Needs the extra `sb3`; import it where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger

from shard_gym.agents.sb3.dqn import MaskedDQN
from shard_gym.agents.sb3.policies import DeviceFeatures, MaskableSetPolicy, SetDQNPolicy, SetPolicy
from shard_gym.agents.sb3.vec_env import PlacementVecEnv

MINIBATCHES = 4
"""Of each epoch of PPO."""

EXPLORING = 0.5
"""Share of the iterations in which DQN's random actions fall from all to `LEAST_RANDOM`."""

LEAST_RANDOM = 0.05


@dataclass(frozen=True)
class Plan:
    """What an algorithm is made for.

    Attributes:
        env: the environments; a rollout is as many steps of each as the largest task has tables.
        width: of the network.
        learning_rate: at the start; it falls to zero, linearly.
        replay: steps DQN remembers, of all environments together.
        seed: of the first weights.
        done: tells the share of the iterations that are done.
    """

    env: PlacementVecEnv
    width: int
    learning_rate: float
    replay: int
    seed: int
    done: Callable[[], float]

    @property
    def steps(self) -> int:
        """Steps of each environment in a rollout."""
        return self.env.envs.episodes.max_tables

    @property
    def rollout(self) -> int:
        """Steps of all environments in a rollout."""
        return self.steps * self.env.num_envs

    def common(self) -> dict[str, object]:
        """Arguments that all algorithms take alike. Episodes are short, so nothing is discounted."""
        return {
            "env": self.env,
            "learning_rate": lambda _: self.learning_rate * (1.0 - self.done()),
            "gamma": 1.0,
            "policy_kwargs": {"net_arch": [self.width], "features_extractor_class": DeviceFeatures},
            "seed": self.seed,
            "device": "cpu",
        }


def _proximal(plan: Plan) -> dict[str, object]:
    """Arguments of PPO; the batch divides the rollout and holds two steps at least, for advantages are normalised."""
    batch = max(2, plan.rollout // math.gcd(plan.env.num_envs, MINIBATCHES))
    return {**plan.common(), "n_steps": plan.steps, "batch_size": batch, "n_epochs": 5, "ent_coef": 0.01}


def _ppo(plan: Plan) -> BaseAlgorithm:
    return PPO(SetPolicy, **_proximal(plan))  # type: ignore[arg-type]


def _maskable_ppo(plan: Plan) -> BaseAlgorithm:
    return MaskablePPO(MaskableSetPolicy, **_proximal(plan))  # type: ignore[arg-type]


def _a2c(plan: Plan) -> BaseAlgorithm:
    """With Adam: its memory is what a run resumes from, for all algorithms alike."""
    return A2C(
        SetPolicy,
        n_steps=plan.steps,
        gae_lambda=0.95,
        ent_coef=0.02,
        normalize_advantage=True,
        use_rms_prop=False,
        **plan.common(),  # type: ignore[arg-type]
    )


def _dqn(plan: Plan) -> BaseAlgorithm:
    """After every step of the environments some gradient steps; the target network follows slowly, in every step."""
    return MaskedDQN(
        SetDQNPolicy,
        buffer_size=plan.replay,
        learning_starts=0,
        batch_size=256,
        train_freq=1,
        gradient_steps=2,
        tau=0.03,
        target_update_interval=plan.env.num_envs,
        exploration=lambda: max(LEAST_RANDOM, 1.0 - plan.done() / EXPLORING * (1.0 - LEAST_RANDOM)),
        **plan.common(),
    )


@dataclass(frozen=True)
class Algorithm:
    """One of them.

    Attributes:
        make: an algorithm for a plan.
        iterations, num_envs, learning_rate: what suits it on a suite of small tasks.
    """

    make: Callable[[Plan], BaseAlgorithm]
    iterations: int
    num_envs: int
    learning_rate: float


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm(_ppo, 50, 256, 3e-3),
    "maskable-ppo": Algorithm(_maskable_ppo, 50, 256, 3e-3),
    "a2c": Algorithm(_a2c, 600, 32, 3e-3),
    "dqn": Algorithm(_dqn, 120, 32, 2e-3),
}
"""By the names of the agents."""


def make_algorithm(name: str, plan: Plan) -> BaseAlgorithm:
    """The algorithm `name`, one of `ALGORITHMS`, ready to learn; it prints nothing and writes no files."""
    model = ALGORITHMS[name].make(plan)
    model.set_logger(Logger(None, []))  # SB3's own makes a folder in the temporary directory each time
    return model
