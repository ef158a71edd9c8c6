"""A cache of drawn lookups, because searching agents measure the same tables again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

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

    def lookups(self, key: tuple[int, int, int], draw: Callable[[], Lookups]) -> Lookups:
        """What is kept under `key`, else what `draw` returns; it is kept unless it exceeds the limit by itself."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        drawn = draw()
        if _bytes(drawn) <= self._limit:
            self._kept[key] = drawn
            self.kept_bytes += _bytes(drawn)
        while self.kept_bytes > self._limit:
            self.kept_bytes -= _bytes(self._kept.popitem(last=False)[1])
        return drawn


class _CachedStream:
    """See `BatchCache.stream`."""

    def __init__(self, cache: BatchCache, tables: Tables, table: int, seed: int) -> None:
        self._cache = cache
        self._source = tables, table, seed
        self._key = stream_key(tables, table, seed)
        self._stream: HistogramStream | None = None

    def lookups(self, start: int, count: int) -> Lookups:
        """See `IndexStream`."""
        return self._cache.lookups((self._key, start, count), partial(self._draw, start, count))

    def _draw(self, start: int, count: int) -> Lookups:
        self._stream = self._stream or HistogramStream(*self._source)
        return self._stream.lookups(start, count)


def _bytes(lookups: Lookups) -> int:
    return lookups.indices.nbytes + lookups.lengths.nbytes
