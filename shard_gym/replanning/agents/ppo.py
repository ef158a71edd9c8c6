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
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn, VecEnvWrapper
from typing_extensions import override

from shard_gym.agents.sb3.learner import AlgorithmLearner, global_generators_kept, train
from shard_gym.agents.sb3.vec_env import ReplanningVecEnv
from shard_gym.agents.training import Report
from shard_gym.agents.training.torch_arrays import load_module_arrays, module_arrays, network_size
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import MAX_UNITS, checked_count, checked_learning_rate
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, short_repr, wrong_kind
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.system import one_thread
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.replanning.agents.base import ReplanningAgent, View
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.env.episode_data import DECISIONS
from shard_gym.replanning.env.history import SECONDS
from shard_gym.replanning.env.observation import NUM_WINDOWS
from shard_gym.replanning.env.windows import HOURS, KINDS, LAST_DAYS, LAST_HOUR, WINDOWS

HORIZON_DAYS = 3.0  # savings are counted for so many days, or to the end of the episode
MOST = 20.0  # inputs are cut there; where a pause is long, they are near 1

PER_PLAN = NUM_WINDOWS + 2
"""Inputs of each plan: what it would have saved in each window, and since the last plan; whether it is legal."""

SHARED = 10  # other inputs: days left, time since the plan, clock, devices, the pause, whether a plan must be made


def input_space(kinds: int) -> spaces.Box:
    """The space of the inputs of one episode with so many kinds of plans: those of each plan, then the shared ones."""
    return spaces.Box(-MOST, MOST, (kinds * PER_PLAN + SHARED,), np.float32)


class PolicyInputs:
    """Makes the inputs at each decision of N episodes, and adds up what each kind of plan would have saved."""

    def __init__(self) -> None:
        self._regret: FloatArray = np.zeros((0, 0))

    def begin(self, count: int, kinds: int) -> None:
        """N episodes begin."""
        self._regret = np.zeros((count, kinds))

    def of(self, view: View) -> NDArray[np.float32]:
        """(N, F) inputs; to be called once for each decision. An episode whose first decision it is begins anew."""
        kinds = view.legal.shape[1] - 1
        candidates = np.stack([view.candidate(action) for action in range(1, 1 + kinds)], axis=1)
        saved, pause = view.replayed[:, :1] - candidates, view.pause[:, None]
        fresh = view.since_plan[:, None] < 1.5 / HOURS
        hour = np.where(view.since_plan[:, None] > 0, saved[..., LAST_HOUR] / HOURS, 0.0)
        self._regret = np.where(fresh, 0.0, self._regret) + hour
        days = np.minimum(view.days_left, HORIZON_DAYS)[:, None]
        plans = np.concatenate(
            [
                np.arcsinh(saved * (days / pause)[..., None]),
                np.arcsinh(self._regret / pause)[..., None],
                view.legal[:, 1:, None],
            ],
            axis=-1,
        )
        shared = [
            view.days_left / 7.0 - 1.0,
            np.exp(-2.0 * view.since_plan),
            *view.clock.T,
            2.0 * (view.available - view.used),
            2.0 * (1.0 - view.available),
            np.log(view.pause),
            view.must_plan,
        ]
        found = np.concatenate([plans.reshape(view.count, -1), np.stack(shared, axis=1)], axis=1)
        return np.asarray(np.clip(found, -MOST, MOST), np.float32)


class PolicyVecEnv(VecEnvWrapper):
    """N episodes of `EmbeddingReplanning-v0` whose observations are `PolicyInputs`, with tasks drawn from the suite.

    Rewards are "excess", in days at the reference cost. Actions are those of `legal_actions`. The last infos of an
    episode are those of the environment, without `"terminal_observation"`. `options` are its other arguments.
    """

    def __init__(self, num_envs: int, **options: Any) -> None:
        envs = ReplanningVecEnv(num_envs, reward="excess", **options)
        self._inputs, self._kinds = PolicyInputs(), envs.envs.episodes.num_actions - 1
        self._view: View | None = None
        super().__init__(envs, input_space(self._kinds))

    def reset(self) -> NDArray[np.float32]:
        """Begin N episodes."""
        seen = self.venv.reset()
        assert isinstance(seen, dict)
        self._inputs.begin(self.num_envs, self._kinds)
        self._view = View.of(seen)
        return self._inputs.of(self._view)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Send the actions."""
        assert self._view is not None  # SB3 resets first
        self.venv.step_async(legal_actions(actions, self._view.legal, self._view.must_plan))

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments."""
        seen, rewards, dones, infos = self.venv.step_wait()
        assert isinstance(seen, dict)
        for info in infos:
            info.pop("terminal_observation", None)
        self._view = View.of(seen)
        return self._inputs.of(self._view), rewards / np.float32(HOURS), dones, infos


def legal_actions(
    actions: NDArray[np.integer[Any]], legal: NDArray[np.bool_], must_plan: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(N,) what is done: a plan without room for growth where there is none; for three days where one must be made.

    To keep a plan that cannot go on is to make one for the last three days, with room for growth where there is some.
    """
    repair = legal.shape[1] - len(WINDOWS) + LAST_DAYS
    chosen = np.where(must_plan & (actions == 0), repair, actions)
    ours = legal[np.arange(len(chosen)), chosen]
    return np.where(ours, chosen, (chosen - 1) % len(WINDOWS) + 1)


KEEP = 4.0
"""Logit of the action that keeps the plan, at the start: with four kinds of plans, one is made every 15 hours."""

ROLLOUT = DECISIONS // 2  # decisions of each environment between two updates: a week
MINIBATCHES = 4  # minibatches of each epoch

ARGUMENTS: dict[str, Any] = {"n_epochs": 5, "gamma": 0.995, "gae_lambda": 0.95, "ent_coef": 0.0}
"""A plan pays off within days, so the future counts for 200 hours. The time left is among the inputs."""


class ReplanningAlgorithm(NamedTuple):
    """A class of Stable-Baselines3, its policy, and how its network is built from a width."""

    kind: Callable[..., Any]
    policy: type[Any]
    network: Callable[[int], dict[str, Any]]


def _perceptron(width: int) -> dict[str, Any]:
    return {"net_arch": [width, width]}


def _recurrent(width: int) -> dict[str, Any]:
    """The actor remembers; the critic does not need to."""
    return {"net_arch": [width], "lstm_hidden_size": max(width // 2, 1), "enable_critic_lstm": False}


ALGORITHMS: dict[str, ReplanningAlgorithm] = {
    "ppo": ReplanningAlgorithm(PPO, ActorCriticPolicy, _perceptron),
    "maskable-ppo": ReplanningAlgorithm(MaskablePPO, MaskableActorCriticPolicy, _perceptron),
    "recurrent-ppo": ReplanningAlgorithm(RecurrentPPO, RecurrentActorCriticPolicy, _recurrent),
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
        super().__init__(suite, make_cost_model(cost_model, additive=True, splits=True), seed)
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
