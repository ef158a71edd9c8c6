"""What a plan may be made for: windows of the past."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY

HOURS = 24
"""Decisions in a day."""

INTERVALS_PER_HOUR = INTERVALS_PER_DAY // HOURS


class Window(NamedTuple):
    """Complete hours before a decision: it begins `first` hours before, and ends `last` hours before."""

    name: str
    first: int
    last: int


WINDOWS = (
    Window("last hour", 1, 0),
    Window("last day", 24, 0),
    Window("last three days", 72, 0),
    Window("next half day, as yesterday", 24, 12),
)
"""In the order of the actions; see `KINDS`."""


LAST_HOUR, LAST_DAYS = 0, 2
"""Windows: of a repair, and of the plan that is in action when an episode begins."""


class PlanKind(NamedTuple):
    """What a plan is made for: index in `WINDOWS`, and whether it leaves memory for the growth of `HEADROOM_DAYS`."""

    window: int
    headroom: bool

    @property
    def name(self) -> str:
        """The words for it in tables and pictures."""
        return WINDOWS[self.window].name + (", with headroom" if self.headroom else "")


KINDS = tuple(PlanKind(window, headroom) for headroom in (False, True) for window in range(len(WINDOWS)))
"""Those of the actions 1, 2, ...; the second half is possible only where tables grow."""


def window_means(lookups: FloatArray, first_hour: int, hours: int) -> FloatArray:
    """(hours, W, T) mean lookups in each of `WINDOWS` before each of `hours` decisions, from (I, T) of all intervals.

    `first_hour` is the number of the first decision, counted from the first interval; the past must reach back far
    enough.
    """
    longest = max(window.first for window in WINDOWS)
    begin = (first_hour - longest) * INTERVALS_PER_HOUR
    end = (first_hour + hours - 1) * INTERVALS_PER_HOUR
    sums = np.concatenate([np.zeros((1, lookups.shape[1])), np.cumsum(lookups[begin:end], axis=0)])
    decision = (longest + np.arange(hours)) * INTERVALS_PER_HOUR
    means = [
        (sums[decision - window.last * INTERVALS_PER_HOUR] - sums[decision - window.first * INTERVALS_PER_HOUR])
        / ((window.first - window.last) * INTERVALS_PER_HOUR)
        for window in WINDOWS
    ]
    return np.stack(means, axis=1)
