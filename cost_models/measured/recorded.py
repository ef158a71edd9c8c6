"""Streams of the lookups in one of Meta's files, to run embedding operators on what was recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.measured.streams import Lookups, pieces
from shard_gym.errors import InvalidOptionError, InvalidTablesError, short_repr
from shard_gym.pools.meta_file import Integers, Progress, indices_of, open_lookups
from shard_gym.tables import Tables


class RecordedStream:
    """The lookups of one table of a file, as an `IndexStream` of one feature.

    After the file's last sample comes its first again. What the file says of the table is checked at the first read, so
    that opening does not read gigabytes.

    Args:
        subject: the file and the table, for messages.
        indices: (N,) int, the rows read in all tables; a view of the file.
        offsets: (B + 1,) int, where each bag of this table starts in `indices`, and where the last ends.
        lengths: (B,) int, lookups of each sample.
        num_embeddings: rows of the table, or None if any index below `MAX_ROWS` will do.
    """

    def __init__(
        self, subject: str, indices: Integers, offsets: Integers, lengths: Integers, num_embeddings: int | None
    ) -> None:
        self._subject, self._num_embeddings = subject, num_embeddings
        self._views: tuple[Integers, Integers, Integers] | None = (indices, offsets, lengths)
        self._checked = False

    def lookups(self, start: int, count: int) -> Lookups:
        """The lookups of the samples start .. start + count - 1; see `IndexStream`.

        Raises:
            InvalidOptionError: `start` or `count` is not an integer of at least 0, or the file is closed.
            DamagedFileError: lengths and offsets contradict each other, or an index names no row of any table.
            InvalidTablesError: an index is not below `num_embeddings`.
        """
        if self._views is None:
            raise InvalidOptionError(f"{self._subject} is closed: read its lookups inside `with open_recorded(...)`.")
        indices, offsets, lengths = self._views
        cuts = pieces(start, count, len(lengths))
        if not self._checked:
            self._check(indices, offsets, lengths)
        bags = [np.empty(0, np.int64), *(lengths[first:last] for _, first, last in cuts)]
        reads = [np.empty(0, np.int64), *(indices[offsets[first] : offsets[last]] for _, first, last in cuts)]
        return Lookups(np.concatenate(reads, dtype=np.int64), np.concatenate(bags, dtype=np.int64)[None, :])

    def of_rows(self, num_embeddings: int) -> RecordedStream:
        """The same lookups for a table with so many rows."""
        if self._views is None:
            return self
        return RecordedStream(self._subject, *self._views, num_embeddings)

    def close(self) -> None:
        """Let go of the file."""
        self._views = None

    def _check(self, indices: Integers, offsets: Integers, lengths: Integers) -> None:
        """Refuse what would make an operator read beyond its arrays."""
        reads = indices_of(self._subject, indices, offsets, lengths)
        highest = int(reads.max()) if len(reads) else 0
        if self._num_embeddings is not None and highest >= self._num_embeddings:
            raise InvalidTablesError(
                f"{self._subject} reads row {highest}, but the table has only {self._num_embeddings} rows. "
                f"Give it {highest + 1} rows or more; recorded indices are not mapped to fewer."
            )
        self._checked = True


NAMED = re.compile(r"(?:.*/)?table_(\d+)")
"""Names of tables that say which of a file's they are; `shard_gym.pools.meta` gives such names."""


class RecordedLookups:
    """The streams of a file for tables by their names: `table_17`, or `anything/table_17`, is the file's table 17.

    Args:
        path: the file, see `open_recorded`.

    Raises:
        DamagedFileError: see `open_recorded`.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._open = path, ExitStack()
        self._streams = self._open.enter_context(open_recorded(path))

    def stream(self, tables: Tables, table: int, seed: int) -> RecordedStream:
        """That of a table; nothing is drawn, so there is nothing for the seed to change.

        Raises:
            InvalidTablesError: its name says no table of the file, or it has several features or too few rows.
        """
        name, features = tables.names[table], int(tables.num_features[table])
        found = NAMED.fullmatch(name)
        if found is None or int(found[1]) >= len(self._streams):
            raise InvalidTablesError(
                f"Table {name!r} is none of the {len(self._streams)} tables of {self._path}, which are called table_0, "
                "table_1, and so on."
            )
        if features != 1:
            raise InvalidTablesError(
                f"Table {name!r} has {features} features, but {self._path} holds one for each table."
            )
        return self._streams[int(found[1])].of_rows(int(tables.num_embeddings[table]))

    def close(self) -> None:
        """Let go of the file."""
        self._open.close()


@contextmanager
def open_recorded(
    path: str | Path,
    *,
    num_embeddings: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    tmp_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[RecordedStream, ...]]:
    """The streams of the tables in one of Meta's lookup files (see `shard_gym.pools.meta`), readable while it is open.

    The file is mapped into memory and read where it is used; a gzip file is unpacked on the disk while it is open.

    Args:
        path: the file.
        num_embeddings: rows of each table; a stream then refuses an index that does not fit.
        tmp_dir: where to unpack a gzip file; default beside it.
        progress: called with (done, total) in bytes while unpacking.

    Raises:
        DamagedFileError: the file is missing, truncated, a git-LFS pointer, or does not hold such a batch.
        InvalidOptionError: `num_embeddings` is not one number for each table, or a gzip file cannot be unpacked.
        MissingExtraError: torch is not installed.
    """
    path = Path(path)
    folder = None if tmp_dir is None else Path(tmp_dir)
    with open_lookups(path, folder, progress or (lambda done, total: None)) as recorded:
        num_tables = len(recorded.lengths)
        rows = _rows(num_embeddings, num_tables, path)
        streams = tuple(
            RecordedStream(
                f"Table {table} of {path}",
                recorded.indices,
                *recorded.bags(table),
                num_embeddings=rows[table],
            )
            for table in range(num_tables)
        )
        del recorded  # a mapped file can be removed everywhere once nothing holds it
        try:
            yield streams
        finally:
            for stream in streams:
                stream.close()


def _rows(given: Sequence[int] | NDArray[np.integer[Any]] | None, num_tables: int, path: Path) -> list[int | None]:
    """Rows of each table, None where any number will do."""
    if given is None:
        return [None] * num_tables
    if any(isinstance(rows, bool) or not isinstance(rows, (int, np.integer)) for rows in given):
        raise InvalidOptionError(f"num_embeddings must be integers, not {short_repr(given)}.")
    if len(given) != num_tables:
        raise InvalidOptionError(
            f"{path} holds {num_tables} tables, but num_embeddings has {len(given)} numbers; give one for each."
        )
    return [int(rows) for rows in given]
