"""Every error ShardGym raises on purpose.

Each class names one kind of failure; each message is a sentence that names the thing, the value and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


class UnknownNameError(ShardGymError, ValueError):
    """Raised when a name is not in one of the registries; the message lists what is."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        known = sorted(known)
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(f"There is no {kind} named {name!r}.{hint} Known: {', '.join(known)}.")


class DamagedFileError(ShardGymError, ValueError):
    """Raised when a file's content is not what its checksum, its schema or its format promises."""


class DuplicateNameError(ShardGymError, ValueError):
    """Raised when a name is registered a second time."""


class MissingExtraError(ShardGymError, ImportError):
    """Raised when an optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'shard-gym[{extra}]'."
        )
