"""Import of the day files of the Criteo 1TB click logs: 26 tables that drift as they did, interval by interval.

The logs are 24 files, day_0 to day_23, of some 180 million samples each. Criteo publishes them under CC BY-NC-SA 4.0;
who wants to use them downloads them, and ShardGym ships none. A line is a sample: a label, 13 integers and 26 hashes of
32 bits, each the value of a categorical feature. The lines of a day are in the order of time, but have no time stamps,
so an interval is a number of lines, not of minutes. Clicks and other samples were thinned out at different rates before
they were published, so the numbers of samples say nothing about traffic.

One core reads 414,000 to 670,000 lines of a plain file in a second, and 327,000 to 397,000 of a gzip file
(`benchmarks/criteo.py`, on lines made up, 23 November 2026, AMD EPYC, a machine that others share).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.checks import checked_count
from shard_gym.drift.criteo_file import EMPTY, NUM_TABLES, Rows, count_lines, read_rows, require_day_file
from shard_gym.errors import DamagedFileError, InvalidOptionError, wrong_kind
from shard_gym.lookup_statistics import NUM_BINS, ReuseStatistics, counted_statistics, rounded_statistics
from shard_gym.tables import Tables
from shard_gym.text import counted
from shard_gym.workload import Workload

NAMES = tuple(f"C{number}" for number in range(1, NUM_TABLES + 1))
"""Of the tables: the categorical features, in the order of their columns."""

MAX_ROWS = 40_000_000
"""The most rows of a table, as in MLPerf's DLRM."""

EMBEDDING_DIM = 128
WORKLOAD = Workload(65536, "fp32", "rowwise_adagrad")
"""Dims, batch and training as in MLPerf's DLRM-DCNv2, with rowwise Adagrad for its Adagrad."""


@dataclass(frozen=True, eq=False)
class Interval:
    """The tables in one interval of a day.

    Attributes:
        day_file: the file that the interval is a part of.
        number: of the interval in its file, from 0.
        num_samples: lines of the interval.
        num_batches: complete batches in it, whose mean the statistics of the tables are.
        tables: 26 tables named C1 to C26.
    """

    day_file: Path
    number: int
    num_samples: int
    num_batches: int
    tables: Tables


def read_intervals(
    paths: str | Path | Sequence[str | Path],
    *,
    samples_per_interval: int | None = None,
    intervals_per_file: int | None = None,
    embedding_dim: ArrayLike = EMBEDDING_DIM,
    workload: Workload = WORKLOAD,
    max_rows: int = MAX_ROWS,
) -> Iterator[Interval]:
    """The tables in each interval of the day files of the Criteo 1TB click logs, in the order of the lines.

    An interval is a part of one file. With `samples_per_interval` each has that many lines, and the last one of a file
    what is left; if less than a batch is left, that belongs to the interval before. With `intervals_per_file` a file
    is cut into that many parts, whose numbers of lines differ by at most one; for that it is read twice, first to count
    its lines. No line is left out.

    The statistics of the tables are those of one batch of `workload.batch_size` samples: batches are consecutive lines
    from the beginning of an interval, and distinct rows, lookups and the numbers of rows and lookups in each bin are
    means over all complete batches of it. Lines after the last complete batch count for the rows only. The pooling
    factor is at most 1: a value is one lookup, and an empty value is none (DLRM's preprocessing takes it for a 0).

    The row of a value is its hash modulo `max_rows`, as with `--max-ind-range` in DLRM's preprocessing. The number of
    rows of a table is that of the distinct rows read so far, from the first file to the end of the interval, and at
    least 1. So tables grow, fast at first: everything is new in the first hours. To study a model that has been trained
    for a while, read some days and leave out their intervals.

    Files are read as the intervals are asked for, up to a batch ahead; an interval comes even if a later line is
    damaged. Memory does not depend on the files: a bit for each of `max_rows` rows of 26 tables (130 MB by default; 14
    GB at most), and a few batches of 104 bytes a sample. The default options take 230 MB in all.

    Args:
        paths: day files, plain or gzip, in the order of the days.
        samples_per_interval: lines of an interval, at least a batch; this or `intervals_per_file`.
        intervals_per_file: parts of each file, of at least a batch.
        embedding_dim: of all tables, or (26,) one for each; not in the data.
        workload: batch size, type of weights and optimizer.
        max_rows: the most rows of a table, up to 2**32 - 1; with 2**32 - 1 only two of the hashes share a row.

    Yields:
        Intervals; `number` begins with 0 in each file.

    Raises:
        InvalidOptionError: an option is out of range, an interval has fewer samples than a batch, or the files are out
            of order.
        InvalidTablesError: the dims are no dims of 26 tables.
        DamagedFileError: a file is missing, empty, truncated, or a line is no sample; the message has file and line.
    """
    files = _in_order(paths)
    if not isinstance(workload, Workload):
        raise wrong_kind("workload", workload, "a Workload, for example Workload(65536)")
    batch_size = workload.batch_size
    if (samples_per_interval is None) == (intervals_per_file is None):
        raise InvalidOptionError("Give either samples_per_interval or intervals_per_file, and not both.")
    size = 0 if samples_per_interval is None else checked_count("samples_per_interval", samples_per_interval)
    parts = 0 if intervals_per_file is None else checked_count("intervals_per_file", intervals_per_file)
    if size and size < batch_size:
        raise _too_short(f"samples_per_interval is {size:,}", batch_size)
    seen = _SeenRows(checked_count("max_rows", max_rows, most=EMPTY))
    unread = Tables(
        num_embeddings=np.ones(NUM_TABLES, np.int64),
        embedding_dim=np.full(NUM_TABLES, EMBEDDING_DIM),
        pooling_factor=np.zeros(NUM_TABLES),
        distinct_rows=np.zeros(NUM_TABLES),
        reuse_histogram=np.zeros((NUM_TABLES, NUM_BINS)),
        access_histogram=np.zeros((NUM_TABLES, NUM_BINS)),
        workload=workload,
        names=NAMES,
    ).with_dims(embedding_dim)
    for path in files:
        require_day_file(path)
    return _intervals(files, size, parts, unread, seen)


