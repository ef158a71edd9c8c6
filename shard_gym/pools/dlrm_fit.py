"""Fits the shapes of the pools `dlrm-2021` and `dlrm-2022`: `python -m shard_gym.pools.dlrm_fit`.

Least squares on the 34 bins and on distinct rows, with a pull of the parameters towards ordinary values, for the totals
alone do not determine them. Needs scipy; takes about a minute a pool. The printed shapes stand in `dlrm.SHAPES`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import MissingExtraError
from shard_gym.pools.dlrm import Shape, Target, draw_tables, pooled, target
from shard_gym.pools.zipf import reuse_statistics

USUAL = Shape(13.0, 2.1, 1.3, 0.2, 1.4, 8.0, 0.8, 0.8, 1.05, 1.0, 0.3, 6.5, 1.0, 1.0, 0.2, 0.07)
SPREAD = Shape(0.7, 0.2, 0.2, 0.3, 0.3, 2.0, 0.4, 0.5, 0.15, 1.0, 0.4, 1.0, 0.3, 0.8, 1.0, 1.0)
LOW = Shape(12.2, 1.8, 1.1, -0.5, 0.8, 2.0, -0.5, 0.2, 0.8, -1.0, -0.6, 5.0, 0.3, -1.0, 0.0, 0.0)
HIGH = Shape(15.0, 2.6, 1.8, 0.7, 2.2, 11.0, 1.6, 1.6, 1.4, 4.0, 1.2, 8.0, 1.5, 3.0, 1.0, 1.0)

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
        raise MissingExtraError("scipy", "dev", "Fitting a pool's shape") from error
    goal, seed = target(name), int(name[-4:])
    usual, spread, low, high = (_vector(shape) for shape in (USUAL, SPREAD, LOW, HIGH))

    def residuals(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        pull = _USUAL_WEIGHT * (vector - usual) / spread
        return np.concatenate([_misfit(_shape(vector), goal, seed), pull])

    best: Any = least_squares(residuals, usual, bounds=(low, high), diff_step=1e-3, max_nfev=30)
    return _shape(np.round(best.x, 4))


def _misfit(shape: Shape, goal: Target, seed: int) -> NDArray[np.float64]:
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


def _vector(shape: Shape) -> NDArray[np.float64]:
    return np.array(list(vars(shape).values()))


def _shape(vector: NDArray[np.float64]) -> Shape:
    return Shape(*(float(value) for value in vector))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ("dlrm-2021", "dlrm-2022"):
        print(f'    "{chosen}": {fit(chosen)},', flush=True)
