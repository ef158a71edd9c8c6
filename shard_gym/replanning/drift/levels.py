"""How strongly tables drift: the parameters of the processes, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shard_gym.common.checks import is_integer, is_number
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.hardware import MAX_DEVICES


@dataclass(frozen=True)
class DriftLevel:
    """The parameters of drift. Deviations are those of the logarithm of the pooling factor of a table.

    One shift is measured: the 856 tables of one model of Meta at two times, months apart, with 47% fewer lookups and
    52% fewer distinct rows (facebookresearch/dlrm_datasets, issue 10: t856_bs65536 and t856_bs65536_0 to _15). It is
    one number for all tables together. What single tables do from hour to hour is not published, so all parameters are
    assumed.

    Raises:
        InvalidOptionError: a parameter is out of range.
    """

    daily: float = 0.0  #: deviation of the wave with the period of a day; each table has its own amplitude and hour
    weekend: float = 0.0  #: deviation of the factor of Saturdays and Sundays
    shifts: float = 0.0  #: lasting shifts of a table in a day
    shift: float = 0.0  #: deviation of a lasting shift
    incidents: float = 0.0  #: incidents of a table in a day; each lasts 1 to 12 hours
    incident: float = 0.0  #: deviation of an incident
    walk: float = 0.0  #: deviation of a walk that returns to its mean
    walk_hours: float = 48.0  #: hours in which the walk forgets all but 1 / e
    #: Power of time by which the rows grow; 0 for none. 0.5 is Heaps' law for the distinct words of a text.
    growth: float = 0.0
    age_days: tuple[float, float] = (10.0, 60.0)  #: least and most days since a growing table was empty
    pruned: float = 0.0  #: share of the rows that leave a growing table on its pruning day, once a week
    #: Share of the tables whose feature arrives or retires in the history or the episode, as many of both.
    arrivals: float = 0.0
    skew: float = 0.0  #: deviation of the daily steps of the logarithm of the exponent of row popularity
    #: How often devices leave in a day, as those at spot prices do; at 14:00 the hazard is twice its mean, at 2:00
    #: there is none. At most half of all are away at once.
    departures: float = 0.0
    leaving: tuple[int, int] = (1, 3)  #: least and most devices that leave together
    away_hours: tuple[float, float] = (4.0, 24.0)  #: least and most hours until they are back

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value: Any = getattr(self, name)
            numbers = value if name in _RANGES and isinstance(value, tuple) else (value,)
            for number in numbers:
                if not is_number(number) or not least <= number <= most:
                    raise InvalidOptionError(
                        f"{name} of a DriftLevel must be a number from {least:g} to {most:g}, not {short_repr(number)}."
                    )
            if name in _RANGES and (numbers is not value or len(value) != 2 or value[0] > value[1]):
                raise InvalidOptionError(
                    f"{name} of a DriftLevel must be a tuple of the least and the most, not {short_repr(value)}."
                )
        if not all(map(is_integer, self.leaving)):
            raise InvalidOptionError(f"leaving of a DriftLevel must be two integers, not {short_repr(self.leaving)}.")

    def most_growth(self, days: float) -> float:
        """The rows of a table after so many days, in multiples of those at the start, at most."""
        return float((1.0 + days / self.age_days[0]) ** self.growth)


_RANGES = ("age_days", "leaving", "away_hours")

_LIMITS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("daily", "weekend", "shift", "incident", "walk", "skew"), (0, 10)),  # e^10 is a factor of 22,026
    **dict.fromkeys(("shifts", "incidents"), (0, 96)),  # one in each quarter of an hour
    **dict.fromkeys(("pruned", "arrivals"), (0, 1)),
    "walk_hours": (0, 1e5),
    "growth": (0, 2),
    "age_days": (0.1, 1e5),  # no table is empty when drift begins
    "departures": (0, 24),  # one in each hour
    "leaving": (0, MAX_DEVICES),
    "away_hours": (0, 1e5),
}
"""The least and the most of each parameter."""

MEDIUM = DriftLevel(daily=0.3, weekend=0.3, shifts=0.15, shift=0.5, incidents=0.5, incident=0.5, walk=0.10)
STRONG = DriftLevel(daily=0.5, weekend=0.5, shifts=0.15, shift=0.7, incidents=1.0, incident=0.7, walk=0.15)
GROWING = replace(MEDIUM, growth=0.5, age_days=(3.0, 30.0), pruned=0.05, skew=0.02, arrivals=0.1)
SPOT = replace(MEDIUM, departures=1.0)
