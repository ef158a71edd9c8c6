"""Agents that make a plan when a change detector of `river` finds that the measured cost has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.replanning.base import OneKind, View
from shard_gym.drift.processes import INTERVALS_PER_DAY
from shard_gym.envs.replanning.windows import INTERVALS_PER_HOUR
from shard_gym.errors import missing_extra

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
