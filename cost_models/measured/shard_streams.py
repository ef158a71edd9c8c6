"""The lookups of a shard: those of its table that fall into its rows and samples."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from shard_gym.common.arrays import IntArray
from shard_gym.cost_models.measured.arrays import NUMPY, Arrays
from shard_gym.cost_models.measured.job import Part
from shard_gym.cost_models.measured.streams import IndexStream, Lookups, LookupSource


class ShardStream(IndexStream):
    """The stream of a shard, from that of its whole table.

    A block of rows gets the lookups of its rows, numbered from its first one, as TorchRec bucketises them; so blocks of
    a table differ by what is hot in them. A replica gets all lookups of its own samples.
    """

    def __init__(self, whole: IndexStream, part: Part, shard: int, arrays: Arrays = NUMPY) -> None:
        self._whole, self._arrays = whole, arrays
        self._samples, self._hosts = part.samples, part.hosts
        rows = part.first_row[shard], part.num_rows[shard]
        self._rows = None if rows == (0, int(part.tables.num_embeddings[shard])) else rows

    @override
    def lookups(self, start: int, count: int) -> Lookups:
        """Those of its samples among start .. start + count - 1, a batch."""
        first, own = self._samples or (0, count)
        found = self._whole.lookups(start + first, own)
        if self._hosts:
            found = self._in_order(found, samples_by_number(count, *self._hosts))
        return found if self._rows is None else self._of_block(found, *self._rows)

    def _in_order(self, found: Lookups, order: IntArray) -> Lookups:
        """The samples in another order."""
        lengths = found.lengths[:, order]
        starts = (np.cumsum(found.lengths) - found.lengths.ravel()).reshape(found.lengths.shape)[:, order]
        before = np.cumsum(lengths) - lengths.ravel()
        reads = np.arange(lengths.sum()) + np.repeat(starts.ravel() - before, lengths.ravel())
        return Lookups(found.indices.take(self._arrays.moved(reads)), lengths)

    def _of_block(self, found: Lookups, first: int, count: int) -> Lookups:
        """The lookups of `count` rows from `first` up."""
        inside = self._arrays.flatnonzero((found.indices >= first) & (found.indices < first + count))
        ends = self._arrays.count_below(inside, np.cumsum(found.lengths))
        return Lookups(found.indices.take(inside) - first, np.diff(ends, prepend=0).reshape(found.lengths.shape))


def samples_by_number(batch_size: int, num_devices: int, host_size: int) -> IntArray:
    """(B,) int64, all samples in the order of the number of their device in its host, then of the host.

    Sample s belongs to device s // (B / D). So a reduce-scatter inside a host gives each device the samples of its
    number on all hosts.
    """
    samples = np.arange(batch_size).reshape(num_devices // host_size, host_size, -1)
    return samples.transpose(1, 0, 2).reshape(-1)


def streams_of(part: Part, source: LookupSource, seed: int, arrays: Arrays = NUMPY) -> list[IndexStream]:
    """The streams of the shards of a part."""
    wholes = [source(part.tables, shard, seed) for shard in range(len(part.tables))]
    return [ShardStream(whole, part, shard, arrays) for shard, whole in enumerate(wholes)]
