"""PPO, MaskablePPO and RecurrentPPO of Stable-Baselines3 as learners of replanning, and their agent; needs `sb3`.

Their networks are the stock ones over `PolicyInputs`; training begins with a policy that keeps the plan in nearly all
hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from typing_extensions import override

from shard_gym.agents.replanning.base import ReplanningAgent, View
from shard_gym.agents.replanning.policy_env import PolicyInputs, PolicyVecEnv, input_space, legal_actions
from shard_gym.agents.sb3.learner import AlgorithmLearner, global_generators_kept, train
from shard_gym.agents.training.learner import Report
from shard_gym.agents.training.torch_arrays import load_module_arrays, module_arrays, network_size
from shard_gym.checks import MAX_UNITS, checked_count, checked_learning_rate
from shard_gym.cost_models import CostModel, make_sharding_cost_model
from shard_gym.drift.suite import DriftSuite
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.history import SECONDS
from shard_gym.envs.replanning.windows import KINDS
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, short_repr, wrong_kind
from shard_gym.io.arrays import Arrays
from shard_gym.system import one_thread

KEEP = 4.0
"""Logit of the action that keeps the plan, at the start: with four kinds of plans, one is made every 15 hours."""

ROLLOUT = DECISIONS // 2  # decisions of each environment between two updates: a week
MINIBATCHES = 4  # minibatches of each epoch

ARGUMENTS: dict[str, Any] = {"n_epochs": 5, "gamma": 0.995, "gae_lambda": 0.95, "ent_coef": 0.0}
"""A plan pays off within days, so the future counts for 200 hours. The time left is among the inputs."""


class Algorithm(NamedTuple):
    """A class of Stable-Baselines3, its policy, and how its network is built from a width."""

    kind: Callable[..., Any]
    policy: type[Any]
    network: Callable[[int], dict[str, Any]]


def _perceptron(width: int) -> dict[str, Any]:
    return {"net_arch": [width, width]}


def _recurrent(width: int) -> dict[str, Any]:
    """The actor remembers; the critic does not need to."""
    return {"net_arch": [width], "lstm_hidden_size": max(width // 2, 1), "enable_critic_lstm": False}


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm(PPO, ActorCriticPolicy, _perceptron),
    "maskable-ppo": Algorithm(MaskablePPO, MaskableActorCriticPolicy, _perceptron),
    "recurrent-ppo": Algorithm(RecurrentPPO, RecurrentActorCriticPolicy, _recurrent),
}
"""By the names of the agents."""


class PolicyReplanner(ReplanningAgent):
    """Takes the most likely action of an SB3 `policy` over `PolicyInputs`, in the sense of `legal_actions`."""

    def __init__(self, name: str, policy: Any) -> None:
        self.name, self.policy = name, policy
        self._inputs, self._state, self._starts = PolicyInputs(), None, np.ones(0, np.bool_)

    @property
    def kinds(self) -> int:
        """Z, the kinds of plans that it knows."""
        return int(self.policy.action_space.n) - 1

    @override
    def begin(self, count: int) -> None:
        self._inputs.begin(count, self.kinds)
        self._state, self._starts = None, np.ones(count, np.bool_)

    @override
    def choose(self, view: View) -> NDArray[np.integer[Any]]:
        """(N,) legal actions; InvalidOptionError if there are other kinds of plans than where it was trained."""
        if view.legal.shape[1] != 1 + self.kinds:
            raise InvalidOptionError(
                f"The policy knows {self.kinds} kinds of plans, and here there are {view.legal.shape[1] - 1}: "
                "only plans of suites with growing tables leave headroom. Train it on this suite."
            )
        more: dict[str, Any] = (
            {"action_masks": view.legal} if isinstance(self.policy, MaskableActorCriticPolicy) else {}
        )
        with one_thread():
            actions, self._state = self.policy.predict(
                self._inputs.of(view), state=self._state, episode_start=self._starts, deterministic=True, **more
            )
        self._starts = np.zeros(view.count, np.bool_)
        return legal_actions(actions, view.legal, view.must_plan)


class ReplanningPpoLearner(AlgorithmLearner):
    """An algorithm of Stable-Baselines3 in training on `EmbeddingReplanning-v0`, in many environments at once.

    An iteration plays an episode of a random task in each environment, with an update after each week. The reward is
    "excess", in days at the reference cost.

    Args:
        suite, cost_model, seed: see `Learner`; a suite of replanning.
        name: "ppo", "maskable-ppo" or "recurrent-ppo".
        iterations: the number of iterations.
        num_envs: environments stepped together, at least 2.
        learning_rate: Adam's at the start; it falls to zero, linearly.
        width: of the network's layers.

    Raises:
        InvalidOptionError: an option is out of range, or the suite is of another problem.
    """

    answers_quickly = False  # seconds for an episode

    def __init__(
        self,
        suite: DriftSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "ppo",
        iterations: int = 93,
        num_envs: int = 32,
        learning_rate: float = 1e-3,
        width: int = 64,
    ) -> None:
        if not isinstance(suite, DriftSuite):
            raise wrong_kind("suite", suite, f"a suite of replanning for agent {name!r}, such as drift-strong-30")
        super().__init__(suite, make_sharding_cost_model(cost_model), seed)
        self.name, algorithm = name, ALGORITHMS[name]
        self.iterations = checked_count("iterations", iterations)
        self.width = checked_count("width", width, most=MAX_UNITS)
        count, rate = checked_count("num_envs", num_envs, least=2), checked_learning_rate(learning_rate)
        self._env = PolicyVecEnv(count, suite=suite, split=suite.split, cost_model=self.cost_model.model)
        self._model = self._new_model(
            algorithm.kind,
            algorithm.policy,
            self._env,
            rate,
            n_steps=ROLLOUT,
            batch_size=ROLLOUT * count // MINIBATCHES,
            policy_kwargs=algorithm.network(self.width),
            **ARGUMENTS,
        )
        with torch.no_grad():
            self._model.policy.action_net.bias[0] = KEEP

    @property
    @override
    def true_cost_queries(self) -> int:
        """Hours played, each of which has one cost."""
        return self.iteration * DECISIONS * self._env.num_envs

    @override
    def iterate(self) -> Report:
        self.on_stage("playing episodes")
        ended = train(self._model, self._seed(1), DECISIONS * self._env.num_envs)
        seconds = [sum(info[key] for key in SECONDS) for info in ended]
        plans = [info["plans"] for info in ended]
        return Report(1e3 * float(np.mean(seconds)), {"plans": float(np.mean(plans))})

    @override
    def weights(self) -> Arrays:
        return module_arrays(self._model.policy)

    @override
    def about(self) -> dict[str, Any]:
        return {"problem": "replanning", "kinds": int(self._model.action_space.n) - 1, "width": self.width}

    @override
    def agent(self) -> PolicyReplanner:
        policy = _new_policy(self.name, int(self._model.action_space.n) - 1, self.width)
        load_module_arrays(policy, self.weights(), "The agent")
        return PolicyReplanner(self.name, policy)


def load_policy(arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int) -> PolicyReplanner:
    """The trained agent in the arrays and the metadata of a file; the errors are those of `load_agent`."""
    name, kinds = about.get("agent"), network_size(about, "kinds", len(KINDS))
    if name not in ALGORITHMS:
        raise InvalidCheckpointError(f"It is of the algorithm {short_repr(name)}; known are {[*ALGORITHMS]}.")
    policy = _new_policy(name, kinds, network_size(about, "width", MAX_UNITS))
    load_module_arrays(policy, arrays, "The agent")
    return PolicyReplanner(name, policy)


def _new_policy(name: str, kinds: int, width: int) -> Any:
    """A policy that does not train, with random weights."""
    algorithm = ALGORITHMS[name]
    with global_generators_kept():
        actions = spaces.Discrete(1 + kinds)
        policy = algorithm.policy(input_space(kinds), actions, lambda _: 0.0, **algorithm.network(width))
    policy.set_training_mode(False)
    return policy
