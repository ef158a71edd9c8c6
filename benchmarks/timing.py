"""How everything here is timed: a stopwatch, and medians of rates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


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
    with Stopwatch() as watch:
        work()
    return watch.seconds


def median_rate(work: Callable[[Stopwatch], int], repeats: int) -> int:
    """Median over `repeats` runs of the items per second of `work`, which times itself; one run more warms up."""
    return median_rates([work], repeats)[0]


def median_rates(works: Sequence[Callable[[Stopwatch], int]], repeats: int) -> list[int]:
    """`median_rate` of each of several works, which take turns, so that a busy machine slows all of them."""
    rates: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 1):
        for work, of_work in zip(works, rates, strict=True):
            watch = Stopwatch()
            items = work(watch)
            of_work.append(items / watch.seconds)
    return [round(statistics.median(each[1:])) for each in rates]
