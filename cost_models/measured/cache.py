"""A cache of measured times by a key that names hardware and work, in memory or in a file."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.common.errors import DamagedFileError, ShardGymError, UnwritablePathError, wrong_kind
from shard_gym.common.io.files import sha256_of

_TABLE = "CREATE TABLE times (key TEXT PRIMARY KEY, ms TEXT NOT NULL, sha256 TEXT NOT NULL) WITHOUT ROWID"

_DAMAGED = ("malformed", "not a database", "unsupported file format")
"""What SQLite says of a damaged file; it says the second one also of a file that never was a database."""

_MAGIC = b"SQLite format 3\0"  # what a file of SQLite begins with
PATIENCE_S = 30.0  # how long another program may hold the file

_HINTS = {
    "locked": "Another program holds it; wait until that ends, or name another file.",
    "full": "Free space on its disk, or name a file on another one.",
    "readonly": "Make the file and its folder writable, or name another file.",
    "unable to open": "Name a file in a folder that is there and that can be written to.",
    "I/O error": "Its disk refuses; name a file on another one.",
}
"""What to do, by what SQLite says; anything else it says is of a damaged file, or of one that is no such database."""


class DamagedCacheWarning(UserWarning):
    """A measurement cache is damaged; what it lost is measured again."""


class MeasurementCache:
    """Lists of ms by key, in an SQLite database: programs can share one file, and a killed one does not damage it.

    Times have a checksum. Those that do not match it are measured again, and so is everything if the database itself is
    damaged: it is moved away, to the name with ".damaged" behind it, and begun anew. A `DamagedCacheWarning` says so.
    All threads of a program may use one cache.

    Args:
        path: of the file, made if it is missing; None keeps everything in memory.

    Raises:
        InvalidOptionError: `path` is no path, or a key is no printable text.
        DamagedFileError: the file is something else.
        UnwritablePathError: it cannot be opened, made or written to, the disk is full, or another program locks it.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise wrong_kind("cache", path, "the path of a file, or None")
        self.path = None if path is None else Path(path)
        self._owner = -1
        self._execute("SELECT key, ms, sha256 FROM times LIMIT 1")

    def _connect(self) -> sqlite3.Connection:
        """The connection; a forked or unpickled copy opens its own."""
        if self._owner != os.getpid():
            self._lock = threading.RLock()
            self._connection = sqlite3.connect(
                self.path or ":memory:", timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = _text
            found = {sql for (sql,) in self._connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")}
            if not found <= {_TABLE}:
                raise sqlite3.OperationalError("it is the database of another program")
            self._connection.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
            self._owner = os.getpid()
        return self._connection

    def _execute(self, statement: str, *values: str) -> list[Any]:
        """The rows that an SQL statement gives; a damaged database is begun anew once."""
        try:
            return self._rows(statement, *values)
        except sqlite3.ProgrammingError:
            raise  # of the program, not of the file
        except sqlite3.DatabaseError as error:
            self._begin_anew(error)
        try:
            return self._rows(statement, *values)
        except sqlite3.DatabaseError as error:
            raise self._refusal(error) from error

    def _rows(self, statement: str, *values: str) -> list[Any]:
        connection = self._connect()
        with self._lock:
            return connection.execute(statement, values).fetchall()

    def _refusal(self, error: sqlite3.DatabaseError) -> ShardGymError:
        for sign, hint in _HINTS.items():
            if sign in str(error):
                return UnwritablePathError(
                    f"The measurement cache {self.path} cannot be used: {error}. {hint} What it holds is kept."
                )
        return DamagedFileError(f"{self.path} is no measurement cache ({error}). Move it away, or name another file.")

    def _begin_anew(self, error: sqlite3.DatabaseError) -> None:
        """Move a damaged database away; raises the refusal if the file is not damaged, or no database."""
        damaged = any(sign in str(error) for sign in _DAMAGED)
        if self.path is None or not damaged or not _is_database(self.path):
            raise self._refusal(error) from error
        moved = self.path.with_name(f"{self.path.name}.damaged")
        try:
            os.replace(self.path, moved)
        except OSError as failed:
            raise UnwritablePathError(
                f"The measurement cache {self.path} is damaged ({error}) and cannot be moved away: "
                f"{failed.strerror or failed}. Name another file."
            ) from error
        for rest in ("-journal", "-wal", "-shm"):
            self.path.with_name(f"{self.path.name}{rest}").unlink(missing_ok=True)
        self._owner = -1
        warnings.warn(
            f"The measurement cache {self.path} is damaged ({error}). It is begun anew, what it held is measured "
            f"again, and the damaged file is kept as {moved}.",
            DamagedCacheWarning,
            stacklevel=5,
        )

    def get(self, key: str, count: int | None = None) -> list[float] | None:
        """The ms under `key`, `count` of them if that is given, or None; raises the errors of the class."""
        _require_key(key)
        rows = self._execute("SELECT ms, sha256 FROM times WHERE key = ?", key)
        if not rows:
            return None
        text, sha256 = rows[0]
        ms = _checked(key, text, sha256, count)
        if ms is None:
            warnings.warn(
                f"The measurement cache {self.path} holds damaged times; they are measured again.",
                DamagedCacheWarning,
                stacklevel=3,
            )
        return ms

    def put(self, key: str, ms: list[float]) -> None:
        """Keep `ms` under `key`, printable text; what was there is replaced. Raises the errors of the class."""
        _require_key(key)
        text = json.dumps(ms)
        self._execute("INSERT OR REPLACE INTO times VALUES (?, ?, ?)", key, text, _digest(key, text))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_owner": -1}


def _require_key(key: Any) -> None:
    if not isinstance(key, str) or not key.isprintable():
        raise wrong_kind("key", key, "a text of printable characters")


def _text(content: bytes) -> str:
    """What SQLite returns as text; wrong UTF-8 is a wrong checksum, and no error."""
    return content.decode(errors="replace")


def _digest(key: str, text: str) -> str:
    return sha256_of(f"{key}\n{text}".encode())


def _checked(key: str, text: Any, sha256: Any, count: int | None) -> list[float] | None:
    """The times in a row; None if it is damaged, or they are no times."""
    if not isinstance(text, str) or sha256 != _digest(key, text):
        return None
    try:
        ms = np.array(json.loads(text), np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    fits = ms.ndim == 1 and ms.size and (count is None or ms.size == count)
    return ms.tolist() if fits and (np.isfinite(ms) & (ms >= 0)).all() else None


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False
