"""Agents that forecast what a new plan saves, and make it when it saves more than a pause takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.replanning.base import ReplanningAgent, View
from shard_gym.cost_models.base import FloatArray, IntArray
from shard_gym.envs.replanning.observation import NUM_WINDOWS
from shard_gym.envs.replanning.plan_table import PlanTable
from shard_gym.envs.replanning.windows import HOURS

SEASONAL = ((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0))
"""Weights of the windows: the next 12 hours are as they were yesterday, later ones like the last three days."""

SOON_DAYS, LATER_DAYS = 0.5, 3  # the first part of a forecast, and what the weights of the second are fitted to
SAMPLES = 2_000  # drawn from each episode to fit weights
RIDGE = 1e-3  # penalty of the squares of the weights, in variances of the inputs


class Forecaster(ReplanningAgent):
    """Makes the plan that saves most in the days ahead by a forecast, when that is more than a pause.

    The forecast is a weighted sum of what the plan would have saved in each window. There is one set of weights for the
    next 12 hours, and another for the days after.

    Args:
        days: how far the forecast goes, at most to the end of the episode.
        kinds: those of the plans that it chooses from, a list; they have the same numbers as `kind` of other agents.
        weights: (2, W), of the windows, for the next 12 hours and for later.
    """

    def __init__(
        self, days: float, kinds: Sequence[int] = range(NUM_WINDOWS), weights: Sequence[Sequence[float]] = SEASONAL
    ) -> None:
        self.days, self.weights = days, np.asarray(weights, np.float64)
        self._actions = 1 + np.asarray(kinds, np.int64)

    @override
    def decide(self, view: View) -> tuple[NDArray[np.bool_], IntArray]:
        saved = np.stack([view.replayed[:, 0] - view.candidate(action) for action in self._actions.tolist()], axis=1)
        savings = self.savings(saved, view.days_left)
        best = savings.argmax(axis=1)
        worth = savings[np.arange(view.count), best] > view.pause
        return worth, self._actions[best]

    def savings(self, saved: FloatArray, days_left: FloatArray) -> FloatArray:
        """(N, Z) days at the reference cost that each of Z plans saves in N episodes.

        It would have saved (N, Z, W) `saved` in each window, in multiples of the reference cost; (N,) `days_left`
        remain.
        """
        rates = saved @ self.weights.T
        all_days = np.minimum(self.days, days_left)[:, None]
        soon = np.minimum(all_days, SOON_DAYS)
        return np.asarray(rates[..., 0] * soon + rates[..., 1] * (all_days - soon))


class Samples(NamedTuple):
    """What n new plans would have saved before, and what they saved then."""

    saved: FloatArray  #: (n, W) in each window before, in multiples of the reference cost
    targets: FloatArray  #: (n, 2) mean saving in the next 12 hours, and in the two and a half days after these


def draw_samples(tables: Sequence[PlanTable], seed: int = 0) -> Samples:
    """Random decisions, plans in action and new plans of the tables, where both run for the three days."""
    rng, drawn = np.random.default_rng(seed), []
    soon, later = int(SOON_DAYS * HOURS), LATER_DAYS * HOURS
    for table in tables:
        decision = rng.integers(HOURS, len(table.number) - later, SAMPLES)
        earlier = rng.integers(0, decision)
        old = table.number[earlier, rng.integers(NUM_WINDOWS, size=SAMPLES)]
        window = rng.integers(NUM_WINDOWS, size=SAMPLES)
        new, hours = table.number[decision, window], decision[:, None] + np.arange(later)
        gained = (table.seconds[old[:, None], hours] - table.seconds[new[:, None], hours]) * HOURS / table.day_s
        found = Samples(
            (table.replayed[old, decision] - table.replayed[new, decision]).astype(np.float64),
            np.stack([gained[:, :soon].mean(axis=1), gained[:, soon:].mean(axis=1)], axis=1),
        )
        runs = np.isfinite(found.saved).all(axis=1) & np.isfinite(found.targets).all(axis=1)
        drawn.append([part[runs] for part in found])
    return Samples(*(np.concatenate(parts) for parts in zip(*drawn, strict=True)))


def fitted_weights(samples: Samples) -> list[list[float]]:
    """(2, W) weights of a `Forecaster` by ridge regression: what plans saved from what they would have saved before."""
    x = samples.saved
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * x.var() * np.eye(NUM_WINDOWS), x.T @ samples.targets)
    found: list[list[float]] = weights.T.tolist()
    return found
