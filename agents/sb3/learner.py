"""PPO, MaskablePPO, A2C and DQN of Stable-Baselines3 as learners, with one network for tasks of every size.

Needs the extra `sb3`.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.logger import Logger

from shard_gym.agents.sb3.agent import SetPolicyAgent
from shard_gym.agents.sb3.dqn import MaskedDQN, load_replay_arrays, replay_arrays
from shard_gym.agents.sb3.network import DeviceScorer
from shard_gym.agents.sb3.policies import DeviceFeatures, MaskableSetPolicy, SetDQNPolicy, SetPolicy
from shard_gym.agents.sb3.vec_env import PlacementVecEnv
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.torch_arrays import (
    load_module_arrays,
    load_optimizer_arrays,
    module_arrays,
    optimizer_arrays,
)
from shard_gym.checks import checked_count, checked_positive
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.core.reward import Transition
from shard_gym.errors import unknown_name
from shard_gym.io.arrays import Arrays, under
from shard_gym.system import one_thread
from shard_gym.tasks import TaskSuite

OPTIMIZER, REPLAY = "optimizer.", "replay."
"""Prefixes of the arrays of a state that are not weights."""

WEIGHTS, ROLLOUT = range(2)
"""Purposes of random generators."""

MINIBATCHES = 4
"""Of each epoch of PPO."""

EXPLORATION_FRACTION, FINAL_EXPLORATION = 0.5, 0.05
"""DQN's share of random actions falls from 1 to the second number over this fraction of the iterations."""


