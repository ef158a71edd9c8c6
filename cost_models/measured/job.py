"""What workers are told and answer: plain values that travel pickled between processes of one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shard_gym.tables import Tables

Command = tuple[str, dict[str, Any]]
"""The name of a method of `worker.Worker`, and its arguments."""

Answer = tuple[str, Any]
"""`OK` and what the method returned; or `OUT_OF_MEMORY` or `FAILED`, and the message of the error."""

OK, OUT_OF_MEMORY, FAILED = "ok", "out of memory", "failed"


@dataclass(frozen=True)
class Repeats:
    """How often a placement is executed, and on which batches.

    Attributes:
        iterations: timed iterations; the median counts.
        warmup: iterations before them, not timed.
        batches: different batches of lookups, used one after the other. With a single batch its rows stay in the
            caches, and bandwidth comes out up to 1.6 times too high on small working sets (NVIDIA/TileGym, pull
            request 118).
        seed: of the lookups.
    """

    iterations: int
    warmup: int
    batches: int
    seed: int


@dataclass(frozen=True, eq=False)
class Job:
    """What one worker measures; every worker of a group gets its own.

    Attributes:
        tables: those on its device; None for an empty one.
        batch_size: samples of all devices together.
        widths: (D,) columns of the pooled outputs of each device, see `output_width`.
        repeats: see `Repeats`.
        exchange: whether the all-to-alls are measured too; all D devices must take part then.
    """

    tables: Tables | None
    batch_size: int
    widths: tuple[int, ...]
    repeats: Repeats
    exchange: bool


def output_width(tables: Tables | None) -> int:
    """Columns of the pooled outputs: dim times features, summed over the tables; 0 for None."""
    return 0 if tables is None else int((tables.embedding_dim * tables.num_features).sum())
