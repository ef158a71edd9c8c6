"""Rounding of a pool's numbers before they are stored, so that files stay small and do not depend on the last bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.pools.reuse import ReuseStatistics

HISTOGRAM_DECIMALS = 5
DISTINCT_DIGITS = 7


def round_significant(values: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """`values` with that many significant decimal digits."""
    return np.array([float(f"{value:.{digits}g}") for value in values])


def rounded_statistics(
    stats: ReuseStatistics, rows: NDArray[np.float64], lookups: NDArray[np.float64]
) -> ReuseStatistics:
    """`stats` as stored: five decimals of a share, seven digits of a count that still does not pass rows or lookups."""
    distinct = round_significant(stats.distinct_rows, DISTINCT_DIGITS)
    return ReuseStatistics(
        np.minimum(distinct, np.minimum(rows, lookups)),
        np.round(stats.reuse_histogram, HISTOGRAM_DECIMALS),
        np.round(stats.access_histogram, HISTOGRAM_DECIMALS),
    )
