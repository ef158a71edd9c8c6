"""Agents that forecast what a new plan saves, and make it when it saves more than a pause takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.base import Floats, IntArray, ReplacementAgent, View
from shard_gym.agents.replacement.plan_table import PlanTable
from shard_gym.envs.replacement.observation import NUM_WINDOWS
from shard_gym.envs.replacement.windows import HOURS

SEASONAL = ((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0))
"""Weights of the windows: the next 12 hours are as they were yesterday, later ones like the last three days."""

SOON_DAYS, LATER_DAYS = 0.5, 3
"""The first part of a forecast, and what the weights of the second are fitted to."""

SAMPLES = 2_000
"""Drawn from each episode to fit weights."""

RIDGE = 1e-3
"""Penalty of the squares of the weights, in variances of the inputs."""


class Forecaster(ReplacementAgent):
    """Makes the plan that saves most in the days ahead, when that is more than `factor` pauses.

    What a plan saves in a day is forecast by a weighted sum of what it would have saved in each window, with one set of
    weights for the next 12 hours and another for the days after.

    Args:
        weights: (2, W), of the windows, for the next 12 hours and for later.
        days: how far the forecast goes, at most to the end of the episode.
        factor: a plan must save so many pauses.
        kinds: those that it chooses from, indices in `shard_gym.envs.replacement.windows.KINDS`.
    """

    def __init__(
        self, weights: Sequence[Sequence[float]], days: float, factor: float, kinds: Sequence[int] = range(NUM_WINDOWS)
    ) -> None:
        self._soon, self._later = np.asarray(weights, np.float64)
        self._days, self._factor, self._actions = days, factor, 1 + np.asarray(kinds, np.int64)

    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        """See `ReplacementAgent`."""
        savings = self._savings(view)
        best = savings.argmax(axis=1)
        worth = savings[np.arange(view.count), best] > self._factor * view.pause
        return worth, self._actions[best]

    def _savings(self, view: View) -> Floats:
        """(N, Z) days at the reference cost that each plan saves."""
        days = np.minimum(self._days, view.days_left)[:, None]
        each = np.stack([view.replayed[:, 0] - view.candidate(action) for action in self._actions.tolist()], axis=1)
        soon = np.minimum(days, SOON_DAYS)
        return np.asarray(each @ self._soon * soon + each @ self._later * (days - soon))


def fitted_weights(tables: Sequence[PlanTable], seed: int = 0) -> list[list[float]]:
    """(2, W) weights of a `Forecaster`, by ridge regression: what plans saved from what they would have saved before.

    For random decisions, plans in action and new plans of the tables; the targets are the mean saving in the next 12
    hours, and in the two and a half days after these.

    Args:
        tables: of the episodes to learn from.
        seed: of the samples.
    """
    rng, inputs, targets = np.random.default_rng(seed), [], []
    soon, later = int(SOON_DAYS * HOURS), LATER_DAYS * HOURS
    for table in tables:
        decisions = len(table.number)
        decision = rng.integers(HOURS, decisions - later, SAMPLES)
        earlier = rng.integers(0, decision)
        old = table.number[earlier, rng.integers(NUM_WINDOWS, size=SAMPLES)]
        new = table.number[decision, rng.integers(NUM_WINDOWS, size=SAMPLES)]
        hours = decision[:, None] + np.arange(later)
        saved = (table.seconds[old[:, None], hours] - table.seconds[new[:, None], hours]) * HOURS / table.day_s
        inputs.append(table.replayed[old, decision] - table.replayed[new, decision])
        targets.append(np.stack([saved[:, :soon].mean(axis=1), saved[:, soon:].mean(axis=1)], axis=1))
    x, y = np.concatenate(inputs).astype(np.float64), np.concatenate(targets)
    runs = np.isfinite(y).all(axis=1) & np.isfinite(x).all(axis=1)  # both plans, all the time
    x, y = x[runs], y[runs]
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * x.var() * np.eye(NUM_WINDOWS), x.T @ y)
    found: list[list[float]] = weights.T.tolist()
    return found
