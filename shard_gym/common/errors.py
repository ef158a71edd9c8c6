"""All errors that ShardGym raises on purpose, and the messages that several modules share.

Each class is one kind of failure; each message is a sentence that names the thing, the value and what to do. Where a
message has an argument of a function in backticks, such as `host_memory=0`, commands print the option.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import numpy as np


class ShardGymError(Exception):
    """Base class of all errors that ShardGym raises on purpose."""


class InvalidTablesError(ShardGymError, ValueError):
    """The description of the tables is invalid: NaN, a wrong shape, or an impossible value."""


class InvalidTopologyError(ShardGymError, ValueError):
    """The description of a device or a topology holds impossible numbers."""


class InvalidTaskError(ShardGymError, ValueError):
    """A task cannot be solved, or its parts do not match."""


class TableTooLargeError(InvalidTaskError):
    """A table does not fit an empty device of the topology."""


class InvalidConstraintsError(InvalidTaskError):
    """Constraints that are not valid, or that no plan can meet."""


class InvalidPlacementError(ShardGymError, ValueError):
    """A placement does not have one existing device for every table."""


class MemoryExceededError(InvalidPlacementError):
    """A placement exceeds the memory cap of a device."""


class StatesExceedHbmError(MemoryExceededError):
    """What must be in the HBM of a device, such as what the optimizer keeps of each row, exceeds it; or what must be in
    host memory exceeds that."""


class InvalidPlanError(InvalidPlacementError):
    """A sharding plan does not hold every cell of every table where its sharding type wants it."""


class NoPlacementFoundError(ShardGymError):
    """An agent found no valid placement of a task; an evaluation counts it as a failure."""


class InvalidActionError(ShardGymError, ValueError):
    """An action is outside the action space; an illegal action inside it ends the episode instead."""


class InvalidOptionError(ShardGymError, ValueError):
    """An argument or a reset option has an invalid value."""


class TaskIndexError(InvalidOptionError, IndexError):
    """A suite has no task of that number."""


class InvalidCostError(ShardGymError, ValueError):
    """A cost model returned NaN or infinity."""


class UnknownNameError(ShardGymError, ValueError):
    """A name is not registered; the message lists the known names."""


class DamagedFileError(ShardGymError, ValueError):
    """The content of a file does not match its checksum, schema or format."""


class InvalidCheckpointError(ShardGymError, ValueError):
    """A file of weights is missing, damaged, pickled, from another program, or of another kind."""


class TrainingDivergedError(ShardGymError):
    """Training made a weight or a score NaN or infinite; the state of the iteration before is on the disk."""


class RunsFailedError(ShardGymError):
    """Some runs of an experiment failed; the records of the others are written."""


class JobError(ShardGymError):
    """A job failed, or lost its process too often; `job` is its number, None if it is not about one."""

    def __init__(self, message: str, job: int | None = None) -> None:
        super().__init__(message)
        self.job = job


class MeasurementError(ShardGymError):
    """A placement could not be measured; the next measurement starts new workers."""


class WorkerDiedError(MeasurementError):
    """A worker process ended or was killed during a measurement."""


class MeasurementTimeoutError(MeasurementError, TimeoutError):
    """A measurement exceeded its time limit: a collective is stuck, or there is too much work."""


class DeviceMemoryError(MeasurementError):
    """A device has too little memory for its tables, their lookups or the exchanged outputs."""


class MemoryInUseError(DeviceMemoryError):
    """The memory would suffice, but programs use too much of it now; the same measurement may succeed later."""


class UnwritablePathError(ShardGymError, OSError):
    """A file cannot be written to the requested path."""


class MissingExtraError(ShardGymError, ImportError):
    """An optional dependency is needed but not installed."""


# The errors take a single message, so that they can be pickled and raised again in another process.


def unknown_name(kind: str, name: object, known: Iterable[str], listing: str = "") -> UnknownNameError:
    """The error for a `name` that is not one of `known`; `listing` replaces a list of names that is too long."""
    known = sorted(known)
    hint = similar(name, known)
    return UnknownNameError(f"There is no {kind} named {name!r}.{hint} Known: {listing or ', '.join(known)}.")


def similar(name: object, known: Iterable[str]) -> str:
    """A question that names the closest of `known`, after a space; empty if none is close."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for a `package` that is not installed; `extra` is the extra of shard-gym that contains it."""
    return MissingExtraError(f"{purpose} needs the package {package!r}, which is not installed. {install_extra(extra)}")


def missing_torchrec(purpose: str) -> MissingExtraError:
    """The error where TorchRec is not installed; no extra brings it, because it requires the CUDA build of FBGEMM."""
    return MissingExtraError(
        f"{purpose} needs the package 'torchrec', which is not installed. {install_extra('torchrec')} "
        "Then: pip install --no-deps 'torchrec==1.8.*'."
    )


def install_extra(extra: str) -> str:
    """Sentences that say how to install an extra of shard-gym; pip adds it to an installed one without any index."""
    return (
        f"In a clone of ShardGym: pip install -e '.[{extra}]'. Where it is installed: pip install 'shard-gym[{extra}]'."
    )


def wrong_kind(argument: str, given: object, wanted: str, hint: str = "") -> InvalidOptionError:
    """The error for an argument of the wrong type; `hint` is a sentence about what to pass instead of `given`."""
    message = f"{argument} must be {wanted}, not {short_repr(given)}."
    if isinstance(given, type):
        message = f"{argument} must be {wanted}, not a class; pass an instance: {given.__name__}()."
    return InvalidOptionError(f"{message} {hint}".rstrip())


def short_repr(value: object) -> str:
    """`repr(value)` for a message: one line of at most 80 characters, NumPy scalars as Python numbers."""
    try:
        text = " ".join(repr(value.item() if isinstance(value, np.generic) else value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deeply nested lists
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
