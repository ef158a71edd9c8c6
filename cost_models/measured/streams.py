"""Streams of lookups with the statistics of a table, which embedding operators are measured on."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidTablesError
from shard_gym.cost_models.measured.arrays import NUMPY, Array, Arrays
from shard_gym.tables import BIN_UPPER_EDGES, Tables
from shard_gym.tables.lookup_statistics import BIN_LEAST, HISTOGRAM_DECIMALS
from shard_gym.tables.pools import meta_file

MAX_LOOKUPS = 2**31  # most lookups of an epoch: sort keys hold positions among its rows beside at least 32 random bits


@dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of some samples in one table."""

    indices: Array  # (n,) int64, the rows read, bag after bag; of the kind that the stream makes, an array or a tensor
    lengths: (
        IntArray  # (num_features, count), lookups of each bag; `indices` has the bags feature by feature, by sample
    )


class IndexStream(Protocol):
    """An endless sequence of samples, each with its lookups in one table."""

    def lookups(self, start: int, count: int) -> Lookups:
        """The lookups of the samples start .. start + count - 1; both are at least 0."""
        ...


LookupSource = Callable[[Tables, int, int], IndexStream]
"""Gives the stream of one of some tables: tables, its number, and a seed."""


def fused_batch(parts: Sequence[Lookups], arrays: Arrays = NUMPY) -> tuple[Array, IntArray]:
    """The lookups of the same samples in all tables of one fused operator, from those of each table.

    Returns (n,) int64 indices, feature by feature: the tables in their order, each with its features; and (num_features
    of all tables * batch_size + 1,) int64 offsets, where each bag starts in them; the last is n. This is the input of
    FBGEMM's table-batched embeddings (pytorch/FBGEMM, split_table_batched_embeddings_ops_training.py, `forward`).
    """
    indices = arrays.concatenate([part.indices for part in parts])
    return indices, np.cumsum(np.concatenate([np.zeros(1, np.int64), *(part.lengths.ravel() for part in parts)]))


def draw_batches(
    streams: Sequence[IndexStream],
    count: int,
    batch_size: int,
    *,
    arrays: Arrays = NUMPY,
    threads: Executor | None = None,
) -> Iterator[tuple[Array, IntArray]]:
    """The batches 0 .. count - 1 of a fused operator with these `streams`, as `fused_batch` returns them.

    `threads` draw every table's part of every batch, all at once; sorting and drawing random bits let other threads
    run. None is to draw one after the other, when it is asked for.
    """

    def part(stream: IndexStream, number: int) -> Lookups:
        return stream.lookups(number * batch_size, batch_size)

    numbers = [number for number in range(count) for _ in streams]
    parts = (threads.map if threads else map)(part, list(streams) * count, numbers)
    for _ in range(count):
        yield fused_batch(list(islice(parts, len(streams))), arrays)


