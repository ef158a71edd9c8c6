"""PPO, MaskablePPO, A2C and DQN of Stable-Baselines3 as learners, with one network for all tasks; needs `sb3`."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv
from typing_extensions import override

from shard_gym.agents.sb3.agent import SetPlanAgent, SetPolicyAgent
from shard_gym.agents.sb3.dqn import MaskedDQN, load_replay_arrays, replay_arrays
from shard_gym.agents.sb3.network import INPUTS, MAX_SHARDS, SPLIT_TYPES, DeviceScorer
from shard_gym.agents.sb3.policies import DeviceFeatures, MaskableSetPolicy, SetDQNPolicy, SetPolicy
from shard_gym.agents.sb3.vec_env import PlacementVecEnv, ShardingVecEnv
from shard_gym.agents.training import Learner, Report
from shard_gym.agents.training.learner import TrueCost
from shard_gym.agents.training.torch_arrays import load_training_arrays, module_arrays, training_arrays
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import MAX_UNITS, checked_count, checked_learning_rate
from shard_gym.common.errors import InvalidOptionError, unknown_name
from shard_gym.common.io.arrays import Arrays, prefixed, under
from shard_gym.common.system import one_thread
from shard_gym.cost_models import AdditiveCostModel, CostModel, additive_estimate, make_cost_model
from shard_gym.envs.core.reward import Transition, dense
from shard_gym.tasks import TaskSuite

REPLAY = "replay."  # prefix of the arrays of the replay buffer in a state
WEIGHTS, ROLLOUT = range(2)  # purposes of random generators
MINIBATCHES = 4  # minibatches of each epoch of PPO
MAX_ENVS, MAX_REPLAY = 2**16, 2**31

EXPLORATION_FRACTION, FINAL_EXPLORATION = 0.5, 0.05
"""DQN's share of random actions falls from 1 to the second number over this fraction of the iterations."""


class Sb3Algorithm(NamedTuple):
    """A class of Stable-Baselines3, its policy and arguments, and our defaults, which suit suites of small tasks."""

    kind: Callable[..., BaseAlgorithm]
    policy: type[BasePolicy]
    iterations: int
    num_envs: int
    learning_rate: float
    arguments: dict[str, Any]


PPO_ARGUMENTS = {"n_epochs": 5, "ent_coef": 0.01}
A2C_ARGUMENTS = {
    "gae_lambda": 0.95,
    "ent_coef": 0.02,
    "normalize_advantage": True,
    "use_rms_prop": False,  # the saved state of a run holds Adam's averages
}
DQN_ARGUMENTS = {
    "learning_starts": 0,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 2,  # after every step of the environments
    "tau": 0.03,  # the target network follows in each
}

ALGORITHMS: dict[str, Sb3Algorithm] = {
    "ppo": Sb3Algorithm(PPO, SetPolicy, 50, 256, 3e-3, PPO_ARGUMENTS),
    "maskable-ppo": Sb3Algorithm(MaskablePPO, MaskableSetPolicy, 50, 256, 3e-3, PPO_ARGUMENTS),
    "a2c": Sb3Algorithm(A2C, SetPolicy, 600, 32, 3e-3, A2C_ARGUMENTS),
    "dqn": Sb3Algorithm(MaskedDQN, SetDQNPolicy, 120, 32, 2e-3, DQN_ARGUMENTS),
}
"""The algorithm of each agent, by its name."""


def relative_reward(transition: Transition) -> FloatArray:
    """(N,) `dense` reward in units of the task's lower bound; the sum over an episode is at most -1."""
    return np.asarray(dense(transition) / transition.lower_bound_ms)


