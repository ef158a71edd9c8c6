"""What a worker is told to measure, and what it answers: plain values that travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from shard_gym.tables import Tables, Workload

_ARRAYS = tuple(field.name for field in fields(Tables) if field.name not in ("workload", "names"))


@dataclass(frozen=True)
class Repeats:
    """How often something is measured, and on what.

    Attributes:
        iterations: timed iterations; the median counts.
        warmup: iterations before them, not timed.
        batches: different batches of lookups, used in turn. With one batch alone the rows it reads stay in the caches,
            and bandwidth comes out up to 1.6 times too high on small working sets (NVIDIA/TileGym, pull request 118).
        seed: of the lookups.
    """

    iterations: int
    warmup: int
    batches: int
    seed: int


@dataclass(frozen=True)
class Job:
    """What one worker measures; every worker of a group gets its own.

    Attributes:
        tables: those on its device; None for an empty one.
        batch_size: samples of all devices together.
        widths: (D,) columns of the pooled outputs of each device: dim times features, summed over its tables.
        repeats: see `Repeats`.
        exchange: whether the all-to-alls are measured too; all D devices must take part then.
    """

    tables: Tables | None
    batch_size: int
    widths: tuple[int, ...]
    repeats: Repeats
    exchange: bool

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "tables": None if self.tables is None else tables_to_json(self.tables),
            "batch_size": self.batch_size,
            "widths": list(self.widths),
            "repeats": asdict(self.repeats),
            "exchange": self.exchange,
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Job:
        """The job that `to_json` described."""
        tables = record["tables"]
        return Job(
            None if tables is None else tables_from_json(tables),
            record["batch_size"],
            tuple(record["widths"]),
            Repeats(**record["repeats"]),
            record["exchange"],
        )


def output_width(tables: Tables | None) -> int:
    """Columns of the pooled outputs of these tables; 0 for None."""
    return 0 if tables is None else int((tables.embedding_dim * tables.num_features).sum())


def shares(batch_size: int, num_devices: int) -> list[int]:
    """Samples of each device: as equal as they can be, the first ones with one more."""
    return [batch_size // num_devices + (device < batch_size % num_devices) for device in range(num_devices)]


def tables_to_json(tables: Tables) -> dict[str, Any]:
    """All of `tables` as JSON values."""
    arrays = {name: getattr(tables, name).tolist() for name in _ARRAYS}
    return {**arrays, "workload": asdict(tables.workload), "names": list(tables.names)}


def tables_from_json(record: Mapping[str, Any]) -> Tables:
    """The tables that `tables_to_json` described."""
    arrays = {name: record[name] for name in _ARRAYS}
    return Tables(**arrays, workload=Workload(**record["workload"]), names=tuple(record["names"]))
