"""Fits the shapes of the pools `dlrm-2021` and `dlrm-2022`: `python -m shard_gym.pools.dlrm_fit`.

Least squares on the 34 bins and on distinct rows, with a pull of the parameters towards ordinary values, for the totals
alone do not determine them. Needs scipy; takes about a minute a pool. The printed shapes stand in `dlrm.SHAPES`.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import missing_extra
from shard_gym.pools.dlrm import Shape, Target, draw_tables, pooled, target
from shard_gym.pools.reuse import reuse_statistics


class Range(NamedTuple):
    """What a parameter of a shape may be: an ordinary value, how far from it is unusual, and the limits."""

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
"""Ranges of one pool; without this one the fit of 2022 takes 1.8 and pushes too many tables to the largest pooling."""

SHARES = {
    "dlrm-2021": {"zipf_share": 0.30, "small_share": 0.07},
    "dlrm-2022": {"zipf_share": 0.25, "small_share": 0.05},
}
"""Shares of the kinds of tables: counts do not change smoothly, so these were tried by hand instead of fitted."""

_BIN_SCALE, _DISTINCT_SCALE = 0.003, 0.005  # differences that count as one
_MEAN_ROWS, _MEAN_ROWS_LOG_SCALE = 3.0e6, 0.15
_USUAL_WEIGHT = 0.3


def fit(name: str) -> Shape:
    """The shape whose tables add up closest to what is published for the pool `name`.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise missing_extra("scipy", "dev", "Fitting a pool's shape") from error
    goal, seed = target(name), int(name[-4:])
    usual, spread, low, high = np.array(list({**RANGES, **NARROWER.get(name, {})}.values())).T

    def shape_of(vector: NDArray[np.float64]) -> Shape:
        return Shape(**dict(zip(RANGES, vector.tolist(), strict=True)), **SHARES[name])

    def residuals(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        pull = _USUAL_WEIGHT * (vector - usual) / spread
        return np.concatenate([misfit(shape_of(vector), goal, seed), pull])

    best: Any = least_squares(residuals, usual, bounds=(low, high), diff_step=1e-3, max_nfev=30)
    return shape_of(np.round(best.x, 4))


def misfit(shape: Shape, goal: Target, seed: int) -> NDArray[np.float64]:
    """(36,) differences from the published totals, each in units of what counts as one."""
    draw = draw_tables(shape, goal, seed)
    lookups = draw.pooling * goal.batch_size
    distinct, unique_hist, access_hist = pooled(reuse_statistics(draw.rows, lookups, draw.q, draw.s), lookups)
    return np.concatenate(
        [
            (unique_hist - goal.unique_hist / goal.unique_hist.sum()) / _BIN_SCALE,
            (access_hist - goal.access_hist / goal.access_hist.sum()) / _BIN_SCALE,
            [np.log(distinct / goal.distinct_rows) / _DISTINCT_SCALE],
            [np.log(draw.rows.mean() / _MEAN_ROWS) / _MEAN_ROWS_LOG_SCALE],
        ]
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or tuple(SHARES):
        print(f'    "{chosen}": {fit(chosen)},', flush=True)
