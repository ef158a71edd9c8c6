"""Drift: what becomes of the tables of a task over days, drawn from seeded processes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.replanning.drift.levels import DriftLevel

INTERVALS_PER_DAY = 96
"""Quarters of an hour; the lookups are constant within one."""

DAYS_PER_WEEK, SATURDAY = 7, 5

LOWEST, HIGHEST = 0.02, 50.0
"""Multiples of its pooling factor that the lookups of a table stay between, and of its exponent those of popularity."""

PEAK_HOUR = 14
"""The hour of the day when most devices leave."""

RAMP_DAYS = 1.0
"""In which the lookups of a new feature grow from nothing, or those of a retired one fade."""


@dataclass(frozen=True, eq=False)
class Drift:
    """The drift of T tables over a number of days."""

    first_weekday: int  #: of the first day, 0 for a Monday
    lookups: FloatArray  #: (I, T) float64, the pooling factors in each interval in multiples of those at the start
    rows: FloatArray  #: (days, T) float64, the rows on each day in multiples of those at the start
    #: (days, T) float64, the exponents of row popularity on each day in multiples of those at the start.
    exponent: FloatArray

    @property
    def days(self) -> int:
        """The number of days."""
        return len(self.rows)


def draw_drift(level: DriftLevel, num_tables: int, days: int, rng: np.random.Generator) -> Drift:
    """The drift of `num_tables` tables over `days` days.

    The logarithm of the lookups is a sum: a wave of a day, a factor of the weekend, lasting shifts, incidents, and a
    walk that returns to its mean (an Ornstein-Uhlenbeck process). Each table has its own.
    """
    first_weekday = int(rng.integers(DAYS_PER_WEEK))
    intervals = days * INTERVALS_PER_DAY
    day = np.arange(intervals) / INTERVALS_PER_DAY
    logs = _daily(level, day, num_tables, rng)
    weekend = (day.astype(np.int64) + first_weekday) % DAYS_PER_WEEK >= SATURDAY
    logs += weekend[:, None] * rng.normal(0.0, level.weekend, num_tables)
    logs += _shifts(level, intervals, num_tables, rng)
    logs += _incidents(level, intervals, num_tables, rng)
    logs += _walk(level, intervals, num_tables, rng)
    presence = _presence(level, day, num_tables, rng)
    rows, exponents = _rows(level, days, num_tables, rng), _exponents(level, days, num_tables, rng)
    # A further process is drawn here, after all others, so that the suites that exist stay as they are.
    return Drift(first_weekday, _multiples(logs) * presence, rows, exponents)


def draw_available(level: DriftLevel, num_devices: int, hours: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(hours, D) bool: which devices are there in each hour. Devices leave and return when an hour begins."""
    hour = np.arange(hours)
    hazard = level.departures / 24 * (1.0 + np.cos(2.0 * np.pi * (hour - PEAK_HOUR) / 24))
    leaves, away = rng.random(hours) < hazard, rng.uniform(*level.away_hours, hours)
    count, order = rng.integers(*level.leaving, hours, endpoint=True), rng.random((hours, num_devices))
    back: NDArray[np.int64] = np.zeros(num_devices, np.int64)
    available = np.ones((hours, num_devices), np.bool_)
    for now in hour.tolist():
        if leaves[now]:
            there = np.flatnonzero(back <= now)
            room = max(len(there) - -(-num_devices // 2), 0)
            gone = there[np.argsort(order[now, there])][: min(int(count[now]), room)]
            back[gone] = now + max(round(away[now]), 1)
        available[now] = back <= now
    return available


def _daily(level: DriftLevel, day: FloatArray, num_tables: int, rng: np.random.Generator) -> FloatArray:
    """A wave of each table: at every hour its deviation over the tables is `daily`."""
    cosine, sine = rng.normal(0.0, level.daily, (2, num_tables))
    angle = 2.0 * np.pi * day[:, None]
    return np.asarray(np.cos(angle) * cosine + np.sin(angle) * sine)


def _shifts(level: DriftLevel, intervals: int, num_tables: int, rng: np.random.Generator) -> FloatArray:
    happens = rng.random((intervals, num_tables)) < level.shifts / INTERVALS_PER_DAY
    steps = np.zeros((intervals, num_tables))
    steps[happens] = rng.normal(0.0, level.shift, int(happens.sum()))
    return np.cumsum(steps, axis=0)


def _incidents(level: DriftLevel, intervals: int, num_tables: int, rng: np.random.Generator) -> FloatArray:
    """Sums of the incidents that last; they overlap."""
    happens = rng.random((intervals, num_tables)) < level.incidents / INTERVALS_PER_DAY
    begin, table = np.nonzero(happens)
    hours, heights = rng.uniform(1.0, 12.0, len(begin)), rng.normal(0.0, level.incident, len(begin))
    end = np.minimum(begin + np.rint(hours * INTERVALS_PER_DAY / 24).astype(np.int64), intervals)
    steps = np.zeros((intervals + 1, num_tables))
    np.add.at(steps, (begin, table), heights)
    np.add.at(steps, (end, table), -heights)
    return np.cumsum(steps[:-1], axis=0)


def _walk(level: DriftLevel, intervals: int, num_tables: int, rng: np.random.Generator) -> FloatArray:
    """A stationary walk: its deviation is `walk`, its correlation after `walk_hours` is 1 / e."""
    keep = np.exp(-24.0 / INTERVALS_PER_DAY / level.walk_hours) if level.walk_hours else 0.0
    noise = rng.normal(0.0, level.walk, (intervals, num_tables))
    noise[1:] *= np.sqrt(1.0 - keep**2)
    for previous, current in pairwise(noise):  # in place
        current += keep * previous
    return noise


def _presence(level: DriftLevel, day: FloatArray, num_tables: int, rng: np.random.Generator) -> FloatArray:
    """(I, T) from 0 to 1: features that arrive or retire, each on a random day."""
    drawn, begin = rng.random(num_tables), rng.uniform(0.0, max(day[-1] - RAMP_DAYS, 0.0), num_tables)
    ramp = np.clip((day[:, None] - begin) / RAMP_DAYS, 0.0, 1.0)
    arrives, retires = drawn < level.arrivals / 2, drawn > 1.0 - level.arrivals / 2
    return np.where(arrives, ramp, np.where(retires, 1.0 - ramp, 1.0))


def _rows(level: DriftLevel, days: int, num_tables: int, rng: np.random.Generator) -> FloatArray:
    """Growth by a power of age; on its weekday, cold rows leave a table."""
    age, weekday = rng.uniform(*level.age_days, num_tables), rng.integers(DAYS_PER_WEEK, size=num_tables)
    day = np.arange(days)[:, None]
    grown = (1.0 + day / age) ** level.growth
    prunings = (day + DAYS_PER_WEEK - weekday) // DAYS_PER_WEEK - (weekday == 0)
    return np.asarray(grown * (1.0 - level.pruned) ** np.maximum(prunings, 0))


def _exponents(level: DriftLevel, days: int, num_tables: int, rng: np.random.Generator) -> FloatArray:
    """A random walk from 1, a step each night."""
    steps = rng.normal(0.0, level.skew, (days, num_tables))
    steps[0] = 0.0
    return _multiples(np.cumsum(steps, axis=0))


def _multiples(logs: FloatArray) -> FloatArray:
    """e to the `logs`, from `LOWEST` to `HIGHEST`; those far outside would be no float."""
    return np.asarray(np.clip(np.exp(np.clip(logs, -99.0, 99.0)), LOWEST, HIGHEST))
