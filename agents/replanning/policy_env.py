"""What policies of replanning see and do in Stable-Baselines3: their inputs, actions and environments; needs `sb3`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn, VecEnvWrapper

from shard_gym.agents.replanning.base import View
from shard_gym.agents.sb3.vec_env import ReplanningVecEnv
from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.replanning.observation import NUM_WINDOWS
from shard_gym.envs.replanning.windows import HOURS, LAST_DAYS, LAST_HOUR, WINDOWS

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
