"""Checks of single arguments: integers, numbers, seeds and counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shard_gym.errors import InvalidOptionError


def is_integer(value: Any) -> bool:
    """Whether `value` is a Python or NumPy integer; a bool is not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether `value` is a finite Python or NumPy number above 0; a bool is not."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(0 < value < math.inf)


def is_not_negative(value: Any) -> bool:
    """Whether `value` is a finite Python or NumPy number of at least 0; a bool is not."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(0 <= value < math.inf)


def checked_seed(seed: int) -> int:
    """`seed` as an int.

    Raises:
        InvalidOptionError: it is not an integer of at least 0.
    """
    if not is_integer(seed) or seed < 0:
        raise InvalidOptionError(f"A seed is an integer of at least 0, not {seed!r}.")
    return int(seed)


def checked_count(name: str, value: int, least: int = 1) -> int:
    """`value` as an int.

    Raises:
        InvalidOptionError: it is not an integer of at least `least`.
    """
    if not is_integer(value) or value < least:
        raise InvalidOptionError(f"{name} must be an integer of at least {least}, not {value!r}.")
    return int(value)


def checked_positive(name: str, value: float) -> float:
    """`value` as a float.

    Raises:
        InvalidOptionError: it is not a finite number above 0.
    """
    if not is_positive(value):
        raise InvalidOptionError(f"{name} must be a positive number, not {value!r}.")
    return float(value)
