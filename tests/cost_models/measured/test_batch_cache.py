"""Batches: those of the streams, however many threads draw them, drawn once, and kept up to a limit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.measured import streams
from shard_gym.cost_models.measured.arrays import NUMPY, TorchArrays
from shard_gym.cost_models.measured.streams import (
    BatchCache,
    HistogramStream,
    IndexStream,
    Lookups,
    draw_batches,
    fused_batch,
)


def same(left: Lookups, right: Lookups) -> bool:
    return np.array_equal(left.indices, right.indices) and np.array_equal(left.lengths, right.lengths)


def test_lookups_are_those_of_the_stream_and_drawn_once(random_tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = random_tables(np.random.default_rng(0), 3, batch_size=64)
    cache, made = BatchCache(), []

    class Counted(HistogramStream):
        def __init__(self, *arguments: Any) -> None:
            made.append(arguments[1])
            super().__init__(*arguments)

    monkeypatch.setattr(streams, "HistogramStream", Counted)
    for _ in range(2):
        for table in range(3):
            for start in (0, 32):
                expected = HistogramStream(tables, table, 5).lookups(start, 32)
                assert same(cache.stream(tables, table, 5).lookups(start, 32), expected)
    assert sorted(set(made)) == [0, 1, 2]
    assert len(made) == 6  # one stream of a table for each of two batches, none in the second round
    assert not same(cache.stream(tables, 0, 6).lookups(0, 32), cache.stream(tables, 0, 5).lookups(0, 32))


def test_the_least_recently_used_lookups_are_removed_first(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(1), 6, batch_size=64)
    sizes = []
    for table in range(6):
        found = HistogramStream(tables, table, 0).lookups(0, 64)
        sizes.append(found.indices.nbytes + found.lengths.nbytes)
    cache = BatchCache(sum(sizes) - 1)
    for table in range(5):
        cache.stream(tables, table, 0).lookups(0, 64)
    first = cache.stream(tables, 0, 0)
    first.lookups(0, 64)  # used again: table 1 is the oldest now
    cache.stream(tables, 5, 0).lookups(0, 64)
    assert cache.kept_bytes == sum(sizes) - sizes[1]
    small = BatchCache(8)  # holds none of them
    found = small.stream(tables, 0, 0).lookups(0, 64)
    assert small.kept_bytes == 0
    large = BatchCache()
    for _ in range(2):  # as two threads that drew the same
        large.put((1, 0, 64), found)
    assert large.kept_bytes == sizes[0]


BATCHES, BATCH_SIZE = 5, 48


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_threads_draw_the_same_batches(random_tables: Any, kind: str) -> None:
    tables = random_tables(np.random.default_rng(0), 6, batch_size=64)
    streams = [HistogramStream(tables, table, 3) for table in range(6)]
    expected = [
        fused_batch([stream.lookups(number * BATCH_SIZE, BATCH_SIZE) for stream in streams])
        for number in range(BATCHES)
    ]
    arrays = NUMPY if kind == "arrays" else TorchArrays(pytest.importorskip("torch").device("cpu"))
    one_by_one = list(draw_batches(streams, BATCHES, BATCH_SIZE))
    with ThreadPoolExecutor(8) as threads:
        for cache in [BatchCache(arrays=arrays) for _ in range(4)]:
            for _ in range(2):  # the second time from the cache
                cached = [cache.stream(tables, table, 3) for table in range(6)]
                found = list(draw_batches(cached, BATCHES, BATCH_SIZE, arrays=arrays, threads=threads))
                for (indices, offsets), plain, wanted in zip(found, one_by_one, expected, strict=True):
                    assert isinstance(indices, np.ndarray) is (kind == "arrays")
                    for drawn in ((np.asarray(indices), offsets), plain):
                        np.testing.assert_array_equal(drawn[0], wanted[0])
                        np.testing.assert_array_equal(drawn[1], wanted[1])


class Waiting(IndexStream):
    """A stream whose lookups wait until so many threads ask for some."""

    def __init__(self, together: int) -> None:
        self.barrier = threading.Barrier(together, timeout=30.0)

    def lookups(self, start: int, count: int) -> Lookups:
        self.barrier.wait()
        return Lookups(np.full(1, start), np.ones((1, count), np.int64))


def test_all_batches_of_one_table_are_drawn_at_the_same_time() -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(draw_batches([Waiting(4)], 4, 10, threads=threads))
    assert [indices.tolist() for indices, _ in found] == [[0], [10], [20], [30]]