@dataclass(frozen=True)
class AlgorithmSettings:
    """The settings that an algorithm is made with.

    Attributes:
        env: the environments; a rollout is one longest episode of each.
        width: of the network.
        learning_rate: at the start; it falls to zero, linearly.
        replay: steps in DQN's replay buffer, of all environments together.
        seed: of the first weights.
        progress: returns the share of the iterations that are done.
    """

    env: PlacementVecEnv
    width: int
    learning_rate: float
    replay: int
    seed: int
    progress: Callable[[], float]

    @property
    def n_steps(self) -> int:
        """Steps of each environment in a rollout."""
        return self.env.envs.episodes.max_tables

    @property
    def rollout(self) -> int:
        """Steps of all environments in a rollout."""
        return self.n_steps * self.env.num_envs

    def common(self) -> dict[str, Any]:
        """Arguments of all algorithms. Episodes are short, so nothing is discounted."""
        return {
            "env": self.env,
            "learning_rate": lambda _: self.learning_rate * (1.0 - self.progress()),
            "gamma": 1.0,
            "policy_kwargs": {"net_arch": [self.width], "features_extractor_class": DeviceFeatures},
            "seed": self.seed,
            "device": "cpu",
        }

    def ppo(self) -> dict[str, Any]:
        """Arguments of PPO. The batch divides the rollout; advantages are normalised, so it has at least two steps."""
        batch = max(2, self.rollout // math.gcd(self.env.num_envs, MINIBATCHES))
        return {**self.common(), "n_steps": self.n_steps, "batch_size": batch, "n_epochs": 5, "ent_coef": 0.01}


def _ppo(settings: AlgorithmSettings) -> BaseAlgorithm:
    return PPO(SetPolicy, **settings.ppo())


def _maskable_ppo(settings: AlgorithmSettings) -> BaseAlgorithm:
    return MaskablePPO(MaskableSetPolicy, **settings.ppo())


def _a2c(settings: AlgorithmSettings) -> BaseAlgorithm:
    """With Adam, because the saved state of a run holds Adam's averages."""
    return A2C(
        SetPolicy,
        n_steps=settings.n_steps,
        gae_lambda=0.95,
        ent_coef=0.02,
        normalize_advantage=True,
        use_rms_prop=False,
        **settings.common(),
    )


def _dqn(settings: AlgorithmSettings) -> BaseAlgorithm:
    """With two gradient steps after every step of the environments, and a target network that follows in each."""

    def exploration() -> float:
        return max(FINAL_EXPLORATION, 1.0 - settings.progress() / EXPLORATION_FRACTION * (1.0 - FINAL_EXPLORATION))

    return MaskedDQN(
        SetDQNPolicy,
        buffer_size=settings.replay,
        learning_starts=0,
        batch_size=256,
        train_freq=1,
        gradient_steps=2,
        tau=0.03,
        target_update_interval=settings.env.num_envs,
        exploration=exploration,
        **settings.common(),
    )


@dataclass(frozen=True)
class Algorithm:
    """An algorithm and its defaults, which suit suites of small tasks.

    Attributes:
        make: called with the settings.
        iterations, num_envs, learning_rate: the defaults.
    """

    make: Callable[[AlgorithmSettings], BaseAlgorithm]
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


class RelativeReward:
    """Minus the increase of the cost in each step, in units of the task's lower bound; sums to at most -1."""

    def __call__(self, transition: Transition) -> FloatArray:
        """(N,) float64, without unit."""
        after = np.where(transition.over, transition.final_cost_ms, transition.cost_after_ms)
        return np.asarray((transition.cost_before_ms - after) / transition.lower_bound_ms)


class Sb3Learner(Learner):
    """An algorithm of Stable-Baselines3 in training, on many environments at once.

    An iteration resets all environments and plays as many steps in each as the largest task has tables. PPO,
    MaskablePPO and A2C then learn from this rollout; DQN learns from its replay buffer during it. The reward is
    `RelativeReward`.

    The network scores every device with the same weights (`DeviceScorer`), so the agent places tasks of any size. No
    algorithm chooses an illegal device: MaskablePPO gets the masks from the environments, the policy of PPO and A2C
    masks its logits with the mask in the observation, and DQN chooses and explores among legal devices only. So PPO
    and MaskablePPO differ only in the source of the mask.

    Args:
        suite: the tasks to learn from.
        cost_model: the true cost.
        seed: of everything random.
        name: "ppo", "maskable-ppo", "a2c" or "dqn".
        iterations: the number of iterations; None for the default in `ALGORITHMS`.
        num_envs: environments stepped together, at least 2; None for the default.
        learning_rate: Adam's at the start; it falls to zero, linearly. None for the default.
        width: of the network's hidden layers.
        replay: steps in DQN's replay buffer, of all environments together; unused by the others.

    Raises:
        UnknownNameError: there is no such algorithm.
        InvalidOptionError: an option is out of range.
    """

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: AdditiveCostModel,
        seed: int,
        *,
        name: str = "maskable-ppo",
        iterations: int | None = None,
        num_envs: int | None = None,
        learning_rate: float | None = None,
        width: int = 64,
        replay: int = 40_000,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        if name not in ALGORITHMS:
            raise unknown_name("algorithm of Stable-Baselines3", name, ALGORITHMS)
        defaults = ALGORITHMS[name]
        self.name = name
        self.iterations = checked_count("iterations", defaults.iterations if iterations is None else iterations)
        self.width = checked_count("width", width)
        count = checked_count("num_envs", defaults.num_envs if num_envs is None else num_envs, least=2)
        rate = checked_positive("learning_rate", defaults.learning_rate if learning_rate is None else learning_rate)
        self._env = PlacementVecEnv(
            count, suite=suite, cost_model=self.cost_model, reward=RelativeReward(), observation="compact"
        )
        settings = AlgorithmSettings(
            env=self._env,
            width=self.width,
            learning_rate=rate,
            replay=checked_count("replay", replay),
            seed=self._seed(WEIGHTS),
            progress=lambda: self.iteration / self.iterations,
        )
        with _global_generators_kept():
            self._model: Any = defaults.make(settings)
        self._model.set_logger(Logger(None, []))  # SB3's default logger makes a temporary folder in each iteration
        self._steps = settings.rollout
        self._prepare_tasks()

    def _seed(self, purpose: int) -> int:
        return int(self.rng(purpose).integers(2**31))

    def _prepare_tasks(self) -> None:
        """Begin every task once, so that these evaluations count now, whether the run is resumed or not."""
        tasks, count = len(self.suite), self._env.num_envs
        for first in range(0, tasks, count):
            self._env.envs.reset(seed=0, options={"tasks": [(first + env) % tasks for env in range(count)]})

    @property
    def _scorer(self) -> DeviceScorer:
        policy = self._model.policy
        scorer: DeviceScorer = (policy.mlp_extractor if self._buffer is None else policy.q_net.q_net).scorer
        return scorer

    @property
    def _buffer(self) -> DictReplayBuffer | None:
        """DQN's replay buffer; None for the other algorithms."""
        return getattr(self._model, "replay_buffer", None)

    def iterate(self) -> Report:
        """See `Learner`."""
        ended: list[dict[str, Any]] = []

        def keep(local_names: dict[str, Any], _: dict[str, Any]) -> bool:
            ended.extend(local_names["infos"][env] for env in np.flatnonzero(local_names["dones"]))
            return True

        with one_thread(), _global_generators_kept():
            self._model.set_random_seed(self._seed(ROLLOUT))
            self._model.learn(self._steps, callback=keep, log_interval=None)
        failures = sum("failure" in info for info in ended)
        return Report(self._mean_cost(ended), {**self._logged(), "failures": failures})

    def _logged(self) -> dict[str, float]:
        """What SB3 logged of its last update, without the number of updates, which restarts when a run is resumed."""
        logger = self._model.logger
        logged = {name.removeprefix("train/"): value for name, value in logger.name_to_value.items()}
        logger.dump()
        return {name: float(value) for name, value in logged.items() if name != "n_updates"}

    def _mean_cost(self, infos: Sequence[Mapping[str, Any]]) -> float:
        """Mean true cost in ms of the episodes that ended with `infos`; the penalty for those that failed."""
        costs = [info["cost_ms"] if "cost_ms" in info else self._penalty_ms(info["task"]) for info in infos]
        return float(np.mean(costs))

    def _penalty_ms(self, name: str) -> float:
        task = self.suite.task(name)
        return self.cost_model.penalty_ms(task.tables, task.topology)

    def state(self) -> Arrays:
        """See `Learner`."""
        replay = {} if self._buffer is None else replay_arrays(self._buffer)
        return {
            **module_arrays(self._model.policy),
            **optimizer_arrays(self._model.policy.optimizer, OPTIMIZER),
            **{REPLAY + name: array for name, array in replay.items()},
        }

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        others = (OPTIMIZER,) if self._buffer is None else (OPTIMIZER, REPLAY)
        weights = {name: array for name, array in arrays.items() if not name.startswith(others)}
        load_module_arrays(self._model.policy, weights, "The state of training")
        load_optimizer_arrays(self._model.policy.optimizer, arrays, OPTIMIZER)
        if self._buffer is not None:
            load_replay_arrays(self._buffer, under(REPLAY, arrays))

    def weights(self) -> Arrays:
        """See `Learner`."""
        return module_arrays(self._scorer)

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"width": self.width}

    def agent(self) -> SetPolicyAgent:
        """See `Learner`."""
        return SetPolicyAgent(self.name, copy.deepcopy(self._scorer), cost_model=self.cost_model.model)


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Restore the states of the global random generators, which SB3 seeds and draws from."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
