"""Checks of single arguments: integers, numbers, names, seeds and counts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from shard_gym.common.errors import InvalidOptionError, ShardGymError, short_repr

MAX_NAME = 200  # the most characters of a name: a line of a page
MAX_LEARNING_RATE = 1e9  # far beyond any use; weights are float32, which end at 3.4e38

MAX_UNITS = 4096
"""The most units of a layer of an agent's network: a layer of so many has 64 MiB of weights, and an LSTM 512 MiB."""


_NO_NUMBERS = (str, bytes, bool, np.bool_, np.timedelta64, np.datetime64)  # which NumPy would convert


class ReadOnlyArrays:
    """An object whose arrays were checked when it was made, and cannot be written to in a copy of it, either.

    NumPy's arrays are writable after `copy.deepcopy` and `pickle`, whatever they were before.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        for value in state.values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        self.__dict__.update(state)

    def derived(self, **changes: Any) -> Self:
        """A copy of this dataclass with other values of some fields, made of checked ones: nothing is checked again.

        Arrays are taken over, and are read-only then.
        """
        made = object.__new__(type(self))
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        if not changes.keys() <= values.keys():
            raise TypeError(f"{type(self).__name__} has no {sorted(changes.keys() - values.keys())}.")
        for name, value in (values | changes).items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(made, name, value)
        return made


def is_integer(value: Any) -> bool:
    """Whether `value` is a Python or NumPy integer; no bool, and no time span, which NumPy counts among integers."""
    if type(value) is int:  # nearly all are
        return True
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def holds_integers(array: NDArray[Any]) -> bool:
    """Whether the dtype of `array` is one of integers; see `is_integer`."""
    return array.dtype.kind in "iu"


def is_number(value: Any) -> bool:
    """Whether `value` is a real Python or NumPy number that a float holds: no bool, NaN, infinity or larger integer."""
    if not is_integer(value) and not isinstance(value, (float, np.floating)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # 10**400
        return False


def is_positive(value: Any) -> bool:
    """Whether `value` is a number (see `is_number`) above 0."""
    return is_number(value) and bool(value > 0)


def is_not_negative(value: Any) -> bool:
    """Whether `value` is a number (see `is_number`) of at least 0."""
    return is_number(value) and bool(value >= 0)


def is_name(value: Any) -> bool:
    """Whether `value` can name a thing: printable text on one line, not blank, of at most `MAX_NAME` characters."""
    return isinstance(value, str) and len(value) <= MAX_NAME and bool(value.strip()) and value.isprintable()


def is_iterable(value: Any) -> bool:
    """Whether `value` has items: no text, and no array of no dimension, which Python takes for one that has."""
    return isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) > 0


def is_one_of(value: Any, known: Collection[str]) -> bool:
    """Whether `value` is one of some texts; no array, which NumPy compares with each."""
    return isinstance(value, str) and value in known


def as_array(name: str, values: Any, error: type[ShardGymError]) -> NDArray[Any]:
    """`values` as an array of any shape; raises `error` for lists of different lengths. Messages call them `name`."""
    try:
        return np.asarray(values)
    except ValueError as wrong:
        raise error(f"{name} must be numbers in rows of one length, not {short_repr(values)}.") from wrong


def as_floats(name: str, values: Any, error: type[ShardGymError]) -> NDArray[np.float64]:
    """`values` as a new float64 array of any shape; raises `error` if they are no real numbers. See `as_array`."""
    given = as_array(name, values, error)
    try:
        if given.dtype.kind in "USbcmM":  # texts, bools, complex numbers and times
            raise TypeError
        if given.dtype.kind == "O" and any(isinstance(each, _NO_NUMBERS) for each in given.flat):
            raise TypeError
        return given.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise error(f"{name} must be numbers, not {short_repr(given.tolist())}.") from wrong


def as_indices(what: str, indices: Any, count: int, error: type[ShardGymError]) -> NDArray[np.int64]:
    """`indices` as (n,) int64 numbers of some of `count` things, each a `what` such as "table"; raises `error`."""
    chosen = as_array(f"{what.capitalize()} indices", indices, error)
    if chosen.ndim != 1 or not holds_integers(chosen):
        raise error(f"{what.capitalize()} indices must be a list of integers, not {short_repr(indices)}.")
    outside = chosen[(chosen < 0) | (chosen >= count)]
    if outside.size:
        raise error(f"There is no {what} {int(outside[0])}; the {what}s are 0 to {count - 1}.")
    return chosen.astype(np.int64, copy=False)


def require_kinds(owner: object, called: str, error: type[ShardGymError], hint: str = "", **kinds: type) -> None:
    """Raise `error` unless each field of `owner` that `kinds` names is of that class; `hint` ends the message."""
    for field, kind in kinds.items():
        given = getattr(owner, field)
        if not isinstance(given, kind):
            raise error(f"{field} of {called} must be a {kind.__name__}, not {short_repr(given)}.{hint}")


def require_name(what: str, value: Any, error: type[ShardGymError]) -> None:
    """Raise `error` if `value` is no name (see `is_name`); `what` it is the name of begins the message."""
    if not is_name(value):
        raise error(f"{what} is printable text on one line, of 1 to {MAX_NAME} characters, not {short_repr(value)}.")


def checked_seed(seed: int) -> int:
    """`seed` as an int; InvalidOptionError unless it is an integer of at least 0."""
    if not is_integer(seed) or seed < 0:
        raise InvalidOptionError(f"A seed is an integer of at least 0, not {short_repr(seed)}.")
    return int(seed)


def checked_count(name: str, value: int, least: int = 1, most: int | None = None) -> int:
    """`value` as an int; InvalidOptionError unless it is an integer from `least` to `most`."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidOptionError(f"{name} must be an integer {limits}, not {short_repr(value)}.")
    return int(value)


def checked_flag(name: str, value: bool) -> bool:
    """`value` as a bool; InvalidOptionError unless it is True or False, of Python or NumPy."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidOptionError(f"{name} must be True or False, not {short_repr(value)}.")
    return bool(value)


def require_arguments(call: Callable[..., Any], subject: str, /, *values: Any, **options: Any) -> None:
    """Raise InvalidOptionError, which begins with `subject`, unless `call` takes these arguments; it is not called.

    So a TypeError that is raised inside it is told from one of its options.
    """
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(f"{subject} cannot be made: it does not tell its arguments.") from error
    try:
        signature.bind(*values, **options)
    except TypeError as error:
        own = list(signature.parameters.values())[len(values) :]
        known = [each.name for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        given = ", ".join(f"{name}={short_repr(value)}" for name, value in options.items())
        has = f"Its options are {', '.join(known)}" if known else "It has no options"
        raise InvalidOptionError(f"{subject} cannot be made with the options {given}: {error}. {has}.") from error


def checked_positive(name: str, value: float) -> float:
    """`value` as a float; InvalidOptionError unless it is a finite number above 0."""
    if not is_positive(value):
        raise InvalidOptionError(f"{name} must be a positive number, not {short_repr(value)}.")
    return float(value)


def checked_learning_rate(value: float) -> float:
    """`value` as a float; InvalidOptionError unless it is above 0 and at most `MAX_LEARNING_RATE`."""
    rate = checked_positive("learning_rate", value)
    if rate > MAX_LEARNING_RATE:
        raise InvalidOptionError(f"learning_rate must be at most {MAX_LEARNING_RATE:g}, not {rate:g}.")
    return rate
