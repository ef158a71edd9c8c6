"""What workers are told and answer: values that travel as lines of JSON between processes of one machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from shard_gym.plans.plan import COLUMN_WISE
from shard_gym.tables import Popularity, Tables, Workload

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
class Part:
    """The shards of a device that one operator has, and one collective exchanges."""

    kind: str
    """`column_wise`: columns of all rows, of whole tables too, whose outputs pass an all-to-all; `row_wise` and
    `table_row_wise`: blocks of rows, whose outputs are added up; `data_parallel`: replicas, whose gradients are."""
    tables: Tables  # of one workload: the rows and the statistics of the whole tables, the columns of the shards
    first_row: tuple[int, ...]  # of each shard
    num_rows: tuple[int, ...]  # of each shard
    samples: tuple[int, int] | None = None  # the first one and how many, of replicas; None for the whole batch
    hosts: tuple[int, int] | None = None  # devices and devices of a host, of `table_row_wise`

    @staticmethod
    def whole(tables: Tables) -> Part:
        """Tables with all their rows, of which a placement is made."""
        return Part(COLUMN_WISE, tables, (0,) * len(tables), tuple(tables.num_embeddings.tolist()))

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights and optimizer state."""
        share = np.array(self.num_rows) / self.tables.num_embeddings
        return round(float((self.tables.memory_bytes * share).sum()))

    @property
    def width(self) -> int:
        """Columns of the pooled outputs: dim times features, summed over the shards."""
        return int((self.tables.embedding_dim * self.tables.num_features).sum())

    def to_key(self) -> Any:
        """All that decides how long it takes, as JSON values and arrays; of columns, the tables that have these."""
        record = asdict(self.tables if self.kind == COLUMN_WISE else self)
        tables = record.get("tables", record)
        del tables["rows_in"]  # it says nothing of what is in HBM
        if not tables["workload"]["weighted"]:  # keys of times that were measured before lookups had weights
            del tables["workload"]["weighted"]
        return record


@dataclass(frozen=True)
class Widths:
    """Columns of the outputs that the devices of a group exchange."""

    outputs: tuple[int, ...]  # (D,) of the pooled outputs of each device
    partial: int = 0  # of the partial sums of row-wise tables, the same on every device
    host_partial: tuple[int, ...] = ()  # (hosts,) of those of table-row-wise tables, by host; empty without such tables


@dataclass(frozen=True, eq=False)
class Job:
    """What one worker measures; every worker of a group gets its own."""

    parts: tuple[Part, ...]  # what is on its device
    num_devices: int  # of the plan, D
    batch_size: int  # samples of all devices together
    widths: Widths  # what the devices exchange; of this device alone if they do not
    repeats: Repeats  # see `Repeats`
    exchange: bool  # whether the collectives are measured too; all D devices must take part then

    @property
    def hosts(self) -> int:
        """Hosts that the devices stand for, as far as their collectives differ."""
        return max(len(self.widths.host_partial), 1)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Job:
        """The job that `to_line` wrote."""
        widths = record["widths"]
        values = {
            "parts": tuple(map(_part_from_json, record["parts"])),
            "widths": Widths(tuple(widths["outputs"]), widths["partial"], tuple(widths["host_partial"])),
            "repeats": Repeats(**record["repeats"]),
        }
        return Job(**{**record, **values})


def _part_from_json(record: Mapping[str, Any]) -> Part:
    tables = record["tables"]
    tables = Tables(**{**tables, "workload": Workload(**tables["workload"]), "names": tuple(tables["names"])})
    lists = {name: record[name] and tuple(record[name]) for name in ("first_row", "num_rows", "samples", "hosts")}
    return Part(record["kind"], tables, **lists)


@dataclass(frozen=True)
class Timing:
    """What a worker answers to a job that it measured."""

    ms: list[list[float]]  # (iterations, 4): forward, its collectives, those of the gradients, backward; 0 without work
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
