"""How everything here is timed: a stopwatch, and medians of rates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


class Stopwatch:
    """Adds up the seconds inside its `with` blocks."""

    __slots__ = ("_started", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    with Stopwatch() as watch:
        work()
    return watch.seconds


def median_rate(work: Callable[[Stopwatch], int], repeats: int) -> int:
    """Median over `repeats` runs of the items per second of `work`, which times itself; one run more warms up."""
    rates = []
    for _ in range(repeats + 1):
        watch = Stopwatch()
        items = work(watch)
        rates.append(items / watch.seconds)
    return round(statistics.median(rates[1:]))
