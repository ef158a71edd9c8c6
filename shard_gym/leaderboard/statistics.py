"""Statistics of entries, computed from their costs: (S, N) ms for S seeds and N tasks, lower is better.

The estimators are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021), section 4, for costs instead of returns; the bootstrap resamples tasks, too (`bootstrap_samples`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.evaluation.evaluations import CONFIDENCE

NUM_SAMPLES = 2_000
"""Bootstrap samples behind an interval."""

SEED_OF_SEEDS = 1
"""Draws the seeds of all bootstraps; the callers draw tasks with 0, so the two are independent."""

_CHUNK = 100
"""Simulated sets of tasks that are held in memory together."""

MIN_TASKS = 5
"""Tasks below which no interval over tasks is given: that of two tasks would hold the mean in half of the cases."""

TAUS: FloatArray = np.round(np.geomspace(1.0, 4.0, 61), 4)
"""Multiples of the best known cost at which performance profiles are evaluated."""


def bootstrap_samples(costs: FloatArray, rng: np.random.Generator, count: int = NUM_SAMPLES) -> FloatArray:
    """(count, S * N) values sampled from (S, N) `costs`: tasks and seeds are drawn, then all costs of those.

    Agarwal et al. resample the runs of each task and keep the tasks (section 4.1, "stratified"). Here the tasks are a
    sample of all possible tasks, so they are drawn, too; and one agent, trained with one seed, places all of them, so a
    seed is drawn for all tasks at once (Owen, "The pigeonhole bootstrap", 2007). Few seeds spread too little around
    their own mean, by sqrt((S - 1) / S); the means of the seeds are moved apart by as much (Hesterberg, "What Teachers
    Should Know About the Bootstrap", 2015). With one seed this is the bootstrap over tasks, with one task that over
    seeds. Calls draw the same seeds, and generators in the same state the same tasks: what is compared is paired.
    """
    seeds, tasks = costs.shape
    drawn_tasks = rng.integers(tasks, size=(count, 1, tasks))
    drawn_seeds = np.random.default_rng(SEED_OF_SEEDS).integers(seeds, size=(count, seeds, 1))
    if seeds > 1:
        means = costs.mean(axis=1, keepdims=True)
        costs = costs + (np.sqrt(seeds / (seeds - 1)) - 1.0) * (means - means.mean())
    return np.asarray(costs[drawn_seeds, drawn_tasks].reshape(count, -1))


def percentile_interval(values: FloatArray) -> tuple[float, float]:
    """The 95% percentile interval of (B,) bootstrapped values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def mean_interval(costs: FloatArray) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean of (S, N) costs, with a fixed seed."""
    return percentile_interval(bootstrap_samples(costs, np.random.default_rng(0)).mean(axis=1))


def intervals_to_first(costs: FloatArray) -> FloatArray | None:
    """(E, 2) 95% intervals of each entry's mean cost / that of the first, from the (E, N) costs of N tasks.

    They hold together for all pairs of entries, whichever is the first, so it may be chosen for its low cost: of many
    equal entries one is the cheapest by chance, and pair by pair it would look better than many of them. It is Tukey's
    method (Hsu, "Multiple Comparisons", 1996, chapter 5) for entries whose differences spread unequally: how many
    standard errors the largest deviation among all pairs has is found by simulation of tasks with the covariance that
    the entries have over the given tasks, normally distributed. None below `MIN_TASKS` tasks.
    """
    tasks = costs.shape[1]
    if tasks < MIN_TASKS:
        return None
    means, rng = costs.mean(axis=1), np.random.default_rng(0)
    shares = costs / means[:, None] - 1.0
    errors = _errors_of_differences(shares)
    apart = errors > 1e-9  # equal entries, but for rounding
    largest = []
    for _ in range(NUM_SAMPLES // _CHUNK):
        drawn = shares @ rng.normal(size=(_CHUNK, tasks, tasks)) / np.sqrt(tasks - 1)
        sampled = drawn.mean(axis=2)
        deviations = np.abs(sampled[:, :, None] - sampled[:, None, :])
        largest.append((deviations[:, apart] / _errors_of_differences(drawn)[:, apart]).max(axis=1, initial=0.0))
    width = np.quantile(np.concatenate(largest), CONFIDENCE) * errors[:, 0]
    return np.asarray((means / means[0])[:, None] * np.exp(np.stack([-width, width], axis=1)))


def _errors_of_differences(values: FloatArray) -> FloatArray:
    """(..., E, E) standard errors of the differences of the means of (..., E, N) values."""
    tasks = values.shape[-1]
    centered = values - values.mean(axis=-1, keepdims=True)
    products = centered @ centered.swapaxes(-1, -2) / (tasks * (tasks - 1))
    own = np.diagonal(products, axis1=-2, axis2=-1)
    return np.asarray(np.sqrt(np.maximum(own[..., :, None] + own[..., None, :] - 2.0 * products, 0.0)))


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
