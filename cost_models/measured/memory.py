"""Whether a measurement fits the machine, asked before it begins: Linux kills who takes more than there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shard_gym.cost_models.measured.job import Job
from shard_gym.errors import DeviceMemoryError
from shard_gym.text import format_bytes

INDEX_BYTES = 8
OUTPUT_BYTES = 4
COPIES = 3
"""Pooled outputs, their gradients, and what arrives from the others."""

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


def available_bytes() -> int | None:
    """Bytes of memory that programs can still take; None where it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def require_room(device: str, workers: int) -> None:
    """Refuse more processes on a CPU than can even start.

    Raises:
        DeviceMemoryError: they would take more memory than there is.
    """
    available = available_bytes() if device == "cpu" else None
    if available is not None and workers * WORKER_BYTES > available:
        raise DeviceMemoryError(
            f"{workers} processes take about {format_bytes(workers * WORKER_BYTES)} before they hold any table, but "
            f"only {format_bytes(available)} are available on this machine. Measure fewer devices, or pass "
            "layout='in-turn' to let one process stand for all."
        )


def require_memory(device: str, jobs: Sequence[Job], subjects: Sequence[str]) -> None:
    """Refuse jobs that need more memory together than the CPU has; a GPU says so itself.

    Raises:
        DeviceMemoryError: they do; the message names the largest.
    """
    available = available_bytes() if device == "cpu" else None
    needed = [needed_bytes(job) for job in jobs]
    if available is None or sum(needed) <= available:
        return
    largest = int(np.argmax(needed))
    raise DeviceMemoryError(
        f"This placement needs {format_bytes(sum(needed))} of memory, of which {format_bytes(needed[largest])} are "
        f"for {subjects[largest]}, but only {format_bytes(available)} are available on this machine. Take a task with "
        "fewer or smaller tables, or measure with a smaller batch_size."
    )
