"""Checks of single arguments: integers, numbers, seeds and counts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shard_gym.errors import InvalidOptionError, short_repr


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
        raise InvalidOptionError(f"A seed is an integer of at least 0, not {short_repr(seed)}.")
    return int(seed)


def checked_count(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """`value` as an int.

    Raises:
        InvalidOptionError: it is not an integer of at least `least`, and at most `most` if that is given.
    """
    if not is_integer(value) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidOptionError(f"{name} must be an integer {limits}, not {short_repr(value)}.")
    return int(value)


def require_arguments(call: Callable[..., Any], subject: str, *values: Any, **options: Any) -> None:
    """Check that `call(*values, **options)` has all arguments it needs, and no others; it is not called.

    So a TypeError that is raised inside it is told from one of its options.

    Raises:
        InvalidOptionError: it has not; the message begins with `subject`.
    """
    try:
        inspect.signature(call).bind(*values, **options)
    except TypeError as error:
        raise InvalidOptionError(
            f"{subject} cannot be made with the options {short_repr(options)}: {error}."
        ) from error


def checked_positive(name: str, value: float) -> float:
    """`value` as a float.

    Raises:
        InvalidOptionError: it is not a finite number above 0.
    """
    if not is_positive(value):
        raise InvalidOptionError(f"{name} must be a positive number, not {short_repr(value)}.")
    return float(value)
