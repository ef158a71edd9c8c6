"""Streams of lookups with the statistics of a table, to run embedding operators on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.measured.row_counts import whole_counts
from shard_gym.cost_models.measured.row_permutation import RowPermutation
from shard_gym.errors import InvalidOptionError, InvalidTablesError, short_repr
from shard_gym.tables import Tables

Ints = NDArray[np.int64]

MAX_LOOKUPS = 2**31
"""Most lookups of an epoch: places among its rows are packed with at least 32 random bits."""


@dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of some samples in one table.

    Attributes:
        indices: (n,) int64, the rows read, bag after bag.
        lengths: (num_features, count) int64, lookups of each bag: feature by feature, in it sample by sample. The bags
            of `indices` have the same order.
    """

    indices: Ints
    lengths: Ints


class IndexStream(Protocol):
    """An endless sequence of samples, each with its lookups in one table."""

    def lookups(self, start: int, count: int) -> Lookups:
        """The lookups of the samples start .. start + count - 1; both are at least 0.

        Raises:
            InvalidOptionError: `start` or `count` is not such a number.
        """
        ...


class LookupSource(Protocol):
    """Where the lookups of tables come from."""

    def stream(self, tables: Tables, table: int, seed: int) -> IndexStream:
        """Those of one of `tables`."""
        ...


def fused_batch(streams: Sequence[IndexStream], number: int, batch_size: int) -> tuple[Ints, Ints]:
    """Batch `number` of all tables of one fused operator: the samples number * batch_size and following.

    Returns:
        indices: (n,) int64, feature by feature: the tables in their order, each with its features.
        offsets: (num_features of all tables * batch_size + 1,) int64, where each bag starts in `indices`; the last is
            n. This is the input of FBGEMM's table-batched embeddings (pytorch/FBGEMM, fbgemm_gpu,
            split_table_batched_embeddings_ops_training.py, `forward`).

    Raises:
        InvalidOptionError: `number` is negative or `batch_size` is.
    """
    parts = [stream.lookups(number * batch_size, batch_size) for stream in streams]
    indices = np.concatenate([np.empty(0, np.int64), *(part.indices for part in parts)])
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(part.lengths.ravel() for part in parts)]))
    return indices, ends


