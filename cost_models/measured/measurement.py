"""`Measurement`: the measured cost of one placement, from the times of its iterations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import CostEstimate, FloatArray
from shard_gym.cost_models.measured.job import Timing

DETAIL_NAMES = ("spread", "seconds", "clock_ghz", "late")  # names of `Measurement.details`
IQR = (25.0, 75.0)
CONFIDENCE = 0.95

LATE = (
    "The program could not stay ahead of the GPU in some iterations, so their times contain the time of Python; "
    "Measurement.late counts them. Other programs may use the CPUs, or FBGEMM waits for the GPU within an iteration."
)


@dataclass(frozen=True)
class Measurement(CostEstimate):
    """The measured cost of one placement; `phases_ms` are medians over the iterations."""

    iterations_ms: FloatArray  # (n, D, 4) float64, each device's time in each phase of each of n iterations
    spread: float  # interquartile range of the iterations' costs, as a share of their median
    seconds: float  # wall-clock time of the measurement; 0 if it comes from the cache
    clock_ghz: float = math.nan  # lowest SM clock of the GPUs; NaN on a CPU, and if all comes from the cache
    late: int = 0  # iterations on a GPU whose times contain time of the host, see `clock.GpuClock`

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """A 95% interval of the placement's cost in ms; None for fewer than 6 iterations, which are too few for one.

        It is the order-statistics interval of the median of the iterations' costs, each on the slowest devices of the
        phases. Which are the slowest is noisy, too, and its noise would lift both ends where devices are equally slow.
        So for the lower end the slowest devices of an iteration are those of the other iterations, which its own noise
        did not choose. `total_ms`, a maximum of noisy medians, has that bias, and lies near the upper end then.
        Simulated noise that is symmetric and independent: the interval holds the true cost in 95% to 99% of the
        measurements of 10 iterations, on 1 to 8 devices.
        """
        ms, n = self.iterations_ms, len(self.iterations_ms)
        rank = _median_rank(n)
        if not rank:
            return None
        others = [np.median(np.delete(ms, each, axis=0), axis=0).argmax(axis=0) for each in range(n)]
        low = np.sort(_costs_on(ms, np.array(others)))[rank - 1]
        high = np.sort(_costs_on(ms, np.tile(self.phases_ms.argmax(axis=0), (n, 1))))[-rank]
        return float(low), float(high)

    @property
    def details(self) -> dict[str, float]:
        """The clock of a CPU is 0."""
        clock = 0.0 if math.isnan(self.clock_ghz) else self.clock_ghz
        return dict(zip(DETAIL_NAMES, (self.spread, self.seconds, clock, self.late), strict=True))


def _median_rank(n: int) -> int:
    """r: the r-th smallest and largest of n numbers hold the median between them with at least 95%; 0 if none do."""
    tails = np.cumsum([math.comb(n, below) for below in range(n)]) / 2.0**n
    return int(np.count_nonzero(2 * tails <= 1 - CONFIDENCE))


def _costs_on(ms: FloatArray, devices: NDArray[np.intp]) -> FloatArray:
    """(n,) ms of n iterations, (n, D, 4) ms, on a device for each iteration and phase, (n, 4)."""
    return np.asarray(np.take_along_axis(ms, devices[:, None], axis=1).sum(axis=(1, 2)))


def summary(ms: FloatArray, seconds: float, timings: Sequence[Timing]) -> Measurement:
    """The measurement of (iterations, D, 4) ms; `timings` are what workers answered about it now."""
    phases = np.median(ms, axis=0)
    costs = ms.max(axis=1).sum(axis=1)
    low, high = np.percentile(costs, IQR)
    late = sum(timing.late for timing in timings)
    if late:
        warnings.warn(LATE, stacklevel=2)
    return Measurement(
        phases,
        float(phases.max(axis=0).sum()),
        iterations_ms=ms,
        spread=float((high - low) / np.median(costs)),
        seconds=seconds,
        clock_ghz=min((timing.clock_ghz for timing in timings if timing.clock_ghz is not None), default=math.nan),
        late=late,
    )
