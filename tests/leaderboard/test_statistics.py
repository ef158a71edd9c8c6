from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.evaluation.evaluations import bootstrap_interval
from shard_gym.leaderboard import statistics


def test_interval_of_one_seed_is_the_bootstrap_over_tasks() -> None:
    costs = np.random.default_rng(1).uniform(5, 15, (1, 50))
    assert statistics.mean_interval(costs) == pytest.approx(bootstrap_interval(costs[0]), rel=0.01)


def test_interval_of_one_task_is_the_bootstrap_over_seeds() -> None:
    costs = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    low, high = statistics.mean_interval(costs)
    assert 1.5 < low < 2.2
    assert 3.8 < high < 4.5


def test_interval_holds_both_sources_of_chance() -> None:
    rng = np.random.default_rng(0)
    tasks, seeds = rng.normal(0, 1, (1, 50)), rng.normal(0, 3, (5, 50))
    width = {
        name: np.diff(statistics.mean_interval(10 + values))[0]
        for name, values in {"tasks": np.repeat(tasks, 5, axis=0), "both": tasks + seeds}.items()
    }
    assert width["both"] > 1.2 * width["tasks"]


@pytest.mark.parametrize("of_seeds", [0.0, 0.5])
def test_interval_covers_the_truth_about_as_often_as_it_says(of_seeds: float) -> None:
    """Also where some seeds are better than others on all tasks."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        costs = 10 + rng.normal(0, 1, (1, 40)) + rng.normal(0, 1, (5, 40)) + rng.normal(0, of_seeds, (5, 1))
        low, high = statistics.percentile_interval(statistics.bootstrap_samples(costs, rng, 400).mean(axis=1))
        hits += low <= 10 <= high
    assert 0.9 <= hits / 200 <= 0.99


def test_intervals_of_a_race_hold_for_all_pairs_together() -> None:
    """Twelve entries that are equal: in about one race of twenty one of them is said to be dearer than another."""
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(40):
        costs = rng.lognormal(0, 0.3, 20) * (1 + 0.03 * rng.normal(size=(12, 20)))
        intervals = statistics.intervals_to_first(costs[np.argsort(costs.mean(axis=1))])
        assert intervals is not None
        wrong += (intervals[:, 0] > 1).any()
    assert wrong <= 4


def test_intervals_of_a_race_show_a_difference_and_nothing_below_five_tasks() -> None:
    tasks = np.random.default_rng(0).lognormal(0, 0.3, 20)
    noise = 1 + 0.01 * np.random.default_rng(1).normal(size=(3, 20))
    intervals = statistics.intervals_to_first(tasks * noise * [[1.0], [1.0], [1.2]])
    assert intervals is not None
    assert intervals[0].tolist() == [1.0, 1.0]
    assert intervals[1, 0] < 1 < intervals[1, 1]
    assert 1.15 < intervals[2, 0] < 1.2 < intervals[2, 1] < 1.25
    assert statistics.intervals_to_first(np.ones((2, 4))) is None
    assert statistics.intervals_to_first(np.ones((2, 5))).tolist() == [[1.0, 1.0]] * 2  # type: ignore[union-attr]


matrices = st.integers(1, 3).flatmap(
    lambda tasks: st.tuples(
        *(
            st.lists(st.lists(st.integers(1, 4), min_size=tasks, max_size=tasks), min_size=1, max_size=4)
            for _ in range(2)
        )
    )
)


@given(matrices)
def test_improvement_counts_every_pair_of_runs(both) -> None:
    first, second = (np.array(each, float) for each in both)
    wins = [
        1.0 if a < b else 0.5 if a == b else 0.0
        for task in range(first.shape[1])
        for a, b in itertools.product(first[:, task], second[:, task])
    ]
    assert statistics.probability_of_improvement(first, second) == pytest.approx(np.mean(wins))
    assert statistics.probability_of_improvement(first, second) + statistics.probability_of_improvement(
        second, first
    ) == pytest.approx(1.0)


def test_interquartile_mean_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for size in (3, 4, 50, 251):
        values = np.random.default_rng(size).uniform(1, 2, size)
        assert statistics.interquartile_mean(values[None])[0] == pytest.approx(stats.trim_mean(values, 0.25))


def test_profile_is_a_share_that_grows_and_counts_the_best_itself() -> None:
    ratios = np.array([1.0, 1.0 + 1e-12, 1.5, 9.0])
    shares = statistics.performance_profile(ratios)
    assert shares[0] == 0.5
    assert shares[-1] == 0.75
    assert (np.diff(shares) >= 0).all()
