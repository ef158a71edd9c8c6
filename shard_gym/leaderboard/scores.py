"""Scores of entries, from costs alone: (S, N) ms for S seeds and N tasks, lower is better.

The estimators are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021), section 4, for costs in place of returns; the bootstrap has a stage more, stated where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shard_gym.cost_models.base import FloatArray

SAMPLES = 2_000
"""Of every bootstrap."""

CONFIDENCE = 0.95

TAUS: FloatArray = np.round(np.geomspace(1.0, 4.0, 61), 4)
"""Multiples of the best known cost at which performance profiles are read."""

Statistic = Callable[[FloatArray], FloatArray]
"""From (B, M) values to (B,)."""


def resampled(costs: FloatArray, rng: np.random.Generator, samples: int = SAMPLES) -> FloatArray:
    """(samples, S * N) values of (S, N) `costs`, drawn in two stages: tasks, then seeds within each drawn task.

    Agarwal et al. resample the runs of each task and keep the tasks (section 4.1, "stratified"); here the tasks are a
    sample of all there could be, too, so they are drawn first (Davison and Hinkley, "Bootstrap Methods and their
    Application", 1997, section 3.8). With one seed it is the bootstrap over tasks, with one task that over seeds.
    """
    seeds, tasks = costs.shape
    drawn_tasks = np.repeat(rng.integers(tasks, size=(samples, tasks)), seeds, axis=1)
    drawn_seeds = rng.integers(seeds, size=(samples, seeds * tasks)) if seeds > 1 else 0
    return np.asarray(costs[drawn_seeds, drawn_tasks])


def interval(values: FloatArray) -> tuple[float, float]:
    """The percentile interval of (B,) bootstrapped values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def mean_interval(costs: FloatArray) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean of (S, N) costs, with a fixed seed; of one number, that number twice."""
    return interval(resampled(costs, np.random.default_rng(0)).mean(axis=1))


def gap(costs: FloatArray, best: FloatArray) -> float:
    """Mean of (S, N) costs / (N,) best known costs, less 1."""
    return float((costs / best).mean() - 1.0)


def improvement(costs: FloatArray, others: FloatArray) -> float:
    """Probability that a run of the first is cheaper than one of the second on the same task, ties counting half.

    Mean over the tasks of the Mann-Whitney statistic of (S, N) against (S', N) costs (Agarwal et al., section 4.3).
    """
    first, second = costs[:, None, :], others[None, :, :]
    return float(((first < second) + 0.5 * (first == second)).mean())


def interquartile_mean(values: FloatArray) -> FloatArray:
    """(B,) means of the middle half of (B, M) values; a quarter is cut off at each end (Agarwal et al., section 4.3).

    Where M is no multiple of four, what is cut off is M / 4 rounded down, as in `scipy.stats.trim_mean`.
    """
    count = values.shape[-1]
    cut = count // 4
    middle = np.sort(values, axis=-1)[..., cut : count - cut]
    return np.asarray(middle.mean(axis=-1))


def interquartile_mean_interval(ratios: Sequence[FloatArray], samples: int = 500) -> tuple[float, float]:
    """The 95% interval of the interquartile mean over suites; every suite's (S, N) ratios are resampled by itself."""
    rng = np.random.default_rng(0)
    drawn = np.concatenate([resampled(each, rng, samples) for each in ratios], axis=1)
    return interval(interquartile_mean(drawn))


def profile(ratios: FloatArray, taus: FloatArray = TAUS) -> FloatArray:
    """(K,) share of the (M,) ratios to the best known cost that are at most each of (K,) taus.

    Dolan and More, "Benchmarking optimization software with performance profiles" (2002), with the best known cost in
    place of the best solver's; over runs and tasks alike as in Agarwal et al., section 4.2.
    """
    # Rounding must not turn the best known placement itself into one that is worse.
    return np.asarray((ratios[None, :] <= taus[:, None] * (1 + 1e-9)).mean(axis=1))
