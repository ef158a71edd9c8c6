"""Devices that leave: how many, for how long and when; equal seeds give equal absences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.drift.levels import SPOT, DriftLevel
from shard_gym.drift.processes import PEAK_HOUR, draw_available

MANY = 150
"""Devices, of which the same one seldom leaves twice in a row."""

ONE_AT_A_TIME: dict[str, Any] = {"leaving": (1, 1), "away_hours": (1.0, 1.0)}


def drawn(devices: int, days: int, seed: int = 0, departures: float = 2.0, **level: Any) -> np.ndarray:
    given = DriftLevel(departures=departures, **level)
    return draw_available(given, devices, 24 * days, np.random.default_rng(seed))


def lengths_away(available: np.ndarray) -> np.ndarray:
    """Hours of each absence that ends."""
    found = []
    for there in available.T:
        edges = np.flatnonzero(np.diff(np.concatenate([[True], there])))
        found += np.diff(edges)[::2].tolist()
    return np.array(found)


@pytest.mark.parametrize(("devices", "most"), [(1, 0), (3, 1), (4, 2), (9, 4)])
def test_never_more_than_half_are_away(devices: int, most: int) -> None:
    away = devices - drawn(devices, 200, departures=12.0).sum(axis=1)
    assert away.max() == most
    assert (away == 0).any()


def test_one_to_three_leave_together_and_come_back_together() -> None:
    steps = np.diff(drawn(8, 500, departures=0.3).sum(axis=1))
    left = np.bincount(-steps[steps < 0])
    assert len(left) == 4
    assert left[1:].min() > 0.2 * left.sum()
    assert set(np.abs(np.diff(drawn(MANY, 500, leaving=(2, 2), departures=0.1).sum(axis=1))).tolist()) == {0, 2}


def test_an_absence_takes_from_four_to_24_hours() -> None:
    lengths = lengths_away(drawn(MANY, 1_500, departures=0.5, leaving=(1, 1)))
    assert len(lengths) > 600
    assert (lengths.min(), lengths.max()) == (4, 24)
    assert lengths.mean() == pytest.approx(14.0, rel=0.05)
    lengths = lengths_away(drawn(MANY, 100, leaving=(1, 1), away_hours=(0.0, 0.0)))
    assert lengths.min() == 1  # an hour at least
    assert (lengths == 1).mean() > 0.98  # few leave again at once


def test_most_leave_at_two_in_the_afternoon_and_none_at_two_in_the_night() -> None:
    days = 2_000
    left = (~drawn(MANY, days, **ONE_AT_A_TIME)).sum(axis=1).reshape(days, 24).sum(axis=0)
    expected = days * 2.0 / 24 * (1.0 + np.cos(2.0 * np.pi * (np.arange(24) - PEAK_HOUR) / 24))
    assert left.sum() == pytest.approx(days * 2.0, rel=0.03)
    assert left[2] == 0
    assert np.abs(left - expected).max() < 4 * np.sqrt(expected.max())


def test_every_device_leaves_as_often() -> None:
    left = (~drawn(4, 2_000, **ONE_AT_A_TIME)).sum(axis=0)
    assert left == pytest.approx(np.full(4, left.mean()), rel=0.1)


def test_equal_seeds_give_equal_absences_and_none_leave_without_departures() -> None:
    assert np.array_equal(drawn(4, 14), drawn(4, 14))
    assert not np.array_equal(drawn(4, 14), drawn(4, 14, seed=1))
    assert drawn(4, 14, departures=0.0).all()
    assert not draw_available(SPOT, 4, 24 * 14, np.random.default_rng(0)).all()
