"""Streams of lookups with the statistics of a table, which embedding operators are measured on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import InvalidTablesError
from shard_gym.lookup_statistics import BIN_UPPER_EDGES, HISTOGRAM_DECIMALS
from shard_gym.tables import Tables

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_LOOKUPS = 2**31
"""Most lookups of an epoch: sort keys hold positions among its rows beside at least 32 random bits."""


@dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of some samples in one table.

    Attributes:
        indices: (n,) int64, the rows read, bag after bag.
        lengths: (num_features, count) int64, lookups of each bag. The bags of `indices` have the same order: feature
            by feature, and sample by sample within a feature.
    """

    indices: Ints
    lengths: Ints


class IndexStream(Protocol):
    """An endless sequence of samples, each with its lookups in one table."""

    def lookups(self, start: int, count: int) -> Lookups:
        """The lookups of the samples start .. start + count - 1; both are at least 0."""
        ...


LookupSource = Callable[[Tables, int, int], IndexStream]
"""Gives the stream of one of some tables: tables, its number, and a seed."""


def fused_batch(streams: Sequence[IndexStream], number: int, batch_size: int) -> tuple[Ints, Ints]:
    """Batch `number` of all tables of one fused operator: the samples number * batch_size and following.

    Returns:
        indices: (n,) int64, feature by feature: the tables in their order, each with its features.
        offsets: (num_features of all tables * batch_size + 1,) int64, where each bag starts in `indices`; the last is
            n. This is the input of FBGEMM's table-batched embeddings (pytorch/FBGEMM, fbgemm_gpu,
            split_table_batched_embeddings_ops_training.py, `forward`).
    """
    parts = [stream.lookups(number * batch_size, batch_size) for stream in streams]
    indices = np.concatenate([np.empty(0, np.int64), *(part.indices for part in parts)])
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(part.lengths.ravel() for part in parts)]))
    return indices, ends


