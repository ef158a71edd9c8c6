"""Checks that a measurement fits into memory before it begins, because Linux kills programs that take too much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shard_gym.common.errors import DeviceMemoryError, MemoryInUseError
from shard_gym.common.system import available_memory, usable_memory
from shard_gym.common.text import format_bytes
from shard_gym.cost_models.analytical.model import INDEX_BYTES, OUTPUT_BYTES
from shard_gym.cost_models.measured.job import Job, Part
from shard_gym.plans.plan import DATA_PARALLEL

DENSE_COPIES = 4  # the gradients of replicas, their squares, and steps
COPIES = 3  # pooled outputs, their gradients, and what arrives from the other devices
JOINED_COPIES = 2  # of outputs of several operators that are exchanged together, and of their gradients
WORKER_BYTES = 200 * 2**20  # memory of a process that imported torch and FBGEMM
STREAM_COPIES = 3  # a table's lookups while they are drawn: the accesses, their order, and the batch


def needed_bytes(job: Job) -> int:
    """Bytes that `job` takes: weights, optimizer state, lookups and outputs."""
    return sum(_part_bytes(part, job) for part in job.parts)


def _part_bytes(part: Part, job: Job) -> int:
    tables = part.tables
    samples = job.batch_size if part.samples is None else part.samples[1]
    lookups = tables.pooling_factor * samples * (np.array(part.num_rows) / tables.num_embeddings)
    bags = tables.num_features.sum() * samples
    weights = int(tables.workload.lookup_weight_bytes)
    copies = COPIES + JOINED_COPIES * (sum(other.kind == part.kind for other in job.parts) > 1)
    drawn = (tables.pooling_factor * max(job.batch_size, tables.workload.batch_size)).max()
    gradients = 0
    if part.kind == DATA_PARALLEL:  # of all rows; the update makes as large numbers of them
        gradients = DENSE_COPIES * OUTPUT_BYTES * int((tables.num_embeddings * tables.embedding_dim).sum())
    return int(
        part.memory_bytes
        + INDEX_BYTES * (job.repeats.batches * (lookups.sum() + bags) + STREAM_COPIES * drawn)
        + weights * job.repeats.batches * lookups.sum()
        + OUTPUT_BYTES * copies * part.width * samples
        + gradients
    )


def require_memory(jobs: Sequence[Job], subjects: Sequence[str], new_workers: int) -> None:
    """Refuse jobs on a CPU that need more memory together, with the processes to start, than there is.

    Raises DeviceMemoryError, which names the largest job; it is a MemoryInUseError if the whole memory of the machine,
    or of its container, would suffice.
    """
    available, usable, needed = available_memory(), usable_memory(), [needed_bytes(job) for job in jobs]
    total = sum(needed) + new_workers * WORKER_BYTES
    if available is None or total <= available:
        return
    largest = int(np.argmax(needed))
    ways = ["Take a task with fewer or smaller tables", "measure with a smaller batch_size"]
    if len(jobs) > 1:  # one process stands for all devices already if there is one job
        ways.append("pass layout='sequential' to let one process stand for all devices")
    if in_use := total <= usable:
        ways.append("end other programs")
    raise (MemoryInUseError if in_use else DeviceMemoryError)(
        f"This placement needs {format_bytes(total)} of memory, of which {format_bytes(needed[largest])} are for "
        f"{subjects[largest]} and {format_bytes(new_workers * WORKER_BYTES)} for starting processes, but only "
        f"{format_bytes(available)} are available on this machine, or in its container. {', '.join(ways[:-1])}, "
        f"or {ways[-1]}."
    )
