"""A cache of drawn lookups, because searching agents measure the same tables again and again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from typing_extensions import override

from shard_gym.cost_models.measured.arrays import NUMPY, Arrays
from shard_gym.cost_models.measured.streams import HistogramStream, IndexStream, Lookups, stream_key
from shard_gym.tables import Tables

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
