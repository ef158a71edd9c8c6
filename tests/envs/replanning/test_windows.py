"""Windows of the past: their means, and that no window reaches into the future."""

from __future__ import annotations

import numpy as np
import pytest

from shard_gym.envs.replanning.windows import INTERVALS_PER_HOUR, WINDOWS, window_means


def test_means_are_those_of_the_complete_hours_before_a_decision() -> None:
    rng = np.random.default_rng(0)
    lookups = rng.exponential(size=(100 * INTERVALS_PER_HOUR, 3))
    hourly = lookups.reshape(100, INTERVALS_PER_HOUR, 3).mean(axis=1)
    found = window_means(lookups, 75, 20)
    assert found.shape == (20, len(WINDOWS), 3)
    for decision in (0, 7, 19):
        hour = 75 + decision
        expected = [hourly[hour - 1], hourly[hour - 24 : hour], hourly[hour - 72 : hour], hourly[hour - 24 : hour - 12]]
        for window, each in enumerate(expected):
            assert found[decision, window] == pytest.approx(np.atleast_2d(each).mean(axis=0), rel=1e-9)


def test_the_future_changes_nothing() -> None:
    lookups = np.random.default_rng(0).exponential(size=(80 * INTERVALS_PER_HOUR, 2))
    before = window_means(lookups, 72, 4)
    lookups[75 * INTERVALS_PER_HOUR :] = 9.0
    assert np.array_equal(window_means(lookups, 72, 4), before)
