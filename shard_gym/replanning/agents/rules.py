"""Rules that decide when to make a plan: periods, thresholds, ski rental, detectors of change, and forecasters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import missing_extra
from shard_gym.replanning.agents.base import OneKind, ReplanningAgent, View
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.env.observation import NUM_WINDOWS
from shard_gym.replanning.env.plan_table import PlanTable
from shard_gym.replanning.env.windows import HOURS, INTERVALS_PER_HOUR, KINDS, LAST_HOUR

BoolArray = NDArray[np.bool_]


class Never(OneKind):
    """Keeps its plan, until it must make one."""

    @override
    def is_due(self, view: View) -> BoolArray:
        return np.zeros(view.count, np.bool_)


class EveryHours(OneKind):
    """Makes a plan every so many hours; 1 is always.

    Args:
        hours: between two plans.
    """

    def __init__(self, hours: int, kind: int) -> None:
        super().__init__(kind)
        self.hours = hours

    @override
    def is_due(self, view: View) -> BoolArray:
        return view.since_plan > (self.hours - 0.5) / HOURS


class RegretThreshold(OneKind):
    """Makes a plan when the old one cost too much in the last hour, by more than a share of the new one's cost.

    Args:
        share: of the new plan's cost.
    """

    def __init__(self, share: float, kind: int) -> None:
        super().__init__(kind)
        self.share = share

    @override
    def is_due(self, view: View) -> BoolArray:
        new = view.candidate(self.action)[:, LAST_HOUR]
        return view.replayed[:, 0, LAST_HOUR] > (1.0 + self.share) * new


class SkiRental(OneKind):
    """Makes a plan when what the old one cost too much, hour by hour, adds up to `factor` pauses.

    The rule of the ski rental problem: rent until the rents add up to the price, then buy. With a factor of 1 it takes
    at most twice as long as the best decision, if the regret of a plan never falls.

    Args:
        window: that the plans are made for, an index in `shard_gym.replanning.env.windows.WINDOWS`.
        factor: pauses that a new plan must have been worth.
        headroom: whether plans leave room for growth.
    """

    def __init__(self, window: int, factor: float = 1.0, headroom: bool = False) -> None:
        super().__init__(KINDS.index((window, headroom)))
        self.factor = factor
        self._regret: NDArray[np.float64] = np.zeros(0)

    @override
    def begin(self, count: int) -> None:
        self._regret = np.zeros(count)

    @override
    def is_due(self, view: View) -> BoolArray:
        regret = (view.replayed[:, 0] - view.candidate(self.action))[:, LAST_HOUR] / HOURS
        self._regret = np.where(view.since_plan > 0, self._regret + regret, 0.0)
        due: BoolArray = self._regret > self.factor * view.pause
        self._regret[due | view.must_plan] = 0.0
        return due


GRACE = 8
"""Intervals after a plan in which nothing is detected. The defaults of `river` need more samples than a day has."""


def page_hinkley(threshold: float) -> Any:
    """The Page-Hinkley test on costs in multiples of the reference."""
    return _river().PageHinkley(min_instances=GRACE, delta=0.005, threshold=threshold, mode="up")


def adwin(delta: float) -> Any:
    """ADWIN, which compares the means of two halves of a window of any length."""
    return _river().ADWIN(delta=delta, clock=1, min_window_length=INTERVALS_PER_HOUR, grace_period=GRACE)


def kswin(alpha: float) -> Any:
    """KSWIN, a Kolmogorov-Smirnov test of the last 6 hours against the day before."""
    size = INTERVALS_PER_DAY // 4
    return _river().KSWIN(alpha=alpha, window_size=INTERVALS_PER_DAY + size, stat_size=size, seed=0)


DETECTORS: dict[str, Callable[[float], Any]] = {"page-hinkley": page_hinkley, "adwin": adwin, "kswin": kswin}
"""Makers of detectors by the number that is tuned."""


class ChangeDetector(OneKind):
    """Makes a plan of one kind when its detector finds a change, and starts the detector anew with every plan.

    Args:
        make: makes the detector.
        value: sensitivity; of page-hinkley a threshold, of adwin and kswin a probability.
    """

    def __init__(self, make: Callable[[float], Any], value: float, kind: int) -> None:
        super().__init__(kind)
        self._make, self._value = make, value
        self._detectors: list[Any] = []

    @override
    def begin(self, count: int) -> None:
        self._detectors = [self._make(self._value) for _ in range(count)]

    @override
    def is_due(self, view: View) -> NDArray[np.bool_]:
        due = np.zeros(view.count, np.bool_)
        for env, new in enumerate(view.measured[:, -INTERVALS_PER_HOUR:].tolist()):
            for cost in new:
                self._detectors[env].update(cost)
                due[env] |= self._detectors[env].drift_detected
            if due[env] or view.must_plan[env]:
                self._detectors[env] = self._make(self._value)
        return due


def _river() -> Any:
    try:
        from river import drift
    except ModuleNotFoundError as error:
        raise missing_extra("river", "replan", "A change detector") from error
    return drift


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


class PlanSavings(NamedTuple):
    """What n new plans would have saved before, and what they saved then."""

    saved: FloatArray  #: (n, W) in each window before, in multiples of the reference cost
    targets: FloatArray  #: (n, 2) mean saving in the next 12 hours, and in the two and a half days after these


def draw_samples(tables: Sequence[PlanTable], seed: int = 0) -> PlanSavings:
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
        found = PlanSavings(
            (table.replayed[old, decision] - table.replayed[new, decision]).astype(np.float64),
            np.stack([gained[:, :soon].mean(axis=1), gained[:, soon:].mean(axis=1)], axis=1),
        )
        runs = np.isfinite(found.saved).all(axis=1) & np.isfinite(found.targets).all(axis=1)
        drawn.append([part[runs] for part in found])
    return PlanSavings(*(np.concatenate(parts) for parts in zip(*drawn, strict=True)))


def fitted_weights(samples: PlanSavings) -> list[list[float]]:
    """(2, W) weights of a `Forecaster` by ridge regression: what plans saved from what they would have saved before."""
    x = samples.saved
    weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * x.var() * np.eye(NUM_WINDOWS), x.T @ samples.targets)
    found: list[list[float]] = weights.T.tolist()
    return found
