"""Best-first search over how many devices have each lane level, for lower bounds: `best_first` and `Counts`.

The lane level of a device is that of the widest table or shard on it. With it known, a phase of compute is a maximum of
linear functions. Devices are interchangeable, so only the number of devices of each level matters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from typing import Protocol, TypeVar

import numpy as np

Case = TypeVar("Case")


@dataclass(frozen=True)
class Counts:
    """Numbers of devices of each lane level, between `low` and `high`, with the sum `total`."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    total: int

    @property
    def is_point(self) -> bool:
        """Whether these are the numbers of one kind of answer."""
        return self.low == self.high

    def halves(self) -> Iterator[Counts]:
        """One or two that together have the same points."""
        level = int(np.argmax(np.subtract(self.high, self.low)))
        yield from self.split(level, (self.low[level] + self.high[level]) // 2)

    def split(self, level: int, middle: int) -> Iterator[Counts]:
        """One or two that together have the same points: with up to `middle` devices of a level, and with more."""
        for low, high in (
            (self.low[level], min(middle, self.high[level])),
            (max(middle + 1, self.low[level]), self.high[level]),
        ):
            lows, highs = list(self.low), list(self.high)
            lows[level], highs[level] = low, high
            if low <= high and sum(lows) <= self.total <= sum(highs):
                yield Counts(tuple(lows), tuple(highs), self.total).tightened()

    def tightened(self) -> Counts:
        """The smallest with the same points."""
        low = [max(a, self.total - sum(self.high) + b) for a, b in zip(self.low, self.high, strict=True)]
        high = [min(b, self.total - sum(self.low) + a) for a, b in zip(self.low, self.high, strict=True)]
        tight = Counts(tuple(low), tuple(high), self.total)
        return tight if tight == self else tight.tightened()

    def most(self, levels: Sequence[int]) -> int:
        """The largest number of devices of these levels together."""
        others = sum(low for level, low in enumerate(self.low) if level not in levels)
        return min(sum(self.high[level] for level in levels), self.total - others)

    def least(self, levels: Sequence[int]) -> int:
        """The smallest number of devices of these levels together."""
        return self.total - self.most([level for level in range(len(self.low)) if level not in levels])

    def groups(self) -> Iterator[tuple[int, ...]]:
        """Groups of levels that can have a device and about which the single levels do not say everything."""
        levels = range(len(self.low))
        for group in (each for size in range(1, len(levels) + 1) for each in combinations(levels, size)):
            most, least = self.most(group), self.least(group)
            implied = most == sum(self.high[each] for each in group) and least == sum(self.low[each] for each in group)
            if most and (len(group) == 1 or not implied):
                yield group


class Relaxation(Protocol[Case]):
    """Lower bounds on all answers of a task, split into cases and by the counts of lane levels."""

    solved: int  # programs so far

    def cases(self) -> Iterable[Case]:
        """Cases that together hold all answers."""

    def all_counts(self) -> Counts:
        """Counts that hold all answers."""

    def bound_ms(self, counts: Counts, case: Case) -> float:
        """A lower bound in ms on the answers of one case with these counts; infinity if there are none."""


def best_first(relaxation: Relaxation[Case], max_programs: int) -> Iterator[tuple[float, Counts, Case]]:
    """Bounds, counts and cases that together hold all answers, the lowest bound first; solved as they are asked for.

    After `max_programs` programs no counts are split any more.
    """
    order = count()  # equal bounds: the older counts first
    heap: list[tuple[float, int, Counts, Case]] = []
    for case in relaxation.cases():
        counts = relaxation.all_counts()
        heapq.heappush(heap, (relaxation.bound_ms(counts, case), next(order), counts, case))
    while heap:
        bound, _, counts, case = heapq.heappop(heap)
        if counts.is_point or relaxation.solved >= max_programs:
            yield bound, counts, case
            continue
        for half in counts.halves():
            heapq.heappush(heap, (max(bound, relaxation.bound_ms(half, case)), next(order), half, case))
