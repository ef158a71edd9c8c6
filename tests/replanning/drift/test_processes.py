"""Drift: the processes have the deviations and times that the level names, and equal seeds give equal drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.replanning.drift.levels import MEDIUM, SPOT, STRONG, DriftLevel
from shard_gym.replanning.drift.processes import (
    HIGHEST,
    INTERVALS_PER_DAY,
    LOWEST,
    PEAK_HOUR,
    Drift,
    draw_available,
    draw_drift,
)

MANY = 4_000
"""Tables; shares and deviations are then within 5%."""


def drawn(days: int = 4, tables: int = MANY, seed: int = 0, **level: object) -> Drift:
    return draw_drift(DriftLevel(**level), tables, days, np.random.default_rng(seed))  # type: ignore[arg-type]


def hourly(drift: Drift) -> np.ndarray:
    """(hours, T) logarithms of the lookups."""
    return np.log(drift.lookups[:: INTERVALS_PER_DAY // 24])


def test_nothing_drifts_without_a_process() -> None:
    drift = drawn(2, 3)
    assert np.array_equal(drift.lookups, np.ones((2 * INTERVALS_PER_DAY, 3)))
    assert np.array_equal(drift.rows, np.ones((2, 3)))
    assert np.array_equal(drift.exponent, np.ones((2, 3)))


def test_the_daily_wave_has_its_deviation_at_every_hour_and_repeats() -> None:
    logs = hourly(drawn(daily=0.3))
    assert logs.std(axis=1) == pytest.approx(np.full(len(logs), 0.3), rel=0.05)
    np.testing.assert_allclose(logs[24:], logs[:-24], rtol=0, atol=1e-9)
    np.testing.assert_allclose(logs[12:], -logs[:-12], rtol=0, atol=1e-9)


def test_the_weekend_begins_on_saturday_and_is_the_same_each_week() -> None:
    drift = drawn(15, 500, weekend=0.5)
    logs = hourly(drift).reshape(15, 24, -1)
    weekend = (np.arange(15) + drift.first_weekday) % 7 >= 5
    assert not logs[~weekend].any()
    assert logs[weekend].std() == pytest.approx(0.5, rel=0.1)
    assert np.ptp(logs[weekend], axis=(0, 1)).max() < 1e-9


def test_lasting_shifts_add_up() -> None:
    logs = hourly(drawn(6, shifts=0.5, shift=0.2))
    changes = np.abs(np.diff(logs, axis=0)) > 1e-9
    assert changes.mean() * 24 == pytest.approx(0.5, rel=0.05)
    for hour in (24, 72, 143):
        assert logs[hour].std() == pytest.approx(0.2 * np.sqrt(0.5 * hour / 24), rel=0.1)


def test_incidents_end() -> None:
    drift = drawn(6, incidents=1.0, incident=0.7)
    logs = np.log(drift.lookups)
    assert (np.abs(logs[INTERVALS_PER_DAY:]) < 1e-9).mean() == pytest.approx(np.exp(-6.5 / 24), rel=0.05)
    rare = np.log(drawn(3, incidents=0.02, incident=0.7).lookups)
    lengths = (np.abs(rare[:, np.abs(rare).max(axis=0) > 1e-9]) > 1e-9).sum(axis=0) / 4
    assert np.quantile(lengths, 0.9) < 12.1  # a few tables have two
    assert np.median(lengths) == pytest.approx(6.5, abs=1.0)


def test_the_walk_keeps_its_deviation_and_forgets() -> None:
    logs = hourly(drawn(5, walk=0.15, walk_hours=48.0))
    assert logs.std(axis=1) == pytest.approx(np.full(len(logs), 0.15), rel=0.06)
    assert np.corrcoef(logs[0], logs[48])[0, 1] == pytest.approx(np.exp(-1), abs=0.05)


def test_rows_grow_by_a_power_of_age_and_cold_rows_leave_once_a_week() -> None:
    grown = drawn(15, 500, growth=0.5, age_days=(10.0, 10.0)).rows
    np.testing.assert_allclose(grown, np.broadcast_to(np.sqrt(1 + np.arange(15) / 10)[:, None], (15, 500)), rtol=1e-9)
    pruned = drawn(15, 500, pruned=0.2).rows
    assert (pruned[0] == 1).all()
    falls = np.diff(np.log(pruned), axis=0) / np.log(0.8)
    assert set(np.rint(falls.ravel()).tolist()) == {0.0, 1.0}
    for week in (falls[:7], falls[7:]):
        np.testing.assert_allclose(week.sum(axis=0), np.ones(500), rtol=1e-9)


def test_features_arrive_and_retire() -> None:
    lookups = drawn(6, arrivals=0.4).lookups
    arrived, retired = lookups[0] == 0.0, lookups[-1] == 0.0
    assert arrived.mean() == pytest.approx(0.2, rel=0.15)
    assert retired.mean() == pytest.approx(0.2, rel=0.15)
    assert (lookups[-1][arrived] == 1.0).all()
    assert (lookups[0][retired] == 1.0).all()
    assert (np.diff(lookups[:, arrived], axis=0) >= 0).all()


def test_the_exponent_walks_a_step_each_night() -> None:
    exponent = drawn(10, skew=0.05).exponent
    assert (exponent[0] == 1.0).all()
    assert np.log(exponent[9]).std() == pytest.approx(0.15, rel=0.05)


@pytest.mark.parametrize("level", [MEDIUM, STRONG])
def test_equal_seeds_give_equal_drift_within_limits(level: DriftLevel) -> None:
    one, same, other = (draw_drift(level, 200, 17, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(one.lookups, same.lookups)
    assert not np.array_equal(one.lookups, other.lookups)
    assert LOWEST <= one.lookups.min() <= one.lookups.max() <= HIGHEST


# Devices that leave

DEVICES = 150
"""So many that the same one seldom leaves twice in a row."""

ONE_AT_A_TIME: dict[str, Any] = {"leaving": (1, 1), "away_hours": (1.0, 1.0)}


def available(devices: int, days: int, seed: int = 0, departures: float = 2.0, **level: Any) -> np.ndarray:
    given = DriftLevel(departures=departures, **level)
    return draw_available(given, devices, 24 * days, np.random.default_rng(seed))


def lengths_away(there: np.ndarray) -> np.ndarray:
    """Hours of each absence that ends."""
    found = []
    for column in there.T:
        edges = np.flatnonzero(np.diff(np.concatenate([[True], column])))
        found += np.diff(edges)[::2].tolist()
    return np.array(found)


@pytest.mark.parametrize(("devices", "most"), [(1, 0), (3, 1), (4, 2), (9, 4)])
def test_never_more_than_half_are_away(devices: int, most: int) -> None:
    away = devices - available(devices, 200, departures=12.0).sum(axis=1)
    assert away.max() == most
    assert (away == 0).any()


def test_one_to_three_leave_together_and_come_back_together() -> None:
    steps = np.diff(available(8, 500, departures=0.3).sum(axis=1))
    left = np.bincount(-steps[steps < 0])
    assert len(left) == 4
    assert left[1:].min() > 0.2 * left.sum()
    assert set(np.abs(np.diff(available(DEVICES, 500, leaving=(2, 2), departures=0.1).sum(axis=1))).tolist()) == {0, 2}


def test_an_absence_takes_from_four_to_24_hours() -> None:
    lengths = lengths_away(available(DEVICES, 1_500, departures=0.5, leaving=(1, 1)))
    assert len(lengths) > 600
    assert (lengths.min(), lengths.max()) == (4, 24)
    assert lengths.mean() == pytest.approx(14.0, rel=0.05)
    lengths = lengths_away(available(DEVICES, 100, leaving=(1, 1), away_hours=(0.0, 0.0)))
    assert lengths.min() == 1  # an hour at least
    assert (lengths == 1).mean() > 0.98  # few leave again at once


def test_most_leave_at_two_in_the_afternoon_and_none_at_two_in_the_night() -> None:
    days = 2_000
    left = (~available(DEVICES, days, **ONE_AT_A_TIME)).sum(axis=1).reshape(days, 24).sum(axis=0)
    expected = days * 2.0 / 24 * (1.0 + np.cos(2.0 * np.pi * (np.arange(24) - PEAK_HOUR) / 24))
    assert left.sum() == pytest.approx(days * 2.0, rel=0.03)
    assert left[2] == 0
    assert np.abs(left - expected).max() < 4 * np.sqrt(expected.max())


def test_every_device_leaves_as_often() -> None:
    left = (~available(4, 2_000, **ONE_AT_A_TIME)).sum(axis=0)
    assert left == pytest.approx(np.full(4, left.mean()), rel=0.1)


def test_equal_seeds_give_equal_absences_and_none_leave_without_departures() -> None:
    assert np.array_equal(available(4, 14), available(4, 14))
    assert not np.array_equal(available(4, 14), available(4, 14, seed=1))
    assert available(4, 14, departures=0.0).all()
    assert not draw_available(SPOT, 4, 24 * 14, np.random.default_rng(0)).all()
