"""The parts of all plans that lower bounds are of, `Node`, and how they are split, `Branch`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from shard_gym.cost_models.bounds.lane_counts import Counts
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE

PHASES = FORWARD, BACKWARD, EXCHANGE = range(3)  # the ms of which nodes have intervals
BACK, INDICES, AVERAGING = range(3, 6)  # the other ms
MS = 6

COLLECTIVES = ALL_TO_ALL, SCATTER, HOST_SCATTER, ALL_REDUCE = range(4)
KINDS = {TABLE_WISE: 0, COLUMN_WISE: 0, ROW_WISE: 1, TABLE_ROW_WISE: 2, DATA_PARALLEL: 3}
OPEN, ABSENT, BELOW, ABOVE = range(4)  # what a node knows of a collective: of its messages, where the knee is


class Branch(NamedTuple):
    """How a node is split: at a number of devices or at ms, by the state of a collective, or by the kind of a table."""

    what: str  # "counts", "ms", "collective" or "kind"
    which: int  # the level, phase, collective or table
    at: float = 0.0  # devices of the level up to which counts are in the first half; ms; the kind of the first half


@dataclass(frozen=True)
class Node:
    """A part of the plans of a task.

    Attributes:
        counts: of devices of each lane level.
        ms: the least and the most ms of `PHASES`, without what is fixed and latencies.
        states: of each collective.
        banned: pairs of a table and a kind of `KINDS` that it does not have.
    """

    counts: Counts
    ms: tuple[tuple[float, float], ...] = ((0.0, np.inf),) * len(PHASES)
    states: tuple[int, ...] = (OPEN,) * len(COLLECTIVES)
    banned: tuple[tuple[int, int], ...] = ()

    def children(self, branch: Branch) -> list[Node]:
        """Nodes that together hold the same plans."""
        what, which, at = branch
        if what == "counts":
            return [replace(self, counts=counts) for counts in self.counts.split(which, int(at))]
        if what == "ms":
            low, high = self.ms[which]
            ends = (low, min(max(at, low), high)), (min(max(at, low), high), high)
            return [replace(self, ms=(*self.ms[:which], end, *self.ms[which + 1 :])) for end in ends]
        if what == "collective":
            states = [(*self.states[:which], state, *self.states[which + 1 :]) for state in (ABSENT, BELOW, ABOVE)]
            return [replace(self, states=each) for each in states]
        others = [(which, kind) for kind in sorted(set(KINDS.values())) if kind != int(at)]
        return [replace(self, banned=self.banned + tuple(each)) for each in (others, [(which, int(at))])]
