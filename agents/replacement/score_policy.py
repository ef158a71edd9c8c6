"""A learned policy of re-placement: a small network scores each plan that can be made; the best is made if above 0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.base import Floats, IntArray, ReplacementAgent, View
from shard_gym.envs.replacement.observation import NUM_WINDOWS
from shard_gym.envs.replacement.windows import HOURS, LAST_HOUR

HIDDEN = 6
"""Units of the network."""

NUM_FEATURES = NUM_WINDOWS + 3 + 4 + 3 + NUM_WINDOWS

NUM_WEIGHTS = NUM_FEATURES * HIDDEN + 2 * HIDDEN + 1

HORIZON_DAYS = 3.0
"""Savings are counted for so many days, or to the end of the episode."""


class Situation(NamedTuple):
    """What the policy knows at a decision in N episodes; of Z plans and W windows. Costs in multiples of a reference.

    Attributes:
        saved: (..., N, Z, W) what each plan would have saved in each window.
        regret: (..., N, Z) days at the reference cost that each kind of plan would have saved since the last plan.
        since: (..., N) days since then.
        pause: (N,) as a share of a day.
        days_left: (N,) or a number, until the episode is over.
        clock: (N, 4) sine and cosine of the hour of the day, and of the week.
        available, used: (..., N) shares of the devices that are there, and that the plan in action is made for.
    """

    saved: NDArray[np.floating]
    regret: NDArray[np.floating]
    since: NDArray[np.floating]
    pause: Floats
    days_left: Floats | float
    clock: Floats
    available: Floats
    used: Floats


def features(now: Situation) -> NDArray[np.float32]:
    """(..., N, Z, F) inputs of the network."""
    shape, pause = now.saved.shape[:-1], now.pause[..., None]
    found = np.zeros((*shape, NUM_FEATURES), np.float32)
    days = np.minimum(now.days_left, HORIZON_DAYS)
    days = np.asarray(days)[..., None, None] if np.ndim(days) else days
    found[..., :NUM_WINDOWS] = np.arcsinh(now.saved * days / pause[..., None])
    each = [
        np.arcsinh(now.regret / pause),
        np.broadcast_to(np.asarray(now.days_left)[..., None] / 7.0 - 1.0, shape),
        np.broadcast_to(np.exp(-2.0 * now.since)[..., None], shape),
        *(np.broadcast_to(now.clock[..., None, column], shape) for column in range(4)),
        np.broadcast_to(2.0 * (now.available - now.used)[..., None], shape),
        np.broadcast_to(2.0 * (1.0 - now.available)[..., None], shape),
        np.broadcast_to(np.log(pause), shape),
    ]
    found[..., NUM_WINDOWS:-NUM_WINDOWS] = np.stack(each, axis=-1)
    for kind in range(shape[-1]):
        found[..., kind, NUM_FEATURES - NUM_WINDOWS + kind % NUM_WINDOWS] = 1.0
    return found


def scores(weights: NDArray[np.floating], inputs: NDArray[np.float32]) -> NDArray[np.floating]:
    """(M, N, Z) scores of (M, N, Z, F) inputs by M networks of (M, `NUM_WEIGHTS`) weights."""
    count, rows = len(weights), inputs.reshape(len(inputs), -1, NUM_FEATURES)
    ends = np.cumsum([NUM_FEATURES * HIDDEN, HIDDEN, HIDDEN])
    first, bias, last, offset = np.split(weights, ends, axis=1)
    hidden = np.tanh(rows @ first.reshape(count, NUM_FEATURES, HIDDEN) + bias[:, None])
    found = (hidden @ last[..., None])[..., 0] + offset
    return np.asarray(found.reshape(inputs.shape[:-1]))


class ScorePolicy(ReplacementAgent):
    """The agent that acts by `scores`.

    Where a plan can leave room for growth, it makes that one.

    Args:
        weights: (`NUM_WEIGHTS`,) of the network.
    """

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        self._regret: Floats = np.zeros((0, NUM_WINDOWS))

    def begin(self, count: int) -> None:
        """See `ReplacementAgent`."""
        self._regret = np.zeros((count, NUM_WINDOWS))

    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        """See `ReplacementAgent`."""
        actions = np.arange(view.legal.shape[1] - NUM_WINDOWS, view.legal.shape[1])  # those with headroom, if any
        candidates = np.stack([view.candidate(action) for action in actions.tolist()], axis=1)
        saved = view.replayed[:, :1] - candidates
        grown = self._regret + saved[..., LAST_HOUR] / HOURS
        self._regret = np.where(view.since_plan[:, None] > 0, grown, 0.0)
        now = Situation(
            saved,
            self._regret,
            view.since_plan,
            view.pause,
            view.days_left,
            view.clock,
            view.available,
            view.used,
        )
        score = scores(self._weights[None], features(now)[None])[0]
        best = score.argmax(axis=1)
        worth: NDArray[np.bool_] = score[np.arange(view.count), best] > 0
        self._regret[worth | view.must_plan] = 0.0
        return worth, actions[best]