def split_by_period(start: int, count: int, period: int) -> list[tuple[int, int, int]]:
    """The samples start .. start + count - 1 split at the multiples of `period`.

    Returns:
        For each part the number of its period, its first sample within it, and the one after its last.
    """
    end = start + count
    numbers = range(start // period, -(-end // period)) if count else range(0)
    return [(k, max(start - k * period, 0), min(end - k * period, period)) for k in numbers]


class HistogramStream:
    """A stream with the statistics of one of `tables`: lookups, distinct rows and both histograms.

    Samples come in epochs of `workload.batch_size`, the batch that the statistics belong to. In each epoch
    round(batch_size * pooling_factor) lookups read round(distinct_rows) rows, each as often as `row_counts` returns.
    A batch of another size is a part of an epoch or spans several.

    Every bag has floor or ceil of pooling_factor / num_features lookups, distributed as evenly over the samples as
    whole numbers can be. Which row is read in which of them is shuffled anew in each epoch. Lookups are not
    independent: rows that share a bin are read equally often, within one. The spread inside a bin is lost.

    Rows read more than once in an epoch are the same in every epoch. Rows read once are taken from the others
    cyclically, so they come back only when all others have been read. If they were the same, a benchmark that repeats
    its batch would find them in the L2 of the device, unlike training on new samples.

    A `RowPermutation` distributes the rows that are read over the whole table, so a row's number does not tell how
    often it is read.

    All depends on the name and the statistics of the table and on `seed` alone; not on its dim, so that column shards
    of one table read the same rows, and not on the weights' dtype or the optimizer. It is the same in every process and
    with every version of NumPy, because only raw random bits are used.

    Memory and time are proportional to the lookups of the epochs touched; the last epoch is kept.

    Args:
        tables: the tables.
        table: which of them.
        seed: any integer; another one gives other rows and another order.

    Raises:
        InvalidTablesError: the table has more than `MAX_LOOKUPS` lookups in a batch.
    """

    def __init__(self, tables: Tables, table: int, seed: int) -> None:
        self._batch_size = int(tables.workload.batch_size)
        self._rows = int(tables.num_embeddings[table])
        lookups = round(float(tables.lookups_per_batch[table]))
        if lookups > MAX_LOOKUPS:
            raise InvalidTablesError(
                f"Table {table} ({tables.names[table]}) has {lookups} lookups in a batch of {self._batch_size}; "
                f"a stream can have {MAX_LOOKUPS}. Describe it by a smaller batch."
            )
        distinct = min(max(round(float(tables.distinct_rows[table])), 1), self._rows, lookups)
        counts = row_counts(lookups, distinct, tables.reuse_histogram[table], tables.access_histogram[table])
        self._hot_counts = counts[counts > 1]
        self._num_cold = distinct - len(self._hot_counts)
        self._key = stream_key(tables, table, seed)
        self._permuted = RowPermutation(self._rows, self._bits().random_raw(RowPermutation.ROUNDS))
        self._hot_rows = self._permuted(np.arange(len(self._hot_counts)))
        features = np.arange(tables.num_features[table] + 1)
        self._feature_starts = features * lookups // features[-1]
        self._kept: tuple[int, NDArray[np.integer[Any]]] | None = None

    def lookups(self, start: int, count: int) -> Lookups:
        """See `IndexStream`."""
        starts = self._feature_starts[:, None]
        reads: list[list[NDArray[Any]]] = [[] for _ in starts[1:]]
        lengths = [np.empty((len(reads), 0), np.int64)]
        for number, first, last in split_by_period(start, count, self._batch_size):
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
            self._kept = None  # frees the old epoch before the new one needs memory
            self._kept = (number, self._make_epoch(number))
        return self._kept[1]

    def _make_epoch(self, number: int) -> NDArray[np.integer[Any]]:
        rows = np.concatenate([self._hot_rows, self._cold_rows(number)])
        rows = rows.astype(np.int32) if self._rows <= 2**31 else rows
        hot = np.repeat(np.arange(len(self._hot_rows)), self._hot_counts)
        positions = np.concatenate([hot, np.arange(len(self._hot_rows), len(rows))]).view(np.uint64)
        # Sorting keys of random high bits and positions in the low bits shuffles the positions.
        width = np.uint64(len(rows).bit_length())
        keys = self._bits(number).random_raw(len(positions))
        keys >>= width
        keys <<= width
        keys |= positions
        keys.sort()
        keys &= (np.uint64(1) << width) - np.uint64(1)
        return rows.take(keys.view(np.int64))

    def _cold_rows(self, number: int) -> Ints:
        """(num_cold,) the rows read once in an epoch: the next ones of those that are not hot, cyclically."""
        hot = len(self._hot_rows)
        others = max(self._rows - hot, 1)
        first = number * self._num_cold % others
        return self._permuted(hot + (first + np.arange(self._num_cold)) % others)

    def _bits(self, *purpose: int) -> np.random.PCG64:
        """Random bits for an epoch, or for what all epochs share."""
        return np.random.PCG64(np.random.SeedSequence(self._key, spawn_key=purpose))


def stream_key(tables: Tables, table: int, seed: int) -> int:
    """A number made from the name of a table, its statistics without the dim, and a seed."""
    sizes = [tables.workload.batch_size, tables.num_embeddings[table], tables.num_features[table], seed]
    digest = hashlib.sha256(repr((tables.names[table], [int(size) for size in sizes])).encode())
    for numbers in (tables.pooling_factor, tables.distinct_rows, tables.reuse_histogram, tables.access_histogram):
        digest.update(np.ascontiguousarray(numbers[table], "<f8").tobytes())
    return int.from_bytes(digest.digest(), "little")


class RowPermutation:
    """A keyed permutation of the row numbers 0 .. rows - 1 that needs no memory.

    It is a Feistel network on the bits of a number: alternately one half is changed by a hash of the other, which can
    be undone, so no two numbers give the same. It permutes the numbers below a power of two that is less than twice
    `rows`; what falls outside the table is permuted again until it falls inside (cycle walking), which keeps it one
    to one. Unlike multiplication by a number without common factor, it leaves no equal steps between neighbours.

    Args:
        rows: rows of the table, at most 2**40.
        keys: (ROUNDS,) uint64.
    """

    ROUNDS = 4
    _CHUNK = 2**15  # numbers permuted at once, so that they stay in the cache

    def __init__(self, rows: int, keys: NDArray[np.uint64]) -> None:
        bits = (rows - 1).bit_length()
        self._rows, self._keys = rows, keys
        self._shift = np.uint64((bits + 1) // 2)
        self._masks = [np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** ((bits + 1) // 2) - 1)]  # upper and lower half

    def __call__(self, numbers: Ints) -> Ints:
        """(n,) int64, the rows that replace `numbers`, (n,) int64 from 0 to rows - 1."""
        rows = numbers.astype(np.uint64)
        for start in range(0, len(rows), self._CHUNK):
            part = self._feistel(rows[start : start + self._CHUNK])
            while (outside := np.flatnonzero(part >= self._rows)).size:
                part[outside] = self._feistel(part[outside])
            rows[start : start + self._CHUNK] = part
        return rows.view(np.int64)

    def _feistel(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        halves = [numbers >> self._shift, numbers & self._masks[1]]
        for number, key in enumerate(self._keys):
            changed, other = number % 2, 1 - number % 2
            halves[changed] ^= _hash(halves[other], key) & self._masks[changed]
        return (halves[0] << self._shift) | halves[1]


def _hash(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """24 bits from each number: two multiplications by odd constants (those of SplitMix64), high bits folded down."""
    mixed = (numbers + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(40)


_LOW = np.append(1.0, BIN_UPPER_EDGES[:-1] + 1.0)  # least and most accesses of a row of each bin
_HIGH = BIN_UPPER_EDGES


def row_counts(lookups: int, distinct: int, reuse: Floats, access: Floats) -> Ints:
    """How often each row is read in a batch, from the statistics of a table.

    Statistics are expectations or rounded shares, so whole numbers cannot always meet them all. The lookups are met
    exactly, then the distinct rows, then the histograms:

    1. The rows of each bin are reuse * distinct, changed as little as possible (least squares) so that the accesses of
       the bin, access * lookups, give each of its rows a count inside the bin's edges. Shares count as known to half a
       unit of their fifth decimal, as pools store them; rare bins among millions of rows follow from `access` alone.
    2. They are rounded by their running sum from the hottest bin down, so no running sum is off by more than half.
    3. If no counts inside the edges add up to `lookups`, as few rows as possible move to the next bin.
    4. The accesses of each bin are access * lookups, changed as little as possible (least squares) so that they fit its
       rows and add up, then rounded; the rows of a bin share them equally, within one.

    Args:
        lookups: accesses of all rows, at least `distinct`.
        distinct: rows, at least 1 if there are lookups.
        reuse: (17,) share of the rows by bin; sums to about 1.
        access: (17,) share of the accesses by bin.

    Returns:
        (distinct,) int64, each at least 1, hottest bin first; they add up to `lookups`.
    """
    if lookups == 0:
        return np.empty(0, np.int64)
    high: Floats = np.minimum(_HIGH, lookups)
    rows = _reachable(_rows_of_bins(lookups, distinct, reuse, access), lookups, high)
    reads = _reads_of_bins(access / access.sum() * lookups, rows * _LOW, rows * high, lookups)
    each, more = np.divmod(reads, np.maximum(rows, 1))
    hottest_first = np.stack([each + 1, each], axis=1)[::-1]
    return np.repeat(hottest_first.ravel(), np.stack([more, rows - more], axis=1)[::-1].ravel())


def _rows_of_bins(lookups: int, distinct: int, reuse: Floats, access: Floats) -> Ints:
    """(17,) rows of each bin: steps 1 and 2 of `row_counts`."""
    wanted = reuse / reuse.sum() * distinct
    tolerance = 0.5 * 10.0**-HISTOGRAM_DECIMALS
    fewest_reads, most_reads = np.maximum(access - tolerance, 0) * lookups, (access + tolerance) * lookups
    least, most = fewest_reads / _HIGH, np.where((access > 0) | (reuse > 0), most_reads / _LOW, 0)
    least[-1] = min(fewest_reads[-1] / _LOW[-1], 1)  # a bin without an upper edge: one row could take them all
    if least.sum() <= distinct <= most.sum():
        wanted = _project(wanted, least, most, distinct)
    ends = np.rint(np.cumsum(wanted[::-1]))  # the last is `distinct`, up to an error that the rounding removes
    rows: Floats = np.diff(ends, prepend=0.0)[::-1]
    return rows.astype(np.int64)


def _reachable(rows: Ints, lookups: int, high: Floats) -> Ints:
    """`rows` (17,), some moved to the next bin if otherwise their counts could not add up to `lookups`: step 3."""
    rows = rows.copy()
    down, up = np.append(0, np.diff(_LOW)), np.append(np.diff(high), 0)
    for edge, step, gain in ((_LOW, -1, down), (high, 1, up)):
        while (missing := step * (lookups - int(rows @ edge))) > 0:
            open_bins = np.flatnonzero((rows > 0) & (gain > 0))
            small = open_bins[gain[open_bins] <= missing]
            chosen = small[np.argmax(gain[small])] if small.size else open_bins[np.argmin(gain[open_bins])]
            moved = min(int(rows[chosen]), max(missing // int(gain[chosen]), 1))
            rows[chosen] -= moved
            rows[chosen + step] += moved
    return rows


def _reads_of_bins(wanted: Floats, least: Floats, most: Floats, lookups: int) -> Ints:
    """(17,) accesses of each bin: step 4 of `row_counts`. The largest fractions are rounded up."""
    numbers = _project(wanted, least, most, lookups)
    whole = np.floor(numbers)
    while (rest := lookups - int(whole.sum())) > 0:
        room = np.flatnonzero(whole < most)
        whole[room[np.argsort(whole[room] - numbers[room], kind="stable")[:rest]]] += 1
    return whole.astype(np.int64)


def _project(wanted: Floats, least: Floats, most: Floats, total: float) -> Floats:
    """The numbers nearest to `wanted` (least squares) from `least` to `most` that add up to `total`.

    They are `wanted` plus one number for all, clipped; that number is found by bisection.
    """
    low, high = float((least - wanted).min()), float((most - wanted).max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(wanted + middle, least, most).sum() < total else (low, middle)
    return np.clip(wanted + high, least, most)
