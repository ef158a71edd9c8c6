"""What workers are told and answer: values that travel as lines of JSON between processes of one machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from shard_gym.row_popularity import Popularity
from shard_gym.tables import Tables
from shard_gym.workload import Workload

Command = tuple[str, dict[str, Any]]  # the name of a method of `worker.Worker`, and its arguments

Answer = tuple[str, Any]
"""`OK` and what the method returned; or `OUT_OF_MEMORY` or `FAILED`, and the message of the error."""

OK, OUT_OF_MEMORY, FAILED = "ok", "out of memory", "failed"


@dataclass(frozen=True)
class Repeats:
    """How often a placement is executed, and on which batches."""

    iterations: int  # timed iterations; the median counts
    warmup: int  # iterations before them, not timed; on a GPU at least as many, see `clock.GpuClock`
    batches: int  # different ones, in turn: in caches, one alone is up to 1.6 times as fast (NVIDIA/TileGym, pull 118)
    seed: int  # of the lookups


@dataclass(frozen=True, eq=False)
class Job:
    """What one worker measures; every worker of a group gets its own."""

    tables: Tables | None  # those on its device; None for an empty one
    batch_size: int  # samples of all devices together
    widths: tuple[int, ...]  # (D,) columns of the pooled outputs of each device, see `output_width`
    repeats: Repeats  # see `Repeats`
    exchange: bool  # whether the all-to-alls are measured too; all D devices must take part then

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Job:
        """The job that `to_line` wrote."""
        tables = record["tables"]
        if tables is not None:
            tables = Tables(**{**tables, "workload": Workload(**tables["workload"]), "names": tuple(tables["names"])})
        values = {"tables": tables, "widths": tuple(record["widths"]), "repeats": Repeats(**record["repeats"])}
        return Job(**{**record, **values})


@dataclass(frozen=True)
class Timing:
    """What a worker answers to a job that it measured."""

    ms: list[list[float]]  # (iterations, 4): forward, all-to-all, that of the gradients, backward; 0 without work
    clock_ghz: float | None = None  # SM clock of a GPU, median over the timed iterations; None for a CPU
    late: int = 0  # iterations on a GPU that contain time of the host, see `clock.GpuClock`; should be 0


def to_line(message: Command | Answer) -> bytes:
    """A message as a line of JSON; arrays become lists, and a job an object."""
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Popularity):  # a measurement draws its lookups from the histograms
        return None
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{value!r} is no part of a message.")


def output_width(tables: Tables | None) -> int:
    """Columns of the pooled outputs: dim times features, summed over the tables; 0 for None."""
    return 0 if tables is None else int((tables.embedding_dim * tables.num_features).sum())
