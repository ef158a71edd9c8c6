"""A cache of measured times by a key that names hardware and work, in memory or in a file."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from shard_gym.errors import DamagedFileError, ShardGymError, UnwritablePathError, wrong_kind

_TABLE = "CREATE TABLE IF NOT EXISTS measurements (key TEXT PRIMARY KEY, ms TEXT NOT NULL) WITHOUT ROWID"

PATIENCE_S = 30.0
"""How long another program may hold the file."""

_WAYS_OUT = {
    "locked": "Another program holds it; wait until that ends, or name another file.",
    "full": "Free space on its disk, or name a file on another one.",
    "readonly": "Make the file and its folder writable, or name another file.",
    "unable to open": "Name a file in a folder that is there and that can be written to.",
    "I/O error": "Its disk refuses; name a file on another one.",
}
"""What to do, by what SQLite says; anything else it says is of a file that is no such database."""


class MeasurementCache:
    """Lists of ms by key, in an SQLite database: programs can share one file, and a killed one does not damage it.

    Args:
        path: of the file, made if it is missing; None keeps everything in memory.

    Raises:
        InvalidOptionError: `path` is no path.
        DamagedFileError: the file is something else, or a part of it is damaged.
        UnwritablePathError: it cannot be opened, made or written to, the disk is full, or another program locks it.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise wrong_kind("cache", path, "the path of a file, or None")
        self.path = None if path is None else Path(path)
        self._owner = -1
        self._execute("SELECT key, ms FROM measurements LIMIT 1")

    def _connect(self) -> sqlite3.Connection:
        """The connection; a forked or unpickled copy opens its own."""
        if self._owner != os.getpid():
            self._connection = sqlite3.connect(self.path or ":memory:", timeout=PATIENCE_S, isolation_level=None)
            self._connection.execute(_TABLE)
            self._owner = os.getpid()
        return self._connection

    def _execute(self, statement: str, *values: str) -> list[Any]:
        """The rows that an SQL statement gives."""
        try:
            return self._connect().execute(statement, values).fetchall()
        except sqlite3.ProgrammingError:
            raise  # of the program, not of the file
        except sqlite3.DatabaseError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: sqlite3.DatabaseError) -> ShardGymError:
        for sign, way_out in _WAYS_OUT.items():
            if sign in str(error):
                return UnwritablePathError(
                    f"The measurement cache {self.path} cannot be used: {error}. {way_out} What it holds is kept."
                )
        return DamagedFileError(
            f"{self.path} is no measurement cache, or it is damaged ({error}). Move it away, or name another file."
        )

    def get(self, key: str) -> list[float] | None:
        """The ms under `key`, or None; raises the errors of the class."""
        rows = self._execute("SELECT ms FROM measurements WHERE key = ?", key)
        try:
            return [float(ms) for ms in json.loads(rows[0][0])] if rows else None
        except (TypeError, ValueError) as error:
            raise DamagedFileError(
                f"{self.path} is damaged: under {key!r} are no times. Move it away, or name another file."
            ) from error

    def put(self, key: str, ms: list[float]) -> None:
        """Keep `ms` under `key`; what was there is replaced. Raises the errors of the class."""
        self._execute("INSERT OR REPLACE INTO measurements VALUES (?, ?)", key, json.dumps(ms))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_owner": -1}
