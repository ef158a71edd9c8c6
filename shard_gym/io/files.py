"""Reading and writing of JSON files: atomic writes, checked reads, one canonical form for hashing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from shard_gym.errors import DamagedFileError, UnwritablePathError


def sha256_of(data: bytes) -> str:
    """SHA-256 of `data` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _refuse_constant(token: str) -> float:
    raise ValueError(f"the number {token} is not allowed")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits} is too large")
    return value


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"the key {key!r} stands twice in one object")
        record[key] = value
    return record


def parse_json(data: bytes, source: str) -> Any:
    """The JSON value in `data`. NaN, infinities and doubled keys are refused.

    Raises:
        DamagedFileError: `data` is not such JSON; the message names `source` and the reason.
    """
    try:
        return json.loads(
            data, parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicate_keys
        )
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise DamagedFileError(f"{source} is not readable JSON: {error}.") from error


def read_json(path: Path) -> Any:
    """The JSON value in the file at `path` (see `parse_json`).

    Raises:
        DamagedFileError: the file is missing, unreadable or not JSON.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}.") from error
    return parse_json(data, str(path))


def require_writable(path: Path) -> None:
    """Check that `write_atomically` can write to `path`, before the work for it begins. Nothing is left behind.

    Raises:
        UnwritablePathError: `path` is a folder or a device, or its folder cannot be made or written to.
    """
    try:
        if path.exists() and not path.is_file():
            raise UnwritablePathError(
                f"{path} cannot be written: it is {'a folder' if path.is_dir() else 'no regular file'}. "
                "Name a file that may be written anew."
            )
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):  # asking for permissions alone would say yes to root in /proc
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old content or the new, never a part.

    Raises:
        UnwritablePathError: the disk refuses, or `path` names a folder or a device.
    """
    require_writable(path)
    try:
        _write_and_rename(path, data)
    except OSError as error:
        raise _unwritable(path, error) from error


def _write_and_rename(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".shard-gym-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _unwritable(path: Path, error: OSError) -> UnwritablePathError:
    """`error` as a sentence that names the path asked for, not a temporary one."""
    if isinstance(error, UnwritablePathError):
        return error
    return UnwritablePathError(f"{path} cannot be written: {error.strerror or error}. Choose another place.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Write `value` as JSON, atomically (see `write_atomically`). NaN and infinities are refused with a ValueError."""
    write_atomically(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())