def pieces(start: int, count: int, period: int) -> list[tuple[int, int, int]]:
    """The samples start .. start + count - 1 cut at the multiples of `period`.

    Returns:
        For each piece the number of its period, its first sample in it, and the one after its last.

    Raises:
        InvalidOptionError: `start` or `count` is not an integer of at least 0.
    """
    for name, value in (("start", start), ("count", count)):
        if not _is_whole(value) or value < 0:
            raise InvalidOptionError(f"{name} of lookups must be an integer of at least 0, not {short_repr(value)}.")
    start, end = int(start), int(start) + int(count)
    numbers = range(start // period, -(-end // period)) if count else range(0)
    return [(k, max(start - k * period, 0), min(end - k * period, period)) for k in numbers]


class HistogramStream:
    """A stream with the statistics of one of `tables`: lookups, distinct rows and both histograms.

    Samples come in epochs of `workload.batch_size`, the batch that the statistics belong to. In each epoch
    round(batch_size * pooling_factor) lookups read round(distinct_rows) rows, as often as `whole_counts` says. A batch
    of another size is a part of an epoch or spans several, and is not bound to anything else.

    Every bag has floor or ceil of pooling_factor / num_features lookups, spread as evenly over the samples as whole
    numbers can be. Which row is read in which of them is shuffled anew in each epoch. Lookups are not independent: rows
    that share a bin are read equally often, within one. What the pool's law would spread inside a bin is lost.

    Rows read more than once in an epoch are the same in every epoch. Rows read once are taken from the others by turns,
    so they come back only when all others have been read. Were they the same, a benchmark that repeats its batch would
    find them in the L2 of the device, which training on new samples does not; rotating the inputs is the usual remedy.

    Row numbers are scattered over the whole table by a keyed permutation, computed number by number, so nothing is
    kept for rows that are not read. Which rows are hot says nothing about where they lie.

    All depends on the name and the statistics of the table and on `seed` alone; not on its dim, so that column shards
    of one table read the same rows, and not on the weights' dtype or the optimizer. It is the same in every process and
    with every version of NumPy, for only raw random bits are used.

    Memory and time are proportional to the lookups of the epochs touched; the last epoch is kept.

    Args:
        tables: the tables.
        table: which of them.
        seed: any integer; another one gives other rows and another order.

    Raises:
        InvalidOptionError: `table` names no table, or `seed` is not an integer.
        InvalidTablesError: the table has more than `MAX_LOOKUPS` lookups in a batch.
    """

    def __init__(self, tables: Tables, table: int, seed: int) -> None:
        if not _is_whole(table) or not 0 <= table < len(tables):
            raise InvalidOptionError(f"There is no table {short_repr(table)}; the tables are 0 to {len(tables) - 1}.")
        if not _is_whole(seed):
            raise InvalidOptionError(f"seed must be an integer, not {short_repr(seed)}.")
        self._batch_size = int(tables.workload.batch_size)
        self._rows = int(tables.num_embeddings[table])
        lookups = round(float(tables.lookups_per_batch[table]))
        if lookups > MAX_LOOKUPS:
            raise InvalidTablesError(
                f"Table {table} ({tables.names[table]}) has {lookups} lookups in a batch of {self._batch_size}; "
                f"a stream can have {MAX_LOOKUPS}. Describe it by a smaller batch."
            )
        distinct = min(max(round(float(tables.distinct_rows[table])), 1), self._rows, lookups)
        counts = whole_counts(lookups, distinct, tables.reuse_histogram[table], tables.access_histogram[table])
        self._hot_counts = counts[counts > 1]
        self._num_cold = distinct - len(self._hot_counts)
        self._key = stream_key(tables, table, seed)
        self._scatter = RowPermutation(self._rows, self._bits().random_raw(RowPermutation.ROUNDS))
        self._hot_rows = self._scatter(np.arange(len(self._hot_counts)))
        features = np.arange(tables.num_features[table] + 1)
        self._feature_starts = features * lookups // features[-1]
        self._kept: tuple[int, NDArray[np.integer[Any]]] | None = None

    def lookups(self, start: int, count: int) -> Lookups:
        """The lookups of the samples start .. start + count - 1; see `IndexStream`."""
        starts = self._feature_starts[:, None]
        reads: list[list[NDArray[Any]]] = [[] for _ in starts[1:]]
        lengths = [np.empty((len(reads), 0), np.int64)]
        for number, first, last in pieces(start, count, self._batch_size):
            epoch = self._epoch(number)
            ends = starts[:-1] + np.arange(first, last + 1) * np.diff(starts, axis=0) // self._batch_size
            lengths.append(np.diff(ends, axis=1))
            for feature, (begin, end) in enumerate(zip(ends[:, 0], ends[:, -1], strict=True)):
                reads[feature].append(epoch[begin:end])
        parts = [np.empty(0, np.int64), *(part for feature in reads for part in feature)]
        return Lookups(np.concatenate(parts, dtype=np.int64), np.concatenate(lengths, axis=1))

    def _epoch(self, number: int) -> NDArray[np.integer[Any]]:
        """The rows of all lookups of an epoch, feature by feature."""
        if self._kept is None or self._kept[0] != number:
            self._kept = None  # the old one goes before the new one needs its memory
            self._kept = (number, self._make_epoch(number))
        return self._kept[1]

    def _make_epoch(self, number: int) -> NDArray[np.integer[Any]]:
        rows = np.concatenate([self._hot_rows, self._cold_rows(number)])
        rows = rows.astype(np.int32) if self._rows <= 2**31 else rows
        hot = np.repeat(np.arange(len(self._hot_rows)), self._hot_counts)
        place = np.concatenate([hot, np.arange(len(self._hot_rows), len(rows))]).view(np.uint64)
        # Random bits above, places below: sorting them shuffles the places, and no two keys are equal but for repeats.
        width = np.uint64(len(rows).bit_length())
        keys = self._bits(number).random_raw(len(place))
        keys >>= width
        keys <<= width
        keys |= place
        keys.sort()
        keys &= (np.uint64(1) << width) - np.uint64(1)
        return rows.take(keys.view(np.int64))

    def _cold_rows(self, number: int) -> Ints:
        """(num_cold,) the rows read once in an epoch: the next ones of those that are not hot, round and round."""
        hot = len(self._hot_rows)
        others = max(self._rows - hot, 1)
        first = number * self._num_cold % others
        return self._scatter(hot + (first + np.arange(self._num_cold)) % others)

    def _bits(self, *purpose: int) -> np.random.PCG64:
        """Random bits for an epoch, or for what holds in all of them."""
        return np.random.PCG64(np.random.SeedSequence(self._key, spawn_key=purpose))


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def stream_key(tables: Tables, table: int, seed: int) -> int:
    """A number made from the name of a table, its statistics without the dim, and a seed."""
    sizes = [tables.workload.batch_size, tables.num_embeddings[table], tables.num_features[table], seed]
    digest = hashlib.sha256(repr((tables.names[table], [int(size) for size in sizes])).encode())
    for numbers in (tables.pooling_factor, tables.distinct_rows, tables.reuse_histogram, tables.access_histogram):
        digest.update(np.ascontiguousarray(numbers[table], "<f8").tobytes())
    return int.from_bytes(digest.digest(), "little")
