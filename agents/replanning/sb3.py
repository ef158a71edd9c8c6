"""PPO, MaskablePPO and RecurrentPPO on `EmbeddingReplanning-v0`: training, and the policy as a player.

Their networks are the stock ones of Stable-Baselines3 over `PolicyInputs`; training begins with a policy that keeps the
plan in nearly all hours. Needs the extra `sb3`; import it where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from shard_gym.agents.replanning.base import View
from shard_gym.agents.replanning.policy_inputs import PolicyInputs, input_space
from shard_gym.agents.replanning.training_envs import legal_actions
from shard_gym.agents.sb3.learner import global_generators_kept
from shard_gym.agents.training.torch_arrays import load_module_arrays, module_arrays, network_size
from shard_gym.checks import checked_count, checked_learning_rate, checked_seed
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.windows import KINDS
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, short_repr, unknown_name
from shard_gym.io.arrays import load_arrays, save_arrays
from shard_gym.system import one_thread

KIND = "replanning-policy"
"""Of the files."""

STEPS = 1_000_000
"""Decisions of all environments together; one to three minutes on one core with `TableVecEnv`."""

KEEP = 4.0
"""Logit of the action that keeps the plan, at the start: with four kinds of plans, one is made every 15 hours."""

ROLLOUT = DECISIONS // 2
"""Decisions of each environment between two updates: a week."""

MINIBATCHES = 4
"""Of each of the epochs."""

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

MAX_WIDTH = 2**12
"""The widest network that is loaded from a file."""


class Sb3Player:
    """A player that takes the most likely action of a policy, in the sense of `legal_actions`.

    Attributes:
        name: of the algorithm, in `ALGORITHMS`.
        policy: of Stable-Baselines3, over `PolicyInputs`.
        width: of its layers.
    """

    def __init__(self, name: str, policy: Any, width: int) -> None:
        self.name, self.policy, self.width = name, policy, width
        self._inputs, self._state, self._starts = PolicyInputs(), None, np.ones(0, np.bool_)

    @property
    def kinds(self) -> int:
        """Z, the kinds of plans that it knows."""
        return int(self.policy.action_space.n) - 1

    def begin(self, count: int) -> None:
        """See `Player`."""
        self._inputs.begin(count, self.kinds)
        self._state, self._starts = None, np.ones(count, np.bool_)

    def act(self, observations: ObservationDict) -> NDArray[np.integer[Any]]:
        """See `Player` and `choose`."""
        return self.choose(View.of(observations))

    def choose(self, view: View) -> NDArray[np.integer[Any]]:
        """(N,) legal actions.

        Raises:
            InvalidOptionError: it was trained where tables grow and these do not, or the other way round.
        """
        if view.legal.shape[1] != 1 + self.kinds:
            raise InvalidOptionError(
                f"The policy knows {self.kinds} kinds of plans, and here there are {view.legal.shape[1] - 1}. Train it "
                "on a suite of the same kind, or set headroom of the environment."
            )
        more: dict[str, Any] = {"action_masks": view.legal} if self.name == "maskable-ppo" else {}
        with one_thread():
            actions, self._state = self.policy.predict(
                self._inputs.of(view), state=self._state, episode_start=self._starts, deterministic=True, **more
            )
        self._starts = np.zeros(view.count, np.bool_)
        return legal_actions(actions, view.legal, view.must_plan)


def train(
    name: str,
    envs: VecEnv,
    *,
    steps: int = STEPS,
    learning_rate: float = 1e-3,
    width: int = 64,
    seed: int = 0,
    on_update: Callable[[int, Sb3Player], None] | None = None,
) -> Sb3Player:
    """The player that an algorithm learns in some environments.

    Args:
        name: of the algorithm, in `ALGORITHMS`.
        envs: a `TableVecEnv` or `PlayedVecEnv`.
        steps: decisions of all environments together; rounded up to whole weeks of all of them.
        learning_rate: Adam's at the start; it falls to zero, linearly.
        width: of the layers.
        seed: of the first weights and of all that is drawn. Equal seeds give equal players on one machine.
        on_update: called before each update, with the number of steps done and the player as it is then.

    Raises:
        UnknownNameError: there is no such algorithm.
        InvalidOptionError: an option is out of range.
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    algorithm, rate = ALGORITHMS[name], checked_learning_rate(learning_rate)
    total = checked_count("steps", steps)
    with one_thread(), global_generators_kept():
        model: Any = algorithm.kind(
            algorithm.policy,
            envs,
            learning_rate=lambda left: rate * max(left, 0.0),
            n_steps=ROLLOUT,
            batch_size=ROLLOUT * envs.num_envs // MINIBATCHES,
            policy_kwargs=algorithm.network(checked_count("width", width, most=MAX_WIDTH)),
            seed=checked_seed(seed),
            device="cpu",
            **ARGUMENTS,
        )
        with torch.no_grad():
            model.policy.action_net.bias[0] = KEEP
        model.set_logger(Logger(None, []))  # SB3's default logger makes a temporary folder
        player = Sb3Player(name, model.policy, width)
        model.learn(total, callback=_Reports(on_update, player) if on_update else None, log_interval=None)
    model.policy.set_training_mode(False)
    return player


class _Reports(BaseCallback):
    """Tells of the player before each update."""

    def __init__(self, on_update: Callable[[int, Sb3Player], None], player: Sb3Player) -> None:
        super().__init__()
        self._on_update, self._player = on_update, player

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._on_update(self.num_timesteps, self._player)


def save_player(path: Path, player: Sb3Player) -> None:
    """Write the weights of a player.

    Raises:
        UnwritablePathError: the file cannot be written.
    """
    about = {"algorithm": player.name, "kinds": player.kinds, "width": player.width}
    save_arrays(path, KIND, module_arrays(player.policy), about)


def load_player(path: Path) -> Sb3Player:
    """The player that `save_player` wrote; nothing is unpickled.

    Raises:
        InvalidCheckpointError: the file is damaged, or no such file.
    """
    arrays, about = load_arrays(path, KIND)
    name, kinds = about.get("algorithm"), network_size(about, "kinds", len(KINDS))
    if name not in ALGORITHMS:
        raise InvalidCheckpointError(f"{path} is of the algorithm {short_repr(name)}; known are {[*ALGORITHMS]}.")
    algorithm, width = ALGORITHMS[name], network_size(about, "width", MAX_WIDTH)
    with global_generators_kept():
        actions = spaces.Discrete(1 + kinds)
        policy = algorithm.policy(input_space(kinds), actions, lambda _: 0.0, **algorithm.network(width))
    load_module_arrays(policy, arrays, str(path))
    policy.set_training_mode(False)
    return Sb3Player(name, policy, width)
