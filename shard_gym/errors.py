"""Every error ShardGym raises on purpose.

Each class names one kind of failure; each message is a sentence that names the thing, the value and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import numpy as np


class ShardGymError(Exception):
    """Base of all errors ShardGym raises on purpose."""


class InvalidTablesError(ShardGymError, ValueError):
    """Raised when the description of the tables is not usable (NaN, wrong shape, impossible value)."""


class InvalidTopologyError(ShardGymError, ValueError):
    """Raised when a device or a topology is described with impossible numbers."""


class InvalidTaskError(ShardGymError, ValueError):
    """Raised when a task cannot be solved or is not consistent in itself."""


class TableTooLargeError(InvalidTaskError):
    """Raised when a table does not fit an empty device of the topology."""


class InvalidPlacementError(ShardGymError, ValueError):
    """Raised when a placement does not have one legal device for every table."""


class MemoryExceededError(InvalidPlacementError):
    """Raised when a placement puts more bytes on a device than its memory cap allows."""


class NoPlacementFoundError(ShardGymError):
    """Raised by an agent that finds no valid placement of a task; an evaluation counts it as a failure."""


class InvalidActionError(ShardGymError, ValueError):
    """Raised when an action lies outside the action space (an illegal one inside it ends the episode instead)."""


class InvalidOptionError(ShardGymError, ValueError):
    """Raised when an argument or a reset option has a value that means nothing."""


class InvalidCostError(ShardGymError, ValueError):
    """Raised when a cost model says that something costs NaN or infinitely many ms."""


class UnknownNameError(ShardGymError, ValueError):
    """Raised when a name is not in one of the registries; the message lists what is."""


class DamagedFileError(ShardGymError, ValueError):
    """Raised when a file's content is not what its checksum, its schema or its format promises."""


class InvalidCheckpointError(ShardGymError, ValueError):
    """Raised when a file of weights is missing, damaged, pickled, of another program, or not for what loads it."""


class TrainingDivergedError(ShardGymError):
    """Raised when training made a weight NaN or infinite; the state of the iteration before stays on the disk."""


class RunsFailedError(ShardGymError):
    """Raised at the end when runs ended with an error; the records of all others are written."""


class MeasurementError(ShardGymError):
    """Raised when a placement could not be measured; the next measurement starts with new workers."""


class WorkerDiedError(MeasurementError):
    """Raised when a worker process ended by itself or was killed during a measurement."""


class MeasurementTimeoutError(MeasurementError, TimeoutError):
    """Raised when a measurement takes longer than it may: a collective is stuck, or there is too much to do."""


class DeviceMemoryError(MeasurementError):
    """Raised when a device has not enough memory for its tables, their lookups or the exchanged outputs."""


class UnwritablePathError(ShardGymError, OSError):
    """Raised when a file cannot be written where it was asked for."""


class MissingExtraError(ShardGymError, ImportError):
    """Raised when an optional dependency is needed and not installed."""


# The errors above take one message, so that they survive the way back from another process. Messages of one form are
# made below.


def unknown_name(kind: str, name: object, known: Iterable[str], listing: str = "") -> UnknownNameError:
    """The error for a `name` that is not one of `known`; `listing` stands for a list that would be too long."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UnknownNameError(f"There is no {kind} named {name!r}.{hint} Known: {listing or ', '.join(known)}.")


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional `package` that is not installed, and the `extra` that brings it."""
    return MissingExtraError(
        f"{purpose} needs the package {package!r}, which is not installed. "
        f"Install it with: pip install 'shard-gym[{extra}]'."
    )


def wrong_kind(argument: str, given: object, wanted: str, way_out: str = "") -> InvalidOptionError:
    """The error for an argument that is not the kind of object it must be.

    Args:
        argument: its name.
        given: what was given; a class in place of an object is recognised.
        wanted: what it must be.
        way_out: a sentence about what to pass instead, if `wanted` does not say it.
    """
    said = f"{argument} must be {wanted}, not {short_repr(given)}."
    if isinstance(given, type):
        said = f"{argument} must be {wanted}, not a class; pass an instance: {given.__name__}()."
    return InvalidOptionError(f"{said} {way_out}".rstrip())


def short_repr(value: object, limit: int = 80) -> str:
    """`repr(value)` for a message: on one line, cut after `limit` characters, NumPy's numbers as plain ones."""
    try:
        text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in a list in a list ...
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
