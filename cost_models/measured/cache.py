"""A cache of measured times by a key that names hardware and work, in memory or in a file."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from shard_gym.errors import DamagedFileError, UnwritablePathError, wrong_kind

_TABLE = "CREATE TABLE IF NOT EXISTS measurements (key TEXT PRIMARY KEY, ms TEXT NOT NULL) WITHOUT ROWID"


class MeasurementCache:
    """Lists of ms by key, in an SQLite database: programs can share one file, and a killed one does not damage it.

    Args:
        path: of the file, made if it is missing; None keeps everything in memory.

    Raises:
        InvalidOptionError: `path` is no path.
        DamagedFileError: the file is something else.
        UnwritablePathError: it cannot be opened or made.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is not None and not isinstance(path, (str, Path)):
            raise wrong_kind("cache", path, "the path of a file, or None")
        self.path = None if path is None else Path(path)
        self._owner = -1
        self._connect()

    def _connect(self) -> sqlite3.Connection:
        """The connection; a forked or unpickled copy opens its own."""
        if self._owner != os.getpid():
            try:
                self._connection = sqlite3.connect(self.path or ":memory:", timeout=30.0, isolation_level=None)
                self._connection.execute(_TABLE)
            except sqlite3.OperationalError as error:
                raise UnwritablePathError(
                    f"The measurement cache {self.path} cannot be opened: {error}. "
                    "Name a file in a folder that is there."
                ) from error
            except sqlite3.DatabaseError as error:
                raise DamagedFileError(
                    f"{self.path} is no measurement cache ({error}); move it away, or name another file."
                ) from error
            self._owner = os.getpid()
        return self._connection

    def get(self, key: str) -> list[float] | None:
        """The ms under `key`, or None."""
        row = self._connect().execute("SELECT ms FROM measurements WHERE key = ?", (key,)).fetchone()
        return None if row is None else list(json.loads(row[0]))

    def put(self, key: str, ms: list[float]) -> None:
        """Keep `ms` under `key`; what was there is replaced."""
        self._connect().execute("INSERT OR REPLACE INTO measurements VALUES (?, ?)", (key, json.dumps(ms)))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_owner": -1}
