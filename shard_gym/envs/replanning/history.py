"""`History`: what was done in an episode of replanning, hour by hour."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray

SECONDS = ("running_s", "paused_s", "moved_s")
"""Keys of infos: what time is spent on."""

NO_PLAN = -1
"""Stands for the kind of plan at decisions that made none."""


class History(NamedTuple):
    """What was done in an episode so far, in h hours.

    Attributes:
        hourly_ms: (h,) mean cost of an iteration in each hour.
        seconds: (h, 3) spent on each of `SECONDS`.
        kinds: (h,) index in `KINDS` of the plan that was made at the beginning of each hour, or `NO_PLAN`.
        repairs: (h,) bool, whether it had to be made, whichever action made it.
    """

    hourly_ms: FloatArray
    seconds: FloatArray
    kinds: NDArray[np.int8]
    repairs: NDArray[np.bool_]
