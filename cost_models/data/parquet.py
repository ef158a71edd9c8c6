"""Measured costs as two Parquet files, one of tables and one of placements, and back. Needs pyarrow (extra `torch`).

tables      one row for each table: its arrays (see `Tables`), `name` and `split`
placements  one row for each placement: `topology` (its number in a list kept elsewhere), `num_devices`, `tables` (rows
            of the file of tables), `devices` (one for each of them), `phases_ms` (four for each device), `cost_ms`;
            and, where placements were drawn by number, those of `Notes`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.data.dataset import TABLE_ARRAYS, CostDataset
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.errors import DamagedFileError, InvalidOptionError, missing_extra
from shard_gym.tables import NUM_BINS, Tables, Workload
from shard_gym.topology import Topology

TEXTS = ("name", "split")
INTEGERS = ("num_embeddings", "embedding_dim", "num_features")
HISTOGRAMS = ("reuse_histogram", "access_histogram")


@dataclass(frozen=True, eq=False)
class Notes:
    """What is known of each of P measurements besides its cost.

    Attributes:
        number: (P,) int64, that of the draw.
        repeat: (P,) int64, 0 for its first measurement, 1 for its second.
        spread: (P,) float64, interquartile range over median of the iteration's cost; NaN where it was not taken.

    Raises:
        InvalidOptionError: the arrays are of different lengths or types, or a number is negative.
    """

    number: NDArray[np.int64]
    repeat: NDArray[np.int64]
    spread: NDArray[np.float64]

    def __post_init__(self) -> None:
        if {self.number.dtype, self.repeat.dtype} != {np.dtype(np.int64)} or self.spread.dtype != np.float64:
            raise InvalidOptionError("Notes hold int64 numbers and repeats, and float64 spreads.")
        if self.number.ndim != 1 or {self.repeat.shape, self.spread.shape} != {self.number.shape}:
            raise InvalidOptionError("Notes hold one number, one repeat and one spread for each measurement.")
        if (self.number < 0).any() or (self.repeat < 0).any() or (self.spread < 0).any():
            raise InvalidOptionError("No number, repeat or spread of a measurement may be negative.")

    def __len__(self) -> int:
        return len(self.number)

    @staticmethod
    def joined(parts: Sequence[Notes]) -> Notes:
        """The notes of all parts after each other."""
        return Notes(*(np.concatenate([getattr(part, name) for part in parts]) for name in NOTES))


NOTES = tuple(field.name for field in fields(Notes))


def to_parquet(costs: SplitCosts, notes: Notes | None = None) -> dict[str, bytes]:
    """The bytes of both files, "tables" and "placements".

    Raises:
        InvalidOptionError: there is not one note for each placement.
        MissingExtraError: pyarrow is not installed.
    """
    placements = _placement_columns(costs.data)
    if notes is not None:
        if len(notes) != len(costs.data):
            raise InvalidOptionError(f"There are {len(costs.data)} placements, but notes on {len(notes)}.")
        placements |= {name: getattr(notes, name) for name in NOTES}
    return {
        "tables": _written(_table_columns(costs), _schema("tables")),
        "placements": _written(placements, _schema("placements", noted=notes is not None)),
    }


def notes_from_parquet(content: bytes) -> Notes | None:
    """The notes in a file of placements; None if it has none.

    Raises:
        DamagedFileError: it is no Parquet file, or has other columns.
        InvalidOptionError: the notes are impossible.
        MissingExtraError: pyarrow is not installed.
    """
    columns = _read(content, "placements")
    return Notes(*(_numbers(columns[name]) for name in NOTES)) if NOTES[0] in columns else None


def from_parquet(
    files: Mapping[str, bytes], workload: Workload, topologies: Sequence[Topology], source: str
) -> SplitCosts:
    """The costs in the two `files`, with what stands in neither of them.

    Raises:
        DamagedFileError: a file is no Parquet file, or has other columns.
        InvalidTablesError: the tables are impossible.
        InvalidOptionError: the placements are impossible, or mix splits.
        MissingExtraError: pyarrow is not installed.
    """
    tables, splits = _read_tables(_read(files["tables"], "tables"), workload)
    return SplitCosts(_read_placements(_read(files["placements"], "placements"), tables, topologies, source), splits)


def require_arrow() -> None:
    """Check that files can be written, before the work for them begins.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    _arrow()


def _arrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "torch", "Reading and writing measured costs") from error
    module: ModuleType = pyarrow
    return module


