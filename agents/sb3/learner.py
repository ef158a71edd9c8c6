"""Stable-Baselines3's PPO, MaskablePPO, A2C and DQN as learners: one class, one network for tasks of every size.

Importing this needs torch, for loading a trained agent does; making a learner needs SB3.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shard_gym.agents.sb3.agent import SetPolicyAgent, load_module_arrays, load_policy, module_arrays
from shard_gym.agents.sb3.network import DeviceScorer
from shard_gym.agents.sb3.replay import load_replay_arrays, replay_arrays
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.optimizer import load_optimizer_arrays, optimizer_arrays
from shard_gym.checks import checked_count, checked_positive
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.core.reward import Transition
from shard_gym.errors import missing_extra, unknown_name
from shard_gym.io.arrays import Arrays, under
from shard_gym.system import one_thread
from shard_gym.tasks import TaskSuite

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import DictReplayBuffer

__all__ = ["RelativeReward", "Sb3Learner", "load_policy"]

OPTIMIZER, REPLAY = "optimizer.", "replay."
"""Prefixes of the arrays of a state that are not weights."""

WEIGHTS, ROLLOUT = range(2)
"""Purposes of random numbers."""


class RelativeReward:
    """Minus what each step added to the cost, in units of the task's lower bound; sums to at most -1, at any size."""

    def __call__(self, transition: Transition) -> FloatArray:
        """(N,) float64, without unit."""
        after = np.where(transition.over, transition.final_cost_ms, transition.cost_after_ms)
        return np.asarray((transition.cost_before_ms - after) / transition.lower_bound_ms)


class Sb3Learner(Learner):
    """An algorithm of Stable-Baselines3 in training, on many environments at once.

    An iteration resets all environments and plays as many steps in each as the largest task has tables. PPO,
    MaskablePPO and A2C then learn from this rollout; DQN learns from its replay buffer along the way. The reward is
    `RelativeReward`.

    The network scores every device with the same weights (`DeviceScorer`), so the agent places tasks of any size. None
    of the four ever tries an illegal device: MaskablePPO asks the environments for their masks, the policy of PPO and
    A2C masks its own logits with the mask in the observation, and DQN chooses and explores among legal devices only.
    That leaves PPO and MaskablePPO but one difference: where the mask comes from. A stock PPO, which has to learn from
    failures what is illegal, would be another baseline.

    Args:
        suite: the tasks to learn from.
        cost_model: what tells the true cost.
        seed: of everything random.
        name: "ppo", "maskable-ppo", "a2c" or "dqn".
        iterations: how many; the defaults suit suites of small tasks.
        num_envs: environments stepped together, at least 2.
        learning_rate: Adam's at the start; it falls to zero, linearly.
        width: of the network's hidden layers.
        replay: steps of all environments together that DQN remembers; the others have no use for it.

    Raises:
        UnknownNameError: there is no such algorithm.
        InvalidOptionError: an option is out of range.
        MissingExtraError: Stable-Baselines3 is not installed.
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
        try:
            from shard_gym.agents.sb3.algorithms import ALGORITHMS, Plan, make_algorithm
            from shard_gym.agents.sb3.vec_env import PlacementVecEnv
        except ImportError as error:
            raise missing_extra("sb3-contrib", "sb3", f"Training {name!r}") from error
        super().__init__(suite, cost_model, seed)
        if name not in ALGORITHMS:
            raise unknown_name("algorithm of Stable-Baselines3", name, ALGORITHMS)
        usual = ALGORITHMS[name]
        self.name = name
        self.iterations = checked_count("iterations", usual.iterations if iterations is None else iterations)
        self.width = checked_count("width", width)
        count = checked_count("num_envs", usual.num_envs if num_envs is None else num_envs, least=2)
        rate = checked_positive("learning_rate", usual.learning_rate if learning_rate is None else learning_rate)
        self._env = PlacementVecEnv(
            count, suite=suite, cost_model=self.cost_model, reward=RelativeReward(), observation="compact"
        )
        plan = Plan(
            env=self._env,
            width=self.width,
            learning_rate=rate,
            replay=checked_count("replay", replay),
            seed=self._seed(WEIGHTS),
            done=lambda: self.iteration / self.iterations,
        )
        with _randomness_kept():
            self._model: Any = make_algorithm(name, plan)
        self._steps = plan.rollout
        self._prepare_tasks()

    def _seed(self, purpose: int) -> int:
        return int(self.rng(purpose).integers(2**31))

    def _prepare_tasks(self) -> None:
        """Begin every task once: what that asks of the cost model counts now, in a resumed run as in any other."""
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
        """DQN's; the others have none."""
        return getattr(self._model, "replay_buffer", None)

    def iterate(self) -> Report:
        """See `Learner`."""
        ended: list[dict[str, Any]] = []

        def keep(local_names: dict[str, Any], _: dict[str, Any]) -> bool:
            ended.extend(local_names["infos"][env] for env in np.flatnonzero(local_names["dones"]))
            return True

        with one_thread(), _randomness_kept():
            self._model.set_random_seed(self._seed(ROLLOUT))
            self._model.learn(self._steps, callback=keep, log_interval=None)
        failures = sum("failure" in info for info in ended)
        return Report(self._mean_cost(ended), {**self._logged(), "failures": failures})

    def _logged(self) -> dict[str, float]:
        """What SB3 said of its last update; not how many there were, which it counts anew in a resumed run."""
        logger = self._model.logger
        logged = {name.removeprefix("train/"): value for name, value in logger.name_to_value.items()}
        logger.dump()
        return {name: float(value) for name, value in logged.items() if name != "n_updates"}

    def _mean_cost(self, infos: Sequence[Mapping[str, Any]]) -> float:
        """Mean true cost in ms of the episodes that ended with `infos`; of those that failed their penalty."""
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
        apart = (OPTIMIZER,) if self._buffer is None else (OPTIMIZER, REPLAY)
        weights = {name: array for name, array in arrays.items() if not name.startswith(apart)}
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
def _randomness_kept() -> Iterator[None]:
    """The global generators, which SB3 seeds and draws from, afterwards go on as if nothing had happened."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