class AlgorithmLearner(Learner):
    """A learner that trains a `_model` of Stable-Baselines3, which its constructor makes with `_new_model`."""

    _model: Any
    _make_model: Callable[[str], Any]

    def _new_model(
        self, kind: Callable[..., Any], policy: type[Any], env: VecEnv, rate: float, **arguments: Any
    ) -> Any:
        """A model without a log of its own, whose learning rate falls from `rate` to zero, linearly."""

        def make(device: str) -> Any:
            with global_generators_kept():
                model = kind(
                    policy,
                    env,
                    learning_rate=lambda _: rate * (1.0 - self.iteration / self.iterations),
                    seed=self._seed(WEIGHTS),
                    device=device,
                    **arguments,
                )
            model.set_logger(Logger(None, []))  # SB3's default logger makes a temporary folder in each iteration
            return model

        self._make_model = make
        return make(self.device)

    @override
    def _move(self, device: str) -> None:
        state = self.state()
        self._model = self._make_model(device)
        self.load_state(state)

    def _seed(self, purpose: int) -> int:
        return int(self.rng(purpose).integers(2**31))

    @override
    def state(self) -> Arrays:
        return training_arrays(self._model.policy, self._model.policy.optimizer)

    @override
    def load_state(self, arrays: Arrays) -> None:
        load_training_arrays(self._model.policy, self._model.policy.optimizer, arrays, "The state of training")


