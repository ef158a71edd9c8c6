"""`History`: what was done in an episode of replanning, hour by hour."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray

SECONDS = ("running_s", "paused_s", "moved_s")  # keys of infos: what time is spent on
NO_PLAN = -1  # stands for the kind of plan at decisions that made none


class History(NamedTuple):
    """What was done in an episode so far, in h hours."""

    hourly_ms: FloatArray  #: (h,) mean cost of an iteration in each hour
    seconds: FloatArray  #: (h, 3) spent on each of `SECONDS`
    #: (h,) index in `KINDS` of the plan that was made at the beginning of each hour, or `NO_PLAN`.
    kinds: NDArray[np.int8]
    repairs: NDArray[np.bool_]  #: (h,) bool, whether it had to be made, whichever action made it
