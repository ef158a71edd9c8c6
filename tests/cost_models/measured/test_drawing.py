"""Batches drawn by several threads are those drawn one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.measured.arrays import NUMPY, TorchArrays
from shard_gym.cost_models.measured.batch_cache import BatchCache
from shard_gym.cost_models.measured.streams import HistogramStream, IndexStream, Lookups, draw_batches, fused_batch
from shard_gym.errors import InvalidTablesError

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


def test_the_error_of_a_stream_is_raised() -> None:
    class Failing:
        def lookups(self, start: int, count: int) -> Lookups:
            raise InvalidTablesError("No such table.")

    with ThreadPoolExecutor(2) as threads, pytest.raises(InvalidTablesError, match="No such table"):
        list(draw_batches([Failing()], 2, 10, threads=threads))