def _schema(kind: str, *, noted: bool = False) -> Any:
    arrow = _arrow()
    if kind == "placements":
        whole, lists = ("topology", "num_devices"), ("tables", "devices")
        types = {
            **dict.fromkeys(whole, arrow.int64()),
            **dict.fromkeys(lists, arrow.list_(arrow.int64())),
            "phases_ms": arrow.list_(arrow.float64()),
            "cost_ms": arrow.float64(),
        }
        if noted:
            types |= {"number": arrow.int64(), "repeat": arrow.int64(), "spread": arrow.float64()}
    else:
        types = {
            **dict.fromkeys(TEXTS, arrow.string()),
            **dict.fromkeys(TABLE_ARRAYS, arrow.float64()),
            **dict.fromkeys(INTEGERS, arrow.int64()),
            **dict.fromkeys(HISTOGRAMS, arrow.list_(arrow.float64(), NUM_BINS)),
        }
    return arrow.schema([arrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def _written(columns: Mapping[str, Any], schema: Any) -> bytes:
    arrow = _arrow()
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.table(dict(columns), schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read(content: bytes, kind: str) -> dict[str, Any]:
    """The columns of a file, each in one piece and without gaps.

    Raises:
        DamagedFileError: it is no such file.
    """
    arrow = _arrow()
    try:
        table = arrow.parquet.read_table(arrow.BufferReader(content))
    except (OSError, arrow.ArrowException) as error:
        raise DamagedFileError(f"The file of {kind} is damaged, or no Parquet file: {error}.") from error
    noted = NOTES[0] in table.schema.names
    if not table.schema.equals(_schema(kind, noted=noted)):
        raise DamagedFileError(f"The file of {kind} has other columns than {', '.join(_schema(kind).names)}.")
    return {name: table[name].combine_chunks() for name in table.column_names}


def _numbers(column: Any) -> NDArray[Any]:
    """A column of numbers, or all numbers of a column of lists."""
    flat = column.flatten() if hasattr(column, "flatten") else column
    return np.array(flat.to_numpy(zero_copy_only=False))


def _table_columns(costs: SplitCosts) -> dict[str, Any]:
    arrow, tables = _arrow(), costs.data.tables
    columns = {"name": list(tables.names), "split": [SPLITS[split] for split in costs.table_split]}
    for name in TABLE_ARRAYS:
        flat = arrow.array(getattr(tables, name).reshape(-1))
        columns[name] = arrow.FixedSizeListArray.from_arrays(flat, NUM_BINS) if name in HISTOGRAMS else flat
    return columns


def _read_tables(columns: Mapping[str, Any], workload: Workload) -> tuple[Tables, NDArray[np.int64]]:
    """The tables, and the number of the split of each."""
    arrays = {name: _numbers(columns[name]) for name in TABLE_ARRAYS}
    arrays |= {name: arrays[name].reshape(-1, NUM_BINS) for name in HISTOGRAMS}
    splits, known = columns["split"].to_pylist(), dict(zip(SPLITS, range(len(SPLITS)), strict=True))
    strange = sorted(set(splits) - known.keys())
    if strange:
        raise DamagedFileError(f"The file of tables names a split {strange[0]!r}; known are {', '.join(SPLITS)}.")
    tables = Tables(**arrays, workload=workload, names=tuple(columns["name"].to_pylist()))
    return tables, np.array([known[split] for split in splits], np.int64)


def _placement_columns(data: CostDataset) -> dict[str, Any]:
    there = np.arange(data.phases_ms.shape[1]) < data.num_devices[:, None]
    phase_start = np.concatenate([[0], np.cumsum(4 * data.num_devices)])
    return {
        "topology": data.topology,
        "num_devices": data.num_devices,
        "tables": _lists(data.start, data.members),
        "devices": _lists(data.start, data.devices),
        "phases_ms": _lists(phase_start, data.phases_ms[there].reshape(-1)),
        "cost_ms": data.cost_ms,
    }


def _lists(start: NDArray[np.int64], values: NDArray[Any]) -> Any:
    arrow = _arrow()
    return arrow.ListArray.from_arrays(arrow.array(start, arrow.int32()), arrow.array(values))


def _read_placements(
    columns: Mapping[str, Any], tables: Tables, topologies: Sequence[Topology], source: str
) -> CostDataset:
    topology, num_devices = _numbers(columns["topology"]), _numbers(columns["num_devices"])
    there_are = np.array([each.num_devices for each in topologies])
    if ((topology < 0) | (topology >= len(there_are))).any() or (there_are[topology] != num_devices).any():
        raise DamagedFileError("The file of placements does not go with its topologies.")
    sizes = {name: np.diff(_numbers(columns[name].offsets)) for name in ("tables", "devices", "phases_ms")}
    if (sizes["tables"] != sizes["devices"]).any() or (sizes["phases_ms"] != 4 * num_devices).any():
        raise DamagedFileError("The file of placements has lists of impossible lengths.")
    widest = int(there_are.max())
    there = np.arange(widest) < num_devices[:, None]
    phases = np.zeros((len(topology), widest, 4))
    phases[there] = _numbers(columns["phases_ms"]).reshape(-1, 4)
    return CostDataset(
        tables=tables,
        topologies=tuple(topologies),
        topology=topology,
        start=np.concatenate([[0], np.cumsum(sizes["tables"])]),
        members=_numbers(columns["tables"]),
        devices=_numbers(columns["devices"]),
        phases_ms=phases,
        cost_ms=_numbers(columns["cost_ms"]),
        source=source,
    )
