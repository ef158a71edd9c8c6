"""Drawing the batches of a fused operator, by several threads where that is quicker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice

from shard_gym.cost_models.measured.arrays import NUMPY, Array, Arrays
from shard_gym.cost_models.measured.streams import IndexStream, Ints, Lookups, fused_batch


def draw_batches(
    streams: Sequence[IndexStream],
    count: int,
    batch_size: int,
    *,
    arrays: Arrays = NUMPY,
    threads: Executor | None = None,
) -> Iterator[tuple[Array, Ints]]:
    """The batches 0 .. count - 1 of some tables, as `fused_batch` returns them.

    Args:
        streams: of the tables, in their order.
        count: batches.
        batch_size: samples of each.
        arrays: what the streams draw with.
        threads: draw every table's part of every batch, all at once; sorting and drawing random bits let other threads
            run. None to draw one after the other, when it is asked for.
    """

    def part(stream: IndexStream, number: int) -> Lookups:
        return stream.lookups(number * batch_size, batch_size)

    numbers = [number for number in range(count) for _ in streams]
    parts = (threads.map if threads else map)(part, list(streams) * count, numbers)
    for _ in range(count):
        yield fused_batch(list(islice(parts, len(streams))), arrays)
