"""Rewards: functions of a step's `Transition`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError, short_repr, unknown_name, wrong_kind
from shard_gym.cost_models.base import COMPUTE
from shard_gym.envs.core.episode_state import DEAD_END, PlacementState
from shard_gym.envs.core.problem import EnvProblem
from shard_gym.envs.core.state import current_rows


@dataclass
class Transition:
    """The input of a reward; all arrays are (N,). It is not frozen, because that takes half a microsecond a step."""

    cost_before_ms: FloatArray  #: float64, cost of the tables placed before the step
    cost_after_ms: FloatArray  #: float64, cost of the tables placed after it
    over: NDArray[np.bool_]  #: bool, the episode ended with this step
    failed: NDArray[np.bool_]  #: bool, it ended without a valid placement
    penalty_ms: FloatArray  #: float64, cost charged for a failure
    lower_bound_ms: FloatArray  #: float64, lower bound on the cost of every placement of the task
    redirected: NDArray[np.bool_]  #: bool, the action was illegal, and the table went elsewhere (`illegal="redirect"`)
    actions: NDArray[np.integer[Any]]  #: integers, those that were done
    problem: EnvProblem  #: the tasks
    #: After the step. It is the environment's own, like `actions` and `problem`: do not change it, and copy what you
    #: keep.
    state: PlacementState

    @property
    def final_cost_ms(self) -> FloatArray:
        """(N,) float64, the cost charged if the episode ends here: after a failure the penalty."""
        return np.where(self.failed, self.penalty_ms, self.cost_after_ms)


REDIRECTED = 0.05
"""The cost of a redirected action, in multiples of the task's lower bound."""


@runtime_checkable
class Reward(Protocol):
    """Maps a transition to rewards."""

    def __call__(self, transition: Transition) -> FloatArray:
        """(N,) float64 rewards."""


def terminal(transition: Transition) -> FloatArray:
    """(N,) float64, ms: 0 until the episode ends, then minus its cost (DreamShard, section 3.2)."""
    rewards = np.zeros(len(transition.over))
    if np.count_nonzero(transition.over):  # in nearly no step of a single environment
        rewards = np.where(transition.over, -transition.final_cost_ms, 0.0)
    return _less_redirected(transition, rewards, transition.lower_bound_ms)


def dense(transition: Transition) -> FloatArray:
    """(N,) float64, ms: minus what the step added to the cost; the sum over an episode is that of `terminal`."""
    after = np.where(transition.over, transition.final_cost_ms, transition.cost_after_ms)
    return _less_redirected(transition, transition.cost_before_ms - after, transition.lower_bound_ms)


def normalized(transition: Transition) -> FloatArray:
    """(N,) float64: 0 until the episode ends, then minus its cost divided by the task's lower bound; at most -1."""
    rewards = np.zeros(len(transition.over))
    if np.count_nonzero(transition.over):
        if not (transition.lower_bound_ms[transition.over] > 0).all():
            raise InvalidOptionError(
                "The reward 'normalized' divides by the task's lower bound, and the cost model says that it is 0. Use "
                "the reward 'terminal'."
            )
        rewards = np.where(transition.over, -transition.final_cost_ms / transition.lower_bound_ms, 0.0)
    return _less_redirected(transition, rewards, 1.0)


def balance(transition: Transition) -> FloatArray:
    """(N,) float64: 0 until the episode ends, then the least compute time of a device divided by the largest.

    AutoShard's reward (KDD 2022; daochenzha/autoshard, autoshard/bench.py): it is at most 1, and a device without
    tables gives 0. A failure is charged the memory that was missing, as a share of the largest device's: on the device
    that the action chose, in a dead end on the one that lacks the least; 1 if memory was not the reason. Theirs is
    charged once all tables are placed. It does not see communication, and equally slow devices are worth as much as
    fast ones.
    """
    rewards = np.zeros(len(transition.over))
    for env in np.flatnonzero(transition.over).tolist():
        rewards[env] = -_memory_missing(transition, env) if transition.failed[env] else _balance(transition, env)
    return _less_redirected(transition, rewards, 1.0)


def _balance(transition: Transition, env: int) -> float:
    real = transition.problem.cluster.device_mask[env]
    compute = transition.state.phases_ms[env][real][:, COMPUTE].sum(axis=-1)
    return float(compute.min() / compute.max()) if compute.max() > 0 else 0.0


def _memory_missing(transition: Transition, env: int) -> float:
    problem, state = transition.problem, transition.state
    needed = problem.tables.memory.reshape(-1)[current_rows(problem, state)[env]]
    caps = problem.memory_cap[env]
    real = problem.cluster.device_mask[env]
    missing = (state.memory_used[env] + needed - caps) / caps.max()
    if state.status[env] == DEAD_END:
        return float(max(missing[real].min(), 0.0))
    action = int(transition.actions[env])
    lacks = action < len(real) and real[action] and missing[action] > 0
    return float(missing[action]) if lacks else 1.0


def checked_rewards(reward: Reward, transition: Transition) -> FloatArray:
    """The rewards that a custom function returns as a new (N,) float64 array, or () for the same of all."""
    rewards: Any = reward(transition)
    count = len(transition.over)
    try:
        checked = np.array(rewards, np.float64)
    except (TypeError, ValueError) as error:
        raise _wrong_rewards(reward, rewards, count) from error
    if rewards is None or checked.shape not in ((count,), ()) or not np.isfinite(checked).all():
        raise _wrong_rewards(reward, rewards, count)
    return checked


def _wrong_rewards(reward: Reward, rewards: Any, count: int) -> InvalidOptionError:
    name = getattr(reward, "__name__", type(reward).__name__)
    return InvalidOptionError(
        f"The reward {name!r} must return {count} finite numbers, one for each environment, not {short_repr(rewards)}."
    )


def _less_redirected(transition: Transition, rewards: FloatArray, unit: FloatArray | float) -> FloatArray:
    if not np.count_nonzero(transition.redirected):
        return rewards
    return rewards - REDIRECTED * unit * transition.redirected


REWARDS: dict[str, Reward] = {"terminal": terminal, "dense": dense, "normalized": normalized, "balance": balance}


def make_reward(reward: str | Reward) -> Reward:
    """The reward named `reward`; an object is returned as it is."""
    if not isinstance(reward, str):
        if isinstance(reward, type) or not isinstance(reward, Reward):
            raise wrong_kind("reward", reward, f"the name of one, {sorted(REWARDS)}, or a function of a Transition")
        return reward
    if reward not in REWARDS:
        raise unknown_name("reward", reward, REWARDS)
    return REWARDS[reward]
