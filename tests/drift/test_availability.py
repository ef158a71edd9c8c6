"""Devices that leave: how many, for how long and when; equal seeds give equal absences."""

from __future__ import annotations

import numpy as np
import pytest

from shard_gym.drift.levels import DriftLevel
from shard_gym.drift.processes import MOST_AWAY, PEAK_HOUR, draw_available

MANY = 200
"""Devices, of which the same one seldom leaves twice in a row."""


def drawn(
    devices: int, days: int, seed: int = 0, departures: float = 2.0, hours: tuple[float, float] = (2, 12)
) -> np.ndarray:
    level = DriftLevel(departures=departures, away_hours=hours)
    return draw_available(level, devices, 24 * days, np.random.default_rng(seed))


def lengths_away(available: np.ndarray) -> np.ndarray:
    """Hours of each absence that ends."""
    found = []
    for there in available.T:
        edges = np.flatnonzero(np.diff(np.concatenate([[True], there])))
        found += np.diff(edges)[::2].tolist()
    return np.array(found)


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_one_device_stays_and_never_more_than_two_are_away(devices: int) -> None:
    away = devices - drawn(devices, 200, departures=12.0).sum(axis=1)
    assert away.max() == min(MOST_AWAY, devices - 1)
    assert (away == 0).any()


def test_an_absence_takes_from_two_to_twelve_hours() -> None:
    lengths = lengths_away(drawn(MANY, 2_000, departures=0.5))
    assert len(lengths) > 800
    assert (lengths.min(), lengths.max()) == (2, 12)
    assert lengths.mean() == pytest.approx(7.0, rel=0.05)


def test_an_absence_takes_an_hour_at_least() -> None:
    assert set(lengths_away(drawn(MANY, 100, hours=(0.0, 0.0))).tolist()) == {1}


def test_most_leave_at_two_in_the_afternoon_and_none_at_two_in_the_night() -> None:
    days = 4_000
    left = (~drawn(MANY, days, hours=(1.0, 1.0))).sum(axis=1).reshape(days, 24).sum(axis=0)
    expected = days * 2.0 / 24 * (1.0 + np.cos(2.0 * np.pi * (np.arange(24) - PEAK_HOUR) / 24))
    assert left.sum() == pytest.approx(days * 2.0, rel=0.03)
    assert left[2] == 0
    assert np.abs(left - expected).max() < 4 * np.sqrt(expected.max())


def test_every_device_leaves_as_often() -> None:
    left = (~drawn(4, 4_000, hours=(1.0, 1.0))).sum(axis=0)
    assert left == pytest.approx(np.full(4, left.mean()), rel=0.1)


def test_equal_seeds_give_equal_absences_and_none_leave_without_departures() -> None:
    assert np.array_equal(drawn(4, 14), drawn(4, 14))
    assert not np.array_equal(drawn(4, 14), drawn(4, 14, seed=1))
    assert drawn(4, 14, departures=0.0).all()
