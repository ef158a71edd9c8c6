"""How alike answers are: whether they keep the same pairs of tables together, and whether they plan at the same hours.

1 for answers that do the same, about 0 for answers that agree by chance. The numbers of devices play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.common.arrays import FloatArray, IntArray

SAME_HOURS = 3
"""Two plans at most so many hours apart are one plan that was shifted."""

SAME_TIME = 0.03
"""Two episodes whose times differ by more than this share do not do the same."""

NEAR_EPISODES = 0.6
"""Likeness from which on two episodes are nearly equal: a plan of which one has two, and the other three."""

SPREAD = 1e-9
"""Variance over pairs below which an answer keeps all of them together, or none."""

BLOCK = 2**22
"""Pairs of devices that are compared at once: 32 MiB."""


def kept_together(own: Sequence[FloatArray], others: Sequence[FloatArray], costs: FloatArray) -> FloatArray:
    """(P, Q) how alike two sets of answers are by which tables are together; NaN for own ones that keep none, or all.

    Of two answers it is the correlation, over all pairs of tables, of how much of both is on one device. Pairs count
    alike, or by the product of `costs`: the greater of the two. Otherwise a copy could be hidden by tables that cost
    nothing, or by the few that cost most.

    Args:
        own: P answers, (T, D) each: the share of each table on each device. D may differ.
        others: Q answers.
        costs: (T,) of the tables alone.
    """
    by_cost = np.maximum(costs, 0.0)
    weights = [np.ones(len(costs)), by_cost / by_cost.mean()] if by_cost.any() else [np.ones(len(costs))]
    found = np.stack([_correlations(own, others, each) for each in weights])
    says_something = ~np.isnan(found)
    return np.where(says_something.any(axis=0), np.where(says_something, found, -1.0).max(axis=0), np.nan)


def _correlations(own: Sequence[FloatArray], others: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
    """(P, Q) correlations over pairs of different tables, each weighted by the product of its two weights."""
    squares = weights**2
    pairs = weights.sum() ** 2 - squares.sum()
    means, spreads, alone = zip(*(_moments(each, weights, pairs) for each in (*own, *others)), strict=True)
    products = np.empty((len(own), len(others)))
    right, starts = np.hstack(others), _starts(others)
    step = max(1, BLOCK // (right.shape[1] * max(each.shape[1] for each in own)))
    for first in range(0, len(own), step):
        part = own[first : first + step]
        left = np.hstack(part) * weights[:, None]
        shared = np.add.reduceat((left.T @ right) ** 2, starts, axis=1)
        products[first : first + step] = np.add.reduceat(shared, _starts(part), axis=0)
    count = len(own)
    products -= (np.stack(alone[:count]) * squares) @ np.stack(alone[count:]).T
    mean, spread = np.array(means), np.array(spreads)
    products -= pairs * np.outer(mean[:count], mean[count:])
    scale = np.sqrt(np.outer(spread[:count], spread[count:]))
    found = np.divide(products, scale, out=np.zeros_like(products), where=scale > pairs * SPREAD)
    found[spread[:count] <= pairs * SPREAD] = np.nan
    return found


def _moments(shares: FloatArray, weights: FloatArray, pairs: float) -> tuple[float, float, FloatArray]:
    """Mean and sum of squares of a table pair's share together, and (T,) that of each table with itself."""
    alone: FloatArray = (shares**2).sum(axis=1)
    mean = ((weights @ shares) ** 2).sum() - (weights**2 * alone).sum()
    together = (shares.T * weights) @ shares
    spread = (together**2).sum() - (weights**2 * alone**2).sum() - mean**2 / pairs
    return float(mean / pairs), max(float(spread), 0.0), alone


def _starts(answers: Sequence[FloatArray]) -> IntArray:
    return np.cumsum([0, *(each.shape[1] for each in answers[:-1])])


@dataclass(frozen=True, eq=False)
class PlansMade:
    """What an agent of replanning decided in an episode.

    Attributes:
        hours: of the plans that it did not have to make, in order.
        repairs: hours and kinds of those that it had to make, but for the kind that most of them have.
        seconds: that the episode took.
    """

    hours: tuple[int, ...]
    repairs: frozenset[tuple[int, int]]
    seconds: float


def plans_alike(own: PlansMade, other: PlansMade) -> float:
    """How alike two episodes of replanning are: the share of plans that both made.

    NaN where the first made no plan that says something.
    """
    count = len(own.hours) + len(own.repairs)
    if not count:
        return np.nan
    if abs(own.seconds / other.seconds - 1.0) > SAME_TIME:
        return 0.0
    left, same = list(other.hours), len(own.repairs & other.repairs)
    for hour in own.hours:
        near = min(left, key=lambda each: abs(each - hour), default=None)
        if near is not None and abs(near - hour) <= SAME_HOURS:
            left.remove(near)
            same += 1
    return 2.0 * same / (count + len(other.hours) + len(other.repairs))
