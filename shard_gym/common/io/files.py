"""Reading and writing of files: limited reads, atomic writes, and the indexes of the data that ship with ShardGym."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from shard_gym.common.errors import DamagedFileError, UnwritablePathError, unknown_name
from shard_gym.common.io.parsing import parse_json

INDEX = "index.json"

_TEMPORARY = ".shard-gym-"  # beginning of the names of files that are not complete yet
MAX_BYTES = 2**28  # the largest file that is read as a whole


def sha256_of(data: bytes) -> str:
    """SHA-256 of `data` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of the regular file at `path`, of at most `limit` bytes; anything else is a DamagedFileError."""
    try:
        # A pipe would block without O_NONBLOCK.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise DamagedFileError(f"{path} cannot be read: it is no regular file.")
            if about.st_size > limit:
                raise DamagedFileError(f"{path} has {about.st_size:,} bytes; the limit is {limit:,}.")
            return file.read(limit)
    except (OSError, ValueError) as error:  # a ValueError of a path with a null character
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def is_file(path: Path) -> bool:
    """Whether there is a file at `path`; DamagedFileError if a folder above it may not be read."""
    try:
        return path.is_file()
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_json(path: Path) -> Any:
    """The JSON value in the file at `path`; see `read_bytes` and `parse_json` for errors."""
    return parse_json(read_bytes(path), str(path))


def read_index(folder: Path) -> dict[str, str]:
    """SHA-256 of the data files that ship in `folder`, by name, from its index.json."""
    index = read_json(folder / INDEX)
    if not isinstance(index, dict) or not all(isinstance(value, str) for value in index.values()):
        raise DamagedFileError(f"{folder / INDEX} must map names to SHA-256 sums. Reinstall shard-gym.")
    return index


def read_shipped(folder: Path, name: str, kind: str) -> bytes:
    """The content of `name`.json in `folder`, checked against the folder's index; messages call the file a `kind`."""
    index = read_index(folder)
    if not isinstance(name, str) or name not in index:
        raise unknown_name(kind, name, index)
    path = folder / f"{name}.json"
    data = read_bytes(path)
    if sha256_of(data) != index[name]:
        raise DamagedFileError(
            f"{path} has SHA-256 {sha256_of(data)}, but the {kind} {name!r} was published with {index[name]}. "
            "The file was changed or damaged; reinstall shard-gym."
        )
    return data


def require_writable(path: Path) -> None:
    """Raise UnwritablePathError unless `write_atomically` can write to `path`; writes nothing."""
    try:
        if path.exists() and not path.is_file():
            raise UnwritablePathError(
                f"{path} cannot be written: it is {'a folder' if path.is_dir() else 'not a regular file'}. "
                "Name a file that can be replaced."
            )
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):  # os.access is always true for root, even in /proc
            pass
    except (OSError, ValueError) as error:  # a ValueError of a path with a null character
        raise _unwritable(path, error) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees either the old or the new content, or raise UnwritablePathError."""
    require_writable(path)
    try:
        _write_and_rename(path, data)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _write_and_rename(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)  # it can only be read by setting it
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_temporaries(folder: Path) -> None:
    """Remove the incomplete files that a killed `write_atomically` left in `folder`, where no program writes now."""
    with suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY}*"):
            if path.is_file() and not path.is_symlink():
                path.unlink()


def _unwritable(path: Path, error: OSError | ValueError) -> UnwritablePathError:
    if isinstance(error, UnwritablePathError):
        return error
    return UnwritablePathError(
        f"{path} cannot be written: {getattr(error, 'strerror', None) or error}. Choose another path."
    )


def is_file_in(folder: str | Path, name: str) -> bool:
    """Whether a folder has a file of that name; False for what is no folder, and for names that none can have."""
    try:
        return (Path(folder) / name).is_file()
    except (OSError, ValueError):
        return False


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Write `value` as JSON with `write_atomically`; NaN and infinities raise ValueError."""
    write_atomically(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())
