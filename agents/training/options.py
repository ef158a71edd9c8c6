"""Checks of learners' options, which come from the command line as they were typed."""

from __future__ import annotations

import math

from shard_gym.errors import InvalidOptionError


def checked_count(name: str, value: int, least: int = 1) -> int:
    """`value`, if it is an integer of at least `least`.

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOptionError(f"{name} must be an integer of at least {least}, not {value!r}.")
    return value


def checked_positive(name: str, value: float) -> float:
    """`value`, if it is a finite number above 0.

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InvalidOptionError(f"{name} must be a positive number, not {value!r}.")
    return float(value)
