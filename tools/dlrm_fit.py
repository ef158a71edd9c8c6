"""Fits `DISTRIBUTIONS` of shard_gym/pools/dlrm.py to the published totals: `python tools/dlrm_fit.py`.

Least squares on the 34 bins, the distinct rows and the mean rows. The totals alone do not determine the parameters, so
a regularisation pulls them towards usual values. Takes about a minute per pool.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from shard_gym.pools.dlrm import DISTRIBUTIONS, Distributions, Totals, published_totals, sample_tables, totals_of
from shard_gym.row_popularity import reuse_statistics


class Range(NamedTuple):
    """The usual value of a parameter, the scale of its deviations, and its limits."""

    usual: float
    spread: float
    low: float
    high: float


RANGES = {
    "rows_log_mean": Range(13.0, 0.7, 12.2, 15.0),
    "rows_log_sd": Range(2.1, 0.2, 1.8, 2.6),
    "pooling_log_sd": Range(1.3, 0.2, 1.1, 1.8),
    "rows_pooling_corr": Range(0.2, 0.3, -0.5, 0.7),
    "flat_s": Range(1.4, 0.3, 0.8, 2.4),
    "flat_log_q": Range(8.0, 2.0, 2.0, 11.0),
    "flat_q_power": Range(0.8, 0.4, -0.5, 1.6),
    "flat_q_log_sd": Range(0.8, 0.5, 0.2, 1.6),
    "zipf_s": Range(1.05, 0.15, 0.8, 1.4),
    "zipf_log_q": Range(1.0, 1.0, -1.0, 4.0),
    "zipf_q_power": Range(0.3, 0.4, -0.6, 1.2),
    "small_rows_log_mean": Range(8.0, 1.0, 5.0, 10.0),
    "small_rows_log_sd": Range(1.0, 0.3, 0.3, 1.5),
    "small_pooling_log_boost": Range(1.0, 0.8, -1.0, 3.0),
}

NARROWER = {"dlrm-2022": {"pooling_log_sd": Range(1.3, 0.2, 1.1, 1.6)}}
"""Ranges of one pool. Without it the fit of 2022 takes 1.8 and gives too many tables the largest pooling factor."""

_BIN_SCALE, _DISTINCT_SCALE = 0.003, 0.005  # a difference of this size is a residual of 1
_MEAN_ROWS, _MEAN_ROWS_LOG_SCALE = 3.0e6, 0.15
_REGULARISATION = 0.3


def fit(name: str) -> Distributions:
    """The distributions whose tables come closest to the published totals of the pool `name`.

    The shares of the kinds of tables are not fitted, because the totals are not continuous in them; they were chosen by
    hand and stay as they are in `DISTRIBUTIONS`.
    """
    totals, seed = published_totals(name), int(name[-4:])
    usual, spread, low, high = np.array(list({**RANGES, **NARROWER.get(name, {})}.values())).T

    def distributions(vector: NDArray[np.float64]) -> Distributions:
        return replace(DISTRIBUTIONS[name], **dict(zip(RANGES, vector.tolist(), strict=True)))

    def residuals(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        regularisation = _REGULARISATION * (vector - usual) / spread
        return np.concatenate([misfit(distributions(vector), totals, seed), regularisation])

    best: Any = least_squares(residuals, usual, bounds=(low, high), diff_step=1e-3, max_nfev=30)
    return distributions(np.round(best.x, 4))


def misfit(distributions: Distributions, totals: Totals, seed: int) -> NDArray[np.float64]:
    """(36,) scaled differences between the sampled tables and the published totals."""
    sampled = sample_tables(distributions, totals, seed)
    lookups = sampled.pooling * totals.batch_size
    stats = reuse_statistics(sampled.rows, lookups, sampled.q, sampled.s)
    distinct, unique_hist, access_hist = totals_of(stats, lookups)
    return np.concatenate(
        [
            (unique_hist - totals.unique_hist / totals.unique_hist.sum()) / _BIN_SCALE,
            (access_hist - totals.access_hist / totals.access_hist.sum()) / _BIN_SCALE,
            [np.log(distinct / totals.distinct_rows) / _DISTINCT_SCALE],
            [np.log(sampled.rows.mean() / _MEAN_ROWS) / _MEAN_ROWS_LOG_SCALE],
        ]
    )


if __name__ == "__main__":
    for pool_name in sys.argv[1:] or tuple(DISTRIBUTIONS):
        print(f'    "{pool_name}": {fit(pool_name)},', flush=True)
