"""Checks of single arguments: seeds, counts and positive numbers; what is wrong raises `InvalidOptionError`."""

from __future__ import annotations

import math

import numpy as np

from shard_gym.errors import InvalidOptionError


def checked_seed(seed: int) -> int:
    """`seed` as an int.

    Raises:
        InvalidOptionError: it is not an integer of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InvalidOptionError(f"A seed is an integer of at least 0, not {seed!r}.")
    return int(seed)


def checked_count(name: str, value: int, least: int = 1) -> int:
    """`value`.

    Raises:
        InvalidOptionError: it is not an integer of at least `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOptionError(f"{name} must be an integer of at least {least}, not {value!r}.")
    return value


def checked_positive(name: str, value: float) -> float:
    """`value` as a float.

    Raises:
        InvalidOptionError: it is not a finite number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InvalidOptionError(f"{name} must be a positive number, not {value!r}.")
    return float(value)
