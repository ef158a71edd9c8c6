"""Streams of the lookups recorded in one of Meta's files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from shard_gym.cost_models.measured.streams import IndexStream, Lookups, split_by_period
from shard_gym.errors import InvalidTablesError
from shard_gym.pools import meta_file
from shard_gym.tables import Tables

TABLE_NAME = re.compile(r"(?:.*/)?table_(\d+)")
"""Names that say which of a file's tables a table is; `shard_gym.pools.meta` gives such names."""


class RecordedLookups:
    """The streams of a file, mapped into memory, for tables by name: `table_17` or `anything/table_17` is its table 17.

    Raises:
        DamagedFileError: the file is missing, truncated, a git-LFS pointer, or does not hold such a batch.
        InvalidOptionError: the file is packed.
        MissingExtraError: torch is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recorded = meta_file.load_unpacked(self.path)

    def stream(self, tables: Tables, table: int, seed: int) -> RecordedStream:
        """The lookups of one of `tables`; nothing is drawn, so `seed` is ignored.

        Raises InvalidTablesError if its name says no table of the file, or it has several features.
        """
        name, features = tables.names[table], int(tables.num_features[table])
        found, num_tables = TABLE_NAME.fullmatch(name), len(self.recorded.lengths)
        if found is None or int(found[1]) >= num_tables:
            raise InvalidTablesError(
                f"Table {name!r} is none of the {num_tables} tables of {self.path}, which are called table_0, "
                "table_1, and so on."
            )
        if features != 1:
            raise InvalidTablesError(
                f"Table {name!r} has {features} features, but {self.path} holds one for each table."
            )
        return RecordedStream(self, int(found[1]), int(tables.num_embeddings[table]))


class RecordedStream(IndexStream):
    """The lookups of table number `table` of a file, as an `IndexStream` of one feature.

    After the file's last sample comes its first again. The lookups of the table are checked at the first read, because
    opening a file must not read gigabytes.
    """

    def __init__(self, file: RecordedLookups, table: int, num_embeddings: int) -> None:
        self._subject, self._num_embeddings = f"Table {table} of {file.path}", num_embeddings
        self._indices, (self._offsets, self._lengths) = file.recorded.indices, file.recorded.bags(table)
        self._checked = False

    def lookups(self, start: int, count: int) -> Lookups:
        """The lookups of the samples start .. start + count - 1.

        Raises:
            DamagedFileError: lengths and offsets contradict each other, or an index names no row of any table.
            InvalidTablesError: an index is not below `num_embeddings`.
        """
        if not self._checked:
            self._check()
        parts = split_by_period(start, count, len(self._lengths))
        bags = [np.empty(0, np.int64), *(self._lengths[first:last] for _, first, last in parts)]
        ends = [(self._offsets[first], self._offsets[last]) for _, first, last in parts]
        reads = [np.empty(0, np.int64), *(self._indices[begin:end] for begin, end in ends)]
        return Lookups(np.concatenate(reads, dtype=np.int64), np.concatenate(bags, dtype=np.int64)[None, :])

    def _check(self) -> None:
        """Refuse lookups that would make an operator read beyond its arrays."""
        reads = meta_file.indices_of(self._subject, self._indices, self._offsets, self._lengths)
        highest = int(reads.max()) if len(reads) else 0
        if highest >= self._num_embeddings:
            raise InvalidTablesError(
                f"{self._subject} reads row {highest}, but the table has only {self._num_embeddings} rows. "
                f"Give it {highest + 1} rows or more; recorded indices are not mapped to fewer."
            )
        self._checked = True
