"""The inputs of policies of replanning that are trained by gradients: what each plan would save, in pauses."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shard_gym.agents.replanning.base import Floats, View
from shard_gym.envs.replanning.observation import NUM_WINDOWS
from shard_gym.envs.replanning.windows import HOURS, LAST_HOUR

HORIZON_DAYS = 3.0
"""Savings are counted for so many days, or to the end of the episode."""

MOST = 20.0
"""Inputs are cut there; where a pause is long, they are near 1."""

PER_PLAN = NUM_WINDOWS + 2
"""Inputs of each plan: what it would have saved in each window, and since the last plan; whether it is legal."""

SHARED = 10
"""Other inputs: days left, time since the plan, clock, devices, the pause, whether a plan must be made."""


def input_space(kinds: int) -> spaces.Box:
    """The space of the inputs of one episode with so many kinds of plans: those of each plan, then the shared ones."""
    return spaces.Box(-MOST, MOST, (kinds * PER_PLAN + SHARED,), np.float32)


class PolicyInputs:
    """Makes the inputs at each decision of N episodes. It adds up what each kind of plan would have saved since the
    last plan, which a single observation does not tell.
    """

    def __init__(self) -> None:
        self._regret: Floats = np.zeros((0, 0))

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
