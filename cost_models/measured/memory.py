"""Checks that a measurement fits into memory before it begins, because Linux kills programs that take too much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.cost_models.measured.job import Job
from shard_gym.errors import DeviceMemoryError
from shard_gym.system import available_memory
from shard_gym.text import format_bytes

INDEX_BYTES = 8
OUTPUT_BYTES = 4
COPIES = 3
"""Pooled outputs, their gradients, and what arrives from the other devices."""

WORKER_BYTES = 200 * 2**20
"""Of a process that imported torch and FBGEMM."""

STREAM_COPIES = 3
"""A table's lookups while they are drawn: the accesses, their order, and the batch."""


def needed_bytes(job: Job) -> int:
    """Bytes that `job` takes: weights, optimizer state, lookups and outputs."""
    tables = job.tables
    if tables is None:
        return 0
    lookups = tables.pooling_factor * job.batch_size
    bags = tables.num_features.sum() * job.batch_size
    outputs = (tables.embedding_dim * tables.num_features).sum() * job.batch_size
    drawn = (tables.pooling_factor * max(job.batch_size, tables.workload.batch_size)).max()
    return int(
        tables.memory_bytes.sum()
        + INDEX_BYTES * (job.repeats.batches * (lookups.sum() + bags) + STREAM_COPIES * drawn)
        + OUTPUT_BYTES * COPIES * outputs
    )


def require_memory(jobs: Sequence[Job], subjects: Sequence[str], new_workers: int) -> None:
    """Refuse jobs on a CPU that need more memory together, with the processes to start, than there is.

    Raises:
        DeviceMemoryError: they do; the message names the largest job.
    """
    available, needed = available_memory(), [needed_bytes(job) for job in jobs]
    total = sum(needed) + new_workers * WORKER_BYTES
    if available is None or total <= available:
        return
    largest = int(np.argmax(needed))
    raise DeviceMemoryError(
        f"This placement needs {format_bytes(total)} of memory, of which {format_bytes(needed[largest])} are for "
        f"{subjects[largest]} and {format_bytes(new_workers * WORKER_BYTES)} for starting processes, but only "
        f"{format_bytes(available)} are available on this machine, or in its container. Take a task with fewer or "
        "smaller tables, measure with a smaller batch_size, or pass layout='sequential' to let one process stand for "
        "all devices."
    )
