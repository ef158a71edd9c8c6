"""A lock on a folder, so that one program at a time adds files to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shard_gym.common.errors import InvalidOptionError, UnwritablePathError, missing_extra
from shard_gym.common.io.files import remove_temporaries

LOCK = ".lock"  # the name of the lock's file in its folder; it stays there and holds nothing


@contextmanager
def exclusive_access(folder: str | Path) -> Iterator[None]:
    """Keep other programs from adding to `folder`, which is made; what a killed program left there is removed."""
    try:
        from filelock import FileLock, Timeout
    except ModuleNotFoundError as error:
        raise missing_extra("filelock", "torch", "Adding to a folder") from error
    folder = Path(folder)
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InvalidOptionError(
            f"Another program is adding to {folder}. Wait until it is done, or name another folder."
        ) from error
    except OSError as error:
        raise UnwritablePathError(f"{folder} cannot be written to: {error.strerror or error}.") from error
    try:
        remove_temporaries(folder)
        yield
    finally:
        lock.release()