class Sb3Learner(AlgorithmLearner):
    """An algorithm of Stable-Baselines3 in training, on many environments at once.

    An iteration resets all environments and plays as many steps in each as the largest task has tables. PPO,
    MaskablePPO and A2C then learn from this rollout; DQN learns from its replay buffer during it. The reward is
    `relative_reward`; episodes are short, so nothing is discounted.

    The network scores every device with the same weights (`DeviceScorer`), so the agent places tasks of any size. No
    algorithm chooses an illegal device: MaskablePPO gets the masks from the environments, the policy of PPO and A2C
    masks its logits with the mask in the observation, and DQN chooses and explores among legal devices only. So PPO
    and MaskablePPO differ only in the source of the mask.

    Args:
        suite, cost_model, seed: see `Learner`.
        name: "ppo", "maskable-ppo", "a2c" or "dqn".
        iterations: the number of iterations. None for the default in `ALGORITHMS`.
        num_envs: environments stepped together, at least 2. None for the default.
        learning_rate: Adam's at the start; it falls to zero, linearly. None for the default.
        width: of the network's hidden layers.
        observation: "compact", with costs in it; "features", without, see `EmbeddingPlacementEnv`; or "splits": tables
            are split, and it is trained on `EmbeddingShardingEnv` with its observation "compact", up to 8 shards of
            a table, and all sharding types but table_row_wise.
        replay: steps in DQN's replay buffer, of all environments together; unused by the others.

    Raises:
        InvalidOptionError: an option is out of range.
        UnknownNameError: there is no such observation for these agents.
    """

    @classmethod
    def option_defaults(cls, name: str) -> dict[str, Any]:
        """Those of `ALGORITHMS`."""
        algorithm = ALGORITHMS[name]
        return {key: getattr(algorithm, key) for key in ("iterations", "num_envs", "learning_rate")}

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "maskable-ppo",
        iterations: int | None = None,
        num_envs: int | None = None,
        learning_rate: float | None = None,
        width: int = 64,
        observation: str = "compact",
        replay: int = 40_000,
    ) -> None:
        plans = observation == "splits"
        super().__init__(suite, make_cost_model(cost_model, additive=True, splits=True) if plans else cost_model, seed)
        defaults = ALGORITHMS[name]
        self.name = name
        self.iterations = checked_count("iterations", defaults.iterations if iterations is None else iterations)
        self.width = checked_count("width", width, most=MAX_UNITS)
        if observation not in INPUTS:
            raise unknown_name(f"observation of agent {name!r}", observation, INPUTS)
        if suite[0].splittable and not plans:
            raise InvalidOptionError(
                f"The tables of {suite.name!r} may be split. Train with the option observation=splits, or on a suite "
                "of placements."
            )
        self.observation = observation
        count = checked_count("num_envs", defaults.num_envs if num_envs is None else num_envs, least=2, most=MAX_ENVS)
        rate = checked_learning_rate(defaults.learning_rate if learning_rate is None else learning_rate)
        self._env = _new_env(count, suite, additive_estimate(self.cost_model), observation)
        if not isinstance(self.cost_model, AdditiveCostModel):
            self._env.envs.episodes.final_cost = TrueCost(self)  # observations have estimates
        # A table takes a step more for each time that it is halved; episodes that are cut off are valued by the critic.
        self._length = suite.max_tables * (2 if plans else 1)
        self._steps = self._length * count
        self._model = self._new_model(
            defaults.kind,
            defaults.policy,
            self._env,
            rate,
            gamma=1.0,
            policy_kwargs={"net_arch": [self.width], "features_extractor_class": DeviceFeatures},
            **defaults.arguments,
            **self._sizes(checked_count("replay", replay, most=MAX_REPLAY)),
        )
        self._prepare_tasks()

    def _sizes(self, replay: int) -> dict[str, Any]:
        """The arguments of the algorithm that depend on the suite and on options."""
        count = self._env.num_envs
        if self.name == "dqn":
            return {"buffer_size": replay, "target_update_interval": count, "exploration": self._exploration}
        sizes = {"n_steps": self._length}
        if self.name != "a2c":  # the batch divides the rollout; advantages are normalised, so it has at least two steps
            sizes["batch_size"] = max(2, self._steps // math.gcd(count, MINIBATCHES))
        return sizes

    def _exploration(self) -> float:
        share = self.iteration / self.iterations / EXPLORATION_FRACTION
        return max(FINAL_EXPLORATION, 1.0 - share * (1.0 - FINAL_EXPLORATION))

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
        return getattr(self._model, "replay_buffer", None)

    @override
    def iterate(self) -> Report:
        ended = train(self._model, self._seed(ROLLOUT), self._steps)
        failures = sum(bool(info["failure"]) for info in ended)
        costs = [self._penalty_ms(info["task_index"]) if info["failure"] else info["cost_ms"] for info in ended]
        mean_ms = float(np.mean(costs)) if costs else math.nan
        return Report(mean_ms, {**self._logged(), "failures": failures})

    def _logged(self) -> dict[str, float]:
        """What SB3 logged of its last update, without the number of updates, which restarts when a run is resumed."""
        logger = self._model.logger
        logged = {name.removeprefix("train/"): value for name, value in logger.name_to_value.items()}
        logger.dump()
        return {name: float(value) for name, value in logged.items() if name != "n_updates"}

    def _penalty_ms(self, index: int) -> float:
        task = self.suite[index]
        return self.cost_model.penalty_ms(task.tables, task.topology)

    @override
    def state(self) -> Arrays:
        return {**super().state(), **prefixed(REPLAY, {} if self._buffer is None else replay_arrays(self._buffer))}

    @override
    def load_state(self, arrays: Arrays) -> None:
        if self._buffer is not None:
            load_replay_arrays(self._buffer, under(REPLAY, arrays))
            arrays = {name: array for name, array in arrays.items() if not name.startswith(REPLAY)}
        super().load_state(arrays)

    @override
    def weights(self) -> Arrays:
        return module_arrays(self._scorer)

    @override
    def about(self) -> dict[str, Any]:
        return {"width": self.width, "observation": self.observation}

    @override
    def agent(self) -> SetPolicyAgent:
        kind = SetPlanAgent if self.observation == "splits" else SetPolicyAgent
        return kind(self.name, copy.deepcopy(self._scorer).cpu(), cost_model=self.cost_model.model)


def _new_env(count: int, suite: TaskSuite, cost_model: AdditiveCostModel, observation: str) -> PlacementVecEnv:
    options: dict[str, Any] = {"suite": suite, "cost_model": cost_model, "reward": relative_reward}
    if observation == "splits":
        splits = {"sharding_types": SPLIT_TYPES, "max_shards": MAX_SHARDS}
        return ShardingVecEnv(count, observation="compact", **options, **splits)
    return PlacementVecEnv(count, observation=observation, **options)


def train(model: Any, seed: int, steps: int) -> list[dict[str, Any]]:
    """Train a model of SB3 for so many steps; the last infos of the episodes that ended."""
    ended: list[dict[str, Any]] = []

    def keep(local_names: dict[str, Any], _: dict[str, Any]) -> bool:
        ended.extend(local_names["infos"][env] for env in np.flatnonzero(local_names["dones"]))
        return True

    with one_thread(), global_generators_kept():
        model.set_random_seed(seed)
        model.learn(steps, callback=keep, log_interval=None)
    return ended


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restore the states of the global random generators, which SB3 seeds and draws from."""
    before, gpus = (random.getstate(), np.random.get_state()), 0
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gpus = torch.cuda.device_count()
    try:
        with torch.random.fork_rng(devices=range(gpus)):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
