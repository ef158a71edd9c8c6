"""Rules that decide when to make a plan of one kind: never, periods, thresholds, ski-rental."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.replanning.base import OneKind, View
from shard_gym.envs.replanning.windows import HOURS, KINDS, LAST_HOUR

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
        window: that the plans are made for, an index in `shard_gym.envs.replanning.windows.WINDOWS`.
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
