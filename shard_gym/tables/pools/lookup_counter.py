"""Counting recorded batches: the lookup statistics of tables from the rows that are read, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidTablesError, short_repr
from shard_gym.tables.lookup_statistics import NUM_BINS, counted_statistics, read_counts
from shard_gym.tables.row_popularity import RowSteps

Integers = NDArray[np.integer[Any]]

Batch = tuple[int, Mapping[str, Integers]]
"""The samples of a batch, and by feature the (N,) rows that they read."""


class LookupCounter:
    """The lookup statistics of T tables, from recorded batches of one size.

    Over K batches of B samples, the pooling factor is all lookups / (K B), and distinct rows are the mean of those of
    a batch. The histograms are the rows, and the lookups, of each bin in all batches, as shares of their sum: rows are
    counted in each batch anew, so the bins are numbers of reads in one batch. The popularity counts each row over all
    batches, so more batches say more about rows that are rarely read (`RowSteps.of_reads`).

    Args:
        names: of the T tables.
        num_embeddings: of each table, its rows.
        features: of each table, the names of the features that read it.
    """

    def __init__(self, names: Sequence[str], num_embeddings: Sequence[int], features: Sequence[Sequence[str]]) -> None:
        self._tables = list(zip(names, num_embeddings, features, strict=True))
        self._counts = np.zeros((len(self._tables), 2, NUM_BINS))
        self._rows = [np.empty(0, np.int64)] * len(self._tables)  # that were read, of each table
        self._reads = [np.empty(0, np.int64)] * len(self._tables)  # over all batches, of each of them
        self._batches = 0
        self.batch_size = 0

    def add(self, samples: int, read: Mapping[str, Integers]) -> None:
        """Count a batch of so many samples: by feature the (N,) rows that they read, in any order.

        Raises:
            InvalidTablesError: the batch has no samples or another size than those before, a feature is missing, its
                ids are no integers, or one is not a row of its table.
        """
        if samples < 1:
            raise InvalidTablesError(f"Batch {self._batches} of the lookups has no samples; leave it out.")
        if self._batches and samples != self.batch_size:
            raise InvalidTablesError(
                f"Batch {self._batches} of the lookups has {samples:,} samples, those before it {self.batch_size:,}; "
                "record batches of one size, and leave out a smaller one at the end."
            )
        rows = [self._rows_of(*table, read) for table in self._tables]  # all are checked before any is counted
        for table, each in enumerate(rows):
            self._counts[table] += read_counts(each)
            new, reads = np.unique(each, return_counts=True)
            both, where = np.unique(np.concatenate([self._rows[table], new]), return_inverse=True)
            total = np.zeros(len(both), np.int64)
            np.add.at(total, where, np.concatenate([self._reads[table], reads]))
            self._rows[table], self._reads[table] = both, total
        self._batches, self.batch_size = self._batches + 1, samples

    def _rows_of(
        self, name: str, num_embeddings: int, features: Sequence[str], read: Mapping[str, Integers]
    ) -> Integers:
        for feature in features:
            if feature not in read:
                raise InvalidTablesError(
                    f"The lookups have no feature {feature!r}, which table {name!r} reads; they have "
                    f"{short_repr(sorted(read))}."
                )
            if read[feature].dtype.kind not in "iu":
                raise InvalidTablesError(
                    f"The ids of feature {feature!r} are {read[feature].dtype}; those of rows are integers."
                )
        for rows in (read[feature] for feature in features):
            if len(rows) and not 0 <= (low := int(rows.min())) <= (high := int(rows.max())) < num_embeddings:
                raise InvalidTablesError(
                    f"Table {name!r} has {num_embeddings:,} rows, but row {low if low < 0 else high} is read. Rows "
                    "count from 0; map ids to rows first, and record no lookup where an id is missing."
                )
        return np.concatenate([read[feature].astype(np.int64) for feature in features])

    def statistics(self) -> dict[str, Any]:
        """The statistics of `Tables`: `pooling_factor`, `distinct_rows`, the two histograms and `popularity`.

        Raises:
            InvalidTablesError: no batch was counted.
        """
        if not self._batches:
            raise InvalidTablesError("There is no batch of lookups to count; record one at least.")
        pooling = self._counts[:, 1].sum(axis=1) / (self._batches * self.batch_size)
        return {
            "pooling_factor": pooling,
            **counted_statistics(self._counts, self._batches)._asdict(),
            "popularity": RowSteps.of_reads(self._reads, [num_embeddings for _, num_embeddings, _ in self._tables]),
        }
