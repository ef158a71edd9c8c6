"""Rules that decide when to make a plan from the costs of the last hour: never, periods, thresholds, ski-rental."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.base import IntArray, ReplacementAgent, View
from shard_gym.envs.replacement.windows import LAST_HOUR


class Never(ReplacementAgent):
    """Keeps the first plan, but for repairs."""

    def decide(self, view: View) -> IntArray:
        """See `ReplacementAgent`."""
        return np.zeros(view.count, np.int64)


class EveryHours(ReplacementAgent):
    """Makes a plan of one kind every so many hours; "always" is every hour."""

    def __init__(self, hours: int, kind: int) -> None:
        super().__init__(kind)
        self.hours = hours

    def decide(self, view: View) -> IntArray:
        """See `ReplacementAgent`."""
        due = view.since_plan >= self.hours / 24 - 1e-6
        return np.where(due, self.action, 0)


class RegretThreshold(ReplacementAgent):
    """Makes a plan when it would have been cheaper in the last hour by more than a share of the cost."""

    def __init__(self, share: float, kind: int) -> None:
        super().__init__(kind)
        self.share = share

    def decide(self, view: View) -> IntArray:
        """See `ReplacementAgent`."""
        kept = view.replayed[:, 0, LAST_HOUR]
        new = view.candidate(self.action)[:, LAST_HOUR]
        return np.where(kept > (1.0 + self.share) * new, self.action, 0)


class SkiRental(ReplacementAgent):
    """Makes a plan when what the old one has cost too much since it was made exceeds `factor` pauses.

    The rule of the ski rental problem: rent until the rents add up to the price, then buy. With a factor of 1 its cost
    is at most twice the best, if the regret of a plan never falls.
    """

    def __init__(self, factor: float, kind: int) -> None:
        super().__init__(kind)
        self.factor = factor
        self._regret: NDArray[np.float64] = np.zeros(0)

    def begin(self, count: int) -> None:
        """See `ReplacementAgent`."""
        super().begin(count)
        self._regret = np.zeros(count)

    def decide(self, view: View) -> IntArray:
        """See `ReplacementAgent`."""
        new = view.candidate(self.action)[:, LAST_HOUR]
        self._regret = np.where(view.since_plan <= 0, 0.0, self._regret)
        self._regret += np.where(view.since_plan > 0, view.replayed[:, 0, LAST_HOUR] - new, 0.0) / 24.0
        plans = self._regret > self.factor * view.pause
        self._regret[plans] = 0.0
        return np.where(plans, self.action, 0)
