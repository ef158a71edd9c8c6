"""Statistics of entries, computed from their costs: (S, N) ms for S seeds and N tasks, lower is better.

The estimators are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021), section 4, for costs instead of returns; the bootstrap resamples tasks, too (`bootstrap_samples`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.cost_models.base import FloatArray
from shard_gym.evaluation import CONFIDENCE

NUM_SAMPLES = 2_000
"""Bootstrap samples behind an interval."""

TAUS: FloatArray = np.round(np.geomspace(1.0, 4.0, 61), 4)
"""Multiples of the best known cost at which performance profiles are evaluated."""


def bootstrap_samples(costs: FloatArray, rng: np.random.Generator, count: int = NUM_SAMPLES) -> FloatArray:
    """(count, S * N) values sampled from (S, N) `costs` in two stages: tasks, then seeds within each sampled task.

    Agarwal et al. resample the runs of each task and keep the tasks (section 4.1, "stratified"). Here the tasks are a
    sample of all possible tasks, too, so they are resampled first (Davison and Hinkley, "Bootstrap Methods and their
    Application", 1997, section 3.8). With one seed this is the bootstrap over tasks, with one task that over seeds.
    """
    seeds, tasks = costs.shape
    sampled_tasks = np.repeat(rng.integers(tasks, size=(count, tasks)), seeds, axis=1)
    sampled_seeds = rng.integers(seeds, size=(count, seeds * tasks)) if seeds > 1 else 0
    return np.asarray(costs[sampled_seeds, sampled_tasks])


def percentile_interval(values: FloatArray) -> tuple[float, float]:
    """The 95% percentile interval of (B,) bootstrapped values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def mean_interval(costs: FloatArray) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean of (S, N) costs, with a fixed seed."""
    return percentile_interval(bootstrap_samples(costs, np.random.default_rng(0)).mean(axis=1))


def probability_of_improvement(costs: FloatArray, others: FloatArray) -> float:
    """Probability that a run of the first entry costs less than one of the second on the same task, ties count half.

    Mean over the tasks of the Mann-Whitney statistic of (S, N) against (S', N) costs (Agarwal et al., section 4.3).
    """
    first, second = costs[:, None, :], others[None, :, :]
    return float(((first < second) + 0.5 * (first == second)).mean())


def interquartile_mean(values: FloatArray) -> FloatArray:
    """(B,) means of the middle half of (B, M) values; a quarter is cut off at each end (Agarwal et al., section 4.3).

    If M is no multiple of four, M / 4 is rounded down, as in `scipy.stats.trim_mean`.
    """
    cut = values.shape[1] // 4
    return np.asarray(np.sort(values)[:, cut : values.shape[1] - cut].mean(axis=1))


def interquartile_mean_interval(ratios: Sequence[FloatArray], count: int = 500) -> tuple[float, float]:
    """The 95% interval of the interquartile mean over suites; the (S, N) ratios of each suite are resampled apart."""
    rng = np.random.default_rng(0)
    samples = np.concatenate([bootstrap_samples(each, rng, count) for each in ratios], axis=1)
    return percentile_interval(interquartile_mean(samples))


def performance_profile(ratios: FloatArray, taus: FloatArray = TAUS) -> FloatArray:
    """(K,) share of the (M,) ratios to the best known cost that are at most each of the (K,) taus.

    Dolan and More, "Benchmarking optimization software with performance profiles" (2002), with the best known cost
    instead of the best solver's; over runs and tasks alike as in Agarwal et al., section 4.2.
    """
    # The tolerance keeps rounding from making the best known placement worse than itself.
    return np.asarray((ratios[None, :] <= taus[:, None] * (1 + 1e-9)).mean(axis=1))