def _in_order(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files; those named day_N, with any suffix, must be in the order of their numbers."""
    given = [paths] if isinstance(paths, (str, Path)) else paths
    if not isinstance(given, Sequence) or not given or not all(isinstance(path, (str, Path)) for path in given):
        raise wrong_kind("paths", paths, "a list of day files", 'For example ["day_0.gz", "day_1.gz"].')
    files = [Path(path) for path in given]
    days = [(int(match[1]), path) for path in files if (match := re.match(r"day_([0-9]{1,9})(?![0-9])", path.name))]
    for (day, path), (next_day, next_path) in pairwise(days):
        if next_day <= day:
            raise InvalidOptionError(
                f"{next_path} comes after {path}, but the days must be in order, each once. Sort them by their "
                "numbers: sorted by name, day_10 comes before day_2."
            )
    return files


def _too_short(subject: str, batch_size: int) -> InvalidOptionError:
    return InvalidOptionError(
        f"{subject}, fewer than one batch of {counted(batch_size, 'sample')}, whose statistics the tables need. Ask "
        "for longer intervals, or give a workload with a smaller batch_size."
    )


def _intervals(files: list[Path], size: int, parts: int, unread: Tables, seen: _SeenRows) -> Iterator[Interval]:
    """Intervals of `size` samples, or if that is 0, `parts` of each file; `unread` are the tables before any line."""
    for path in files:
        lines = 0 if size else count_lines(path)
        sizes = repeat(size) if size else _parts(path, lines, parts, unread)
        read = 0
        with closing(read_rows(path, seen.max_rows)) as blocks:
            samples = _Samples(blocks)
            for number, wanted in enumerate(sizes):
                if not samples.ready(1):
                    break
                interval = _next_interval(path, number, wanted, samples, unread, seen)
                read += interval.num_samples
                yield interval
            if lines and (read != lines or samples.ready(1)):
                raise DamagedFileError(f"{path} changed while it was read: it had {lines:,} lines. Read it again.")


def _parts(path: Path, lines: int, count: int, unread: Tables) -> list[int]:
    """The lines of each of `count` parts of a file."""
    batch_size = unread.workload.batch_size
    if lines // count < batch_size:
        raise _too_short(
            f"{path} has {counted(lines, 'line')}, so one of {count:,} intervals has {lines // count:,}", batch_size
        )
    return [lines * (part + 1) // count - lines * part // count for part in range(count)]


def _next_interval(path: Path, number: int, size: int, samples: _Samples, unread: Tables, seen: _SeenRows) -> Interval:
    """The interval of the next `size` samples, and of what is left of the file if that is less than a batch."""
    batch_size, total = unread.workload.batch_size, _Total()
    read = 0
    while read < size:
        wanted = min(size - read, batch_size)
        left = samples.ready(wanted + batch_size)
        last = left < wanted + batch_size  # the file ends within a batch after these
        rows = samples.take(left if last else wanted)
        seen.add(rows)
        if rows.shape[1] >= batch_size:
            total.add(rows[:, :batch_size])
        read += rows.shape[1]
        if last:
            break
    if not total.batches:
        raise _too_short(f"{path} has {counted(read, 'line')}", batch_size)
    return Interval(path, number, read, total.batches, total.tables(unread, seen))


class _Samples:
    """The samples of a file, taken in any numbers.

    Args:
        blocks: (26, n) arrays, see `read_rows`.
    """

    def __init__(self, blocks: Iterator[Rows]) -> None:
        self._blocks = blocks
        self._pieces: list[Rows] = []
        self._size = 0

    def ready(self, count: int) -> int:
        """The number of samples that can be taken now: at least `count`, or all that are left."""
        while self._size < count and (block := next(self._blocks, None)) is not None:
            self._pieces.append(block)
            self._size += block.shape[1]
        return self._size

    def take(self, count: int) -> Rows:
        """(26, count) uint32, the next samples; at most as many as are ready."""
        joined = np.concatenate(self._pieces, axis=1)
        self._pieces, self._size = [joined[:, count:].copy()], self._size - count
        return joined[:, :count]


class _SeenRows:
    """The rows of each table that were read so far: sets of bits.

    Args:
        max_rows: the most rows of a table.

    Attributes:
        counts: (26,) int64, the rows that were read.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.counts = np.zeros(NUM_TABLES, np.int64)
        self._bits = np.zeros((NUM_TABLES, (max_rows + 7) // 8), np.uint8)  # takes memory where it is written

    def add(self, rows: Rows) -> None:
        """Add the rows that (26, n) samples read."""
        for table, (bits, read) in enumerate(zip(self._bits, rows, strict=True)):
            read = read[read != EMPTY]
            new = np.unique(read[bits[read >> 3] & _bit(read) == 0])
            np.bitwise_or.at(bits, new >> 3, _bit(new))
            self.counts[table] += new.size


def _bit(rows: Rows) -> NDArray[np.uint8]:
    """(n,) the bit of each row in its byte."""
    return np.left_shift(np.uint8(1), (rows & 7).astype(np.uint8))


class _Total:
    """Sums of the statistics of batches.

    Attributes:
        batches: their number.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._distinct, self._lookups = np.zeros((2, NUM_TABLES))
        self._distinct_in_bins, self._lookups_in_bins = np.zeros((2, NUM_TABLES, NUM_BINS))

    def add(self, rows: Rows) -> None:
        """Add a batch, (26, batch size)."""
        self.batches += 1
        for table, read in enumerate(rows):
            read = read[read != EMPTY]
            distinct, reuse, access = counted_statistics(read)
            self._distinct[table] += distinct
            self._lookups[table] += read.size
            self._distinct_in_bins[table] += reuse * distinct
            self._lookups_in_bins[table] += access * read.size

    def tables(self, unread: Tables, seen: _SeenRows) -> Tables:
        """`unread` with the means over the batches, and the rows seen."""
        pooling = self._lookups / (self.batches * unread.workload.batch_size)
        rows = np.maximum(seen.counts, 1)
        mean = ReuseStatistics(
            self._distinct / self.batches,
            self._distinct_in_bins / np.maximum(self._distinct, 1.0)[:, None],
            self._lookups_in_bins / np.maximum(self._lookups, 1.0)[:, None],
        )
        rounded = rounded_statistics(mean, rows.astype(np.float64), self._lookups / self.batches)
        return replace(unread, num_embeddings=rows, pooling_factor=pooling, **rounded._asdict())