def split_by_period(start: int, count: int, period: int) -> list[tuple[int, int, int]]:
    """Samples start .. start + count - 1 by period: its number, the first sample in it, and the one after the last."""
    end = start + count
    numbers = range(start // period, -(-end // period)) if count else range(0)
    return [(k, max(start - k * period, 0), min(end - k * period, period)) for k in numbers]


class HistogramStream(IndexStream):
    """A stream with the statistics of one of `tables`: lookups, distinct rows and both histograms.

    Samples come in epochs of `workload.batch_size`, the batch that the statistics belong to. In each epoch
    round(batch_size * pooling_factor) lookups read round(distinct_rows) rows, each as often as `row_counts` returns. A
    batch of another size is a part of an epoch or spans several.

    Every bag has floor or ceil of pooling_factor / num_features lookups, distributed as evenly over the samples as
    whole numbers can be. Which row is read in which of them is shuffled anew in each epoch. Lookups are not
    independent: rows that share a bin are read equally often, within one. The spread inside a bin is lost.

    Rows read more than once in an epoch are the same in every epoch. Rows read once are taken from the others
    cyclically, so they come back only when all others have been read. If they were the same, a benchmark that repeats
    its batch would find them in the L2 of the device, unlike training on new samples. A `RowPermutation` distributes
    the rows that are read over the whole table.

    All depends on the name and the statistics of the table and on `seed` alone; not on its dim, so that column shards
    of one table read the same rows, nor on the weights' dtype or the optimizer. It is the same in every process, with
    every version of NumPy and with all `arrays`, because only raw random bits are used.

    Memory and time are proportional to the lookups of the epochs touched; the last epoch is kept. Several threads may
    ask for lookups at the same time. Raises InvalidTablesError for more than `MAX_LOOKUPS` lookups in a batch.
    """

    def __init__(self, tables: Tables, table: int, seed: int, arrays: Arrays = NUMPY) -> None:
        self._arrays = arrays
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
        hot_counts = counts[counts > 1]
        self._lookups, self._num_hot, self._num_cold = lookups, len(hot_counts), distinct - len(hot_counts)
        self._hot_counts = arrays.moved(hot_counts)
        self._key = stream_key(tables, table, seed)
        self._permuted = RowPermutation(self._rows, self._bits().random_raw(RowPermutation.ROUNDS), arrays)
        self._hot_rows = self._permuted(arrays.arange(0, self._num_hot))
        self._cold: dict[int, Array] = {}  # of epochs that were not made yet
        self._lock = Lock()
        features = np.arange(tables.num_features[table] + 1)
        self._feature_starts = features * lookups // features[-1]
        self._kept: tuple[int, Array] | None = None

    @override
    def lookups(self, start: int, count: int) -> Lookups:
        starts = self._feature_starts[:, None]
        reads: list[list[Array]] = [[] for _ in starts[1:]]
        lengths = [np.empty((len(reads), 0), np.int64)]
        for number, first, last in split_by_period(start, count, self._batch_size):
            epoch = self._epoch(number)
            ends = starts[:-1] + np.arange(first, last + 1) * np.diff(starts, axis=0) // self._batch_size
            lengths.append(np.diff(ends, axis=1))
            for feature, (begin, end) in enumerate(zip(ends[:, 0], ends[:, -1], strict=True)):
                reads[feature].append(epoch[begin:end])
        parts = [part for feature in reads for part in feature]
        return Lookups(self._arrays.concatenate(parts), np.concatenate(lengths, axis=1))

    def _epoch(self, number: int) -> Array:
        """The rows of all lookups of an epoch, feature by feature."""
        kept = self._kept
        if kept is None or kept[0] != number:
            kept = self._kept = None  # frees the old epoch before the new one needs memory
            kept = self._kept = (number, self._make_epoch(number))
        return kept[1]

    def _make_epoch(self, number: int) -> Array:
        arrays, num_rows = self._arrays, self._num_hot + self._num_cold
        rows = arrays.narrow(arrays.concatenate([self._hot_rows, self._cold_rows(number)]), self._rows)
        hot = arrays.repeat(arrays.arange(0, self._num_hot), self._hot_counts, self._lookups - self._num_cold)
        positions = arrays.concatenate([hot, arrays.arange(self._num_hot, num_rows)])
        # Sorting keys of random high bits and positions in the low bits shuffles the positions. The order is that of
        # unsigned keys; signed ones have it when their first bit is flipped.
        low_bits = (1 << num_rows.bit_length()) - 1
        keys = arrays.moved(self._bits(number).random_raw(self._lookups))
        keys ^= FIRST_BIT
        keys &= ~low_bits
        keys |= positions
        keys = arrays.sorted(keys)
        keys &= low_bits
        return rows.take(keys)

    def _cold_rows(self, number: int) -> Array:
        """(num_cold,) the rows read once in an epoch: the next ones of those that are not hot, cyclically."""
        with self._lock:
            if number not in self._cold:
                begin = number - number % self._arrays.epochs
                epochs = range(begin, begin + self._arrays.epochs)
                rows = self._permuted(self._arrays.concatenate([self._cold_numbers(epoch) for epoch in epochs]))
                size = self._num_cold
                self._cold = {epoch: rows[k * size : (k + 1) * size] for k, epoch in enumerate(epochs)}
            return self._cold.pop(number)

    def _cold_numbers(self, epoch: int) -> Array:
        """(num_cold,) the numbers that are permuted to the rows read once in an epoch."""
        others = max(self._rows - self._num_hot, 1)
        first = epoch * self._num_cold % others
        numbers = self._arrays.arange(first, first + self._num_cold)
        numbers %= others
        numbers += self._num_hot
        return numbers

    def _bits(self, *purpose: int) -> np.random.PCG64:
        return np.random.PCG64(np.random.SeedSequence(self._key, spawn_key=purpose))


def stream_key(tables: Tables, table: int, seed: int) -> int:
    """A number made from the name of a table, its statistics without the dim, and a seed."""
    sizes = [tables.workload.batch_size, tables.num_embeddings[table], tables.num_features[table], seed]
    digest = hashlib.sha256(repr((tables.names[table], [int(size) for size in sizes])).encode())
    for numbers in (tables.pooling_factor, tables.distinct_rows, tables.reuse_histogram, tables.access_histogram):
        digest.update(np.ascontiguousarray(numbers[table], "<f8").tobytes())
    return int.from_bytes(digest.digest(), "little")


class RowPermutation:
    """A permutation of the row numbers 0 .. rows - 1, at most 2**40, by (ROUNDS,) uint64 `keys`; it needs no memory.

    It is a Feistel network on the bits of a number: alternately one half is changed by a hash of the other, which can
    be undone, so no two numbers give the same. It permutes the numbers below a power of two that is less than twice
    `rows`; what falls outside the table is permuted again until it falls inside (cycle walking), which keeps it one to
    one. Unlike multiplication by a number without common factor, it leaves no equal steps between neighbours.
    """

    ROUNDS = 4

    def __init__(self, rows: int, keys: NDArray[np.uint64], arrays: Arrays = NUMPY) -> None:
        bits = (rows - 1).bit_length()
        self._rows, self._keys, self._arrays = rows, keys.view(np.int64).tolist(), arrays
        self._shift = (bits + 1) // 2
        self._masks = [2 ** (bits // 2) - 1, 2 ** ((bits + 1) // 2) - 1]  # upper and lower half

    def __call__(self, numbers: Array) -> Array:
        """(n,) int64, the rows that replace `numbers`, (n,) int64 from 0 to rows - 1, in their memory."""
        for start in range(0, len(numbers), self._arrays.chunk):
            part = self._feistel(numbers[start : start + self._arrays.chunk])
            while len(outside := self._arrays.flatnonzero(part >= self._rows)):
                part[outside] = self._feistel(part[outside])
            numbers[start : start + self._arrays.chunk] = part
        return numbers

    def _feistel(self, numbers: Array) -> Array:
        halves = [numbers >> self._shift, numbers & self._masks[1]]
        for number, key in enumerate(self._keys):
            changed, other = number % 2, 1 - number % 2
            mixed = _hash(halves[other], key)
            mixed &= self._masks[changed]
            halves[changed] ^= mixed
        halves[0] <<= self._shift
        halves[0] |= halves[1]
        return halves[0]


FIRST_BIT = -(2**63)
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)  # the odd constants of SplitMix64, as int64


def _hash(numbers: Array, key: int) -> Array:
    """24 random bits from each number, below its sign: two multiplications, with high bits folded down between them."""
    mixed = numbers + key
    mixed *= _MIX[0]
    high = mixed >> 32
    high &= 2**32 - 1  # without the copies of the sign
    mixed ^= high
    mixed *= _MIX[1]
    mixed >>= 40
    return mixed


def row_counts(lookups: int, distinct: int, reuse: FloatArray, access: FloatArray) -> IntArray:
    """(distinct,) int64, how often each row is read in a batch, hottest bin first, from the statistics of a table.

    Statistics are expectations or rounded shares, so whole numbers cannot always meet them all. The lookups are met
    exactly, then the distinct rows, then the histograms:

    1. The rows of each bin are reuse * distinct, changed as little as possible (least squares) so that the accesses of
       the bin, access * lookups, give each of its rows a count inside the bin's edges. Shares count as known to half a
       unit of their fifth decimal, as pools store them; rare bins among millions of rows follow from `access` alone.
    2. They are rounded by their running sum from the hottest bin down, so no running sum is off by more than half.
    3. If no counts inside the edges add up to `lookups`, as few rows as possible move to the next bin.
    4. The accesses of each bin are access * lookups, changed as little as possible (least squares) so that they fit its
       rows and add up, then rounded; the rows of a bin share them equally, within one.

    `reuse` and `access` are (17,) shares of the rows and of the accesses by bin; `lookups` are at least `distinct`.
    """
    if lookups == 0:
        return np.empty(0, np.int64)
    histograms = (np.asarray(shares, np.float64).tobytes() for shares in (reuse, access))
    return np.repeat(*_counts_and_rows(lookups, distinct, *histograms))


@lru_cache(maxsize=2**13)
def _counts_and_rows(lookups: int, distinct: int, reuse: bytes, access: bytes) -> tuple[IntArray, IntArray]:
    """(34,) how often rows are read, hottest first, and (34,) how many rows: steps 1 to 4 of `row_counts`, in ms."""
    high: FloatArray = np.minimum(BIN_UPPER_EDGES, lookups)
    reuse_shares, access_shares = np.frombuffer(reuse), np.frombuffer(access)
    rows = _reachable(_rows_of_bins(lookups, distinct, reuse_shares, access_shares), lookups, high)
    reads = _reads_of_bins(access_shares / access_shares.sum() * lookups, rows * BIN_LEAST, rows * high, lookups)
    each, more = np.divmod(reads, np.maximum(rows, 1))
    hottest_first = np.stack([each + 1, each], axis=1)[::-1]
    return hottest_first.ravel(), np.stack([more, rows - more], axis=1)[::-1].ravel()


def _rows_of_bins(lookups: int, distinct: int, reuse: FloatArray, access: FloatArray) -> IntArray:
    """(17,) rows of each bin: steps 1 and 2 of `row_counts`."""
    wanted = reuse / reuse.sum() * distinct
    tolerance = 0.5 * 10.0**-HISTOGRAM_DECIMALS
    fewest_reads, most_reads = np.maximum(access - tolerance, 0) * lookups, (access + tolerance) * lookups
    least, most = fewest_reads / BIN_UPPER_EDGES, np.where((access > 0) | (reuse > 0), most_reads / BIN_LEAST, 0)
    least[-1] = min(fewest_reads[-1] / BIN_LEAST[-1], 1)  # a bin without an upper edge: one row could take them all
    if least.sum() <= distinct <= most.sum():
        wanted = _project(wanted, least, most, distinct)
    ends = np.rint(np.cumsum(wanted[::-1]))  # the last is `distinct`, up to an error that the rounding removes
    rows: FloatArray = np.diff(ends, prepend=0.0)[::-1]
    return rows.astype(np.int64)


def _reachable(rows: IntArray, lookups: int, high: FloatArray) -> IntArray:
    """`rows` (17,), some moved to the next bin if otherwise their counts could not add up to `lookups`: step 3."""
    rows = rows.copy()
    down, up = np.append(0, np.diff(BIN_LEAST)), np.append(np.diff(high), 0)
    for edge, step, gain in ((BIN_LEAST, -1, down), (high, 1, up)):
        while (missing := step * (lookups - int(rows @ edge))) > 0:
            open_bins = np.flatnonzero((rows > 0) & (gain > 0))
            small = open_bins[gain[open_bins] <= missing]
            chosen = small[np.argmax(gain[small])] if small.size else open_bins[np.argmin(gain[open_bins])]
            moved = min(int(rows[chosen]), max(missing // int(gain[chosen]), 1))
            rows[chosen] -= moved
            rows[chosen + step] += moved
    return rows


def _reads_of_bins(wanted: FloatArray, least: FloatArray, most: FloatArray, lookups: int) -> IntArray:
    """(17,) accesses of each bin: step 4 of `row_counts`. The largest fractions are rounded up."""
    numbers = _project(wanted, least, most, lookups)
    whole = np.floor(numbers)
    while (rest := lookups - int(whole.sum())) > 0:
        room = np.flatnonzero(whole < most)
        whole[room[np.argsort(whole[room] - numbers[room], kind="stable")[:rest]]] += 1
    return whole.astype(np.int64)


def _project(wanted: FloatArray, least: FloatArray, most: FloatArray, total: float) -> FloatArray:
    """The numbers nearest to `wanted` (least squares) from `least` to `most` that add up to `total`."""
    low, high = float((least - wanted).min()), float((most - wanted).max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(wanted + middle, least, most).sum() < total else (low, middle)
    return np.clip(wanted + high, least, most)


LIMIT_BYTES = 512 * 2**20


class BatchCache:
    """Lookups by stream, first sample and count; what was not used for the longest time is removed first.

    Several threads may use it, and its streams, at the same time. `arrays` draw the lookups and keep `limit_bytes`.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES, arrays: Arrays = NUMPY) -> None:
        self._limit, self._arrays, self._lock = limit_bytes, arrays, Lock()
        self._kept: OrderedDict[tuple[int, int, int], Lookups] = OrderedDict()
        self.kept_bytes = 0

    def stream(self, tables: Tables, table: int, seed: int) -> CachedStream:
        """The `HistogramStream` of these arguments, with this cache."""
        return CachedStream(self, (tables, table, seed, self._arrays))

    def get(self, key: tuple[int, int, int]) -> Lookups | None:
        """What is kept under `key`."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[int, int, int], lookups: Lookups) -> None:
        """Keep `lookups`, unless they exceed the limit by themselves."""
        with self._lock:
            if _bytes(lookups) > self._limit or key in self._kept:
                return
            self._kept[key] = lookups
            self.kept_bytes += _bytes(lookups)
            while self.kept_bytes > self._limit:
                self.kept_bytes -= _bytes(self._kept.popitem(last=False)[1])


class CachedStream(IndexStream):
    """A `HistogramStream` that is made only if lookups are asked for that its cache does not have."""

    def __init__(self, cache: BatchCache, source: tuple[Tables, int, int, Arrays]) -> None:
        self._cache, self._source, self._key = cache, source, stream_key(*source[:3])
        self._stream: HistogramStream | None = None
        self._lock = Lock()

    @override
    def lookups(self, start: int, count: int) -> Lookups:
        found = self._cache.get((self._key, start, count))
        if found is None:
            with self._lock:
                self._stream = self._stream or HistogramStream(*self._source)
            found = self._stream.lookups(start, count)
            self._cache.put((self._key, start, count), found)
        return found


def _bytes(lookups: Lookups) -> int:
    return int(lookups.indices.nbytes) + lookups.lengths.nbytes


TABLE_NAME = re.compile(r"(?:.*/)?table_(\d+)")
"""Names that say which of a file's tables a table is; `shard_gym.tables.pools.meta` gives such names."""


class LookupFile:
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

    def __init__(self, file: LookupFile, table: int, num_embeddings: int) -> None:
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
