"""A cache of drawn lookups, because searching agents measure the same tables again and again."""

from __future__ import annotations

from collections import OrderedDict

from shard_gym.cost_models.measured.streams import HistogramStream, IndexStream, Lookups, stream_key
from shard_gym.tables import Tables

LIMIT_BYTES = 512 * 2**20


class BatchCache:
    """A `LookupSource` of histogram streams that draws each batch once, as long as it is kept.

    Args:
        limit_bytes: what was not used for the longest time is removed first.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[tuple[int, int, int], Lookups] = OrderedDict()
        self.kept_bytes = 0

    def stream(self, tables: Tables, table: int, seed: int) -> IndexStream:
        """The `HistogramStream` of these arguments; it is made only if a batch is not kept."""
        return _CachedStream(self, tables, table, seed)

    def get(self, key: tuple[int, int, int]) -> Lookups | None:
        """What is kept under `key`, or None."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: tuple[int, int, int], lookups: Lookups) -> None:
        """Keep `lookups`, unless they alone exceed the limit."""
        size = _bytes(lookups)
        if size > self._limit:
            return
        self._kept[key] = lookups
        self.kept_bytes += size
        while self.kept_bytes > self._limit:
            self.kept_bytes -= _bytes(self._kept.popitem(last=False)[1])


class _CachedStream:
    """See `BatchCache.stream`."""

    def __init__(self, cache: BatchCache, tables: Tables, table: int, seed: int) -> None:
        self._cache = cache
        self._source = tables, table, seed
        self._key = stream_key(tables, table, seed)
        self._stream: HistogramStream | None = None

    def lookups(self, start: int, count: int) -> Lookups:
        """See `IndexStream`."""
        key = self._key, start, count
        found = self._cache.get(key)
        if found is None:
            self._stream = self._stream or HistogramStream(*self._source)
            found = self._stream.lookups(start, count)
            self._cache.put(key, found)
        return found


def _bytes(lookups: Lookups) -> int:
    return lookups.indices.nbytes + lookups.lengths.nbytes
