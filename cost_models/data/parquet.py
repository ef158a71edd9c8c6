"""Measurements as two Parquet files, one of tables and one of placements, and back. Needs pyarrow (extra `torch`).

tables      one row for each table: its arrays (see `Tables`), `name` and `split`
placements  one row for each measurement: `topology` (its number in a list kept elsewhere), `num_devices`, `tables`
            (rows of the file of tables), `devices` (one for each of them), `phases_ms` (four for each device),
            `cost_ms`, and the columns of `MeasurementInfo`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.dataset import TABLE_ARRAYS, CostDataset, IntArray
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.errors import DamagedFileError, InvalidOptionError, missing_extra
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.tables import Tables, Workload
from shard_gym.topology import Topology

HISTOGRAMS = ("reuse_histogram", "access_histogram")


@dataclass(frozen=True, eq=False)
class MeasurementInfo:
    """What is known of P measurements besides their costs.

    Attributes:
        number: (P,) int64, number of the sampled placement.
        repeat: (P,) int64, 0 for its first measurement, 1 for its second.
        spread: (P,) float64, interquartile range over median of the iteration's cost; NaN where it is unknown.
        clock_ghz: (P,) float64, lowest SM clock of the GPUs; NaN on a CPU, and where it is unknown.
        late: (P,) int64, iterations on a GPU whose times contain time of the host.

    Raises:
        InvalidOptionError: a number is negative.
    """

    number: IntArray
    repeat: IntArray
    spread: FloatArray
    clock_ghz: FloatArray
    late: IntArray

    def __post_init__(self) -> None:
        if any((getattr(self, name) < 0).any() for name in _INFO):
            raise InvalidOptionError(f"None of {', '.join(_INFO)} of a measurement may be negative.")

    def __len__(self) -> int:
        return len(self.number)

    @staticmethod
    def joined(parts: Sequence[MeasurementInfo]) -> MeasurementInfo:
        """All parts after each other."""
        return MeasurementInfo(*(np.concatenate([getattr(part, name) for part in parts]) for name in _INFO))


_INFO = tuple(field.name for field in fields(MeasurementInfo))

_ADDED = {"placements": {"clock_ghz": np.nan, "late": 0}, "tables": {}}
"""Columns that older files lack, and what they would hold."""


def to_parquet(costs: SplitCosts, info: MeasurementInfo) -> dict[str, bytes]:
    """The bytes of both files, "tables" and "placements"."""
    data = costs.data
    tables = {name: list(getattr(data.tables, name)) for name in TABLE_ARRAYS}
    tables |= {"name": list(data.tables.names), "split": [SPLITS[split] for split in costs.table_split]}
    placements = {
        **{name: getattr(data, name) for name in ("topology", "num_devices", "cost_ms")},
        "tables": np.split(data.members, data.start[1:-1]),
        "devices": np.split(data.devices, data.start[1:-1]),
        "phases_ms": [ms[:count].ravel() for ms, count in zip(data.phases_ms, data.num_devices, strict=True)],
        **{name: getattr(info, name) for name in _INFO},
    }
    return {"tables": _write("tables", tables), "placements": _write("placements", placements)}


def from_parquet(
    files: Mapping[str, bytes], workload: Workload, topologies: Sequence[Topology], source: str
) -> tuple[SplitCosts, MeasurementInfo]:
    """The measurements in the two `files`; the other arguments are what the files do not hold.

    Raises:
        DamagedFileError: a file is no Parquet file, or has other columns.
        InvalidTablesError: the tables are impossible.
        InvalidOptionError: the placements are impossible, or mix splits.
    """
    tables, table_split = _read_tables(_read("tables", files["tables"]), workload)
    placements = _read("placements", files["placements"])
    costs = SplitCosts(_read_placements(placements, tables, topologies, source), table_split)
    return costs, MeasurementInfo(*(_values(placements[name]) for name in _INFO))


def require_arrow() -> Any:
    """The module pyarrow.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "torch", "Reading and writing measured costs") from error
    return pyarrow


def _schema(kind: str) -> Any:
    arrow = require_arrow()
    whole, real = arrow.int64(), arrow.float64()
    if kind == "placements":
        types = {
            **{"topology": whole, "num_devices": whole, "tables": arrow.list_(whole), "devices": arrow.list_(whole)},
            **{"phases_ms": arrow.list_(real), "cost_ms": real, "number": whole, "repeat": whole, "spread": real},
            **{"clock_ghz": real, "late": whole},
        }
    else:
        types = {
            **dict.fromkeys(("name", "split"), arrow.string()),
            **dict.fromkeys(TABLE_ARRAYS, real),
            **dict.fromkeys(("num_embeddings", "embedding_dim", "num_features"), whole),
            **dict.fromkeys(HISTOGRAMS, arrow.list_(real, NUM_BINS)),
        }
    return arrow.schema([arrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def write_table(columns: Mapping[str, Any], schema: Any) -> bytes:
    """A Parquet file with these columns, which are of the kinds that the pyarrow `schema` says."""
    arrow = require_arrow()
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.table(dict(columns), schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_table(content: bytes, schema: Any, name: str, added: Mapping[str, float] = MappingProxyType({})) -> Any:
    """The pyarrow table in a Parquet file, which messages call `name`.

    Args:
        content: of the file.
        schema: its columns.
        name: what messages call it.
        added: the last columns, which the file may lack, and what they hold then.

    Raises:
        DamagedFileError: it is no Parquet file, or has other columns than `schema`.
    """
    arrow = require_arrow()
    try:
        table = arrow.parquet.read_table(arrow.BufferReader(content))
    except (OSError, arrow.ArrowException) as error:
        raise DamagedFileError(f"{name} is damaged, or no Parquet file: {error}.") from error
    for column, value in added.items():
        if column not in table.column_names:
            field = schema.field(column)
            table = table.append_column(field, arrow.array([value] * len(table), field.type))
    if not table.schema.equals(schema):
        raise DamagedFileError(f"{name} has other columns than {', '.join(schema.names)}.")
    return table


def _write(kind: str, columns: Mapping[str, Any]) -> bytes:
    return write_table(columns, _schema(kind))


def _read(kind: str, content: bytes) -> dict[str, Any]:
    """The columns of a file, each as one array."""
    table = read_table(content, _schema(kind), f"The file of {kind}", _ADDED[kind])
    return {name: table[name].combine_chunks() for name in table.column_names}


def _values(column: Any) -> NDArray[Any]:
    """A column of numbers, or all numbers of a column of lists."""
    flat = column.flatten() if hasattr(column, "flatten") else column
    return np.array(flat.to_numpy(zero_copy_only=False))


def _read_tables(columns: Mapping[str, Any], workload: Workload) -> tuple[Tables, IntArray]:
    """The tables, and the number of the split of each."""
    arrays = {name: _values(columns[name]) for name in TABLE_ARRAYS}
    arrays |= {name: arrays[name].reshape(-1, NUM_BINS) for name in HISTOGRAMS}
    splits = columns["split"].to_pylist()
    unknown = sorted(set(splits) - set(SPLITS))
    if unknown:
        raise DamagedFileError(f"The file of tables names a split {unknown[0]!r}; known are {', '.join(SPLITS)}.")
    tables = Tables(**arrays, workload=workload, names=tuple(columns["name"].to_pylist()))
    return tables, np.array([SPLITS.index(split) for split in splits], np.int64)


def _read_placements(
    columns: Mapping[str, Any], tables: Tables, topologies: Sequence[Topology], source: str
) -> CostDataset:
    topology, num_devices = _values(columns["topology"]), _values(columns["num_devices"])
    expected = np.array([each.num_devices for each in topologies])
    if ((topology < 0) | (topology >= len(expected))).any() or (expected[topology] != num_devices).any():
        raise DamagedFileError("The topologies of the file of placements are not those of the index.")
    sizes = {name: np.diff(_values(columns[name].offsets)) for name in ("tables", "devices", "phases_ms")}
    if (sizes["tables"] != sizes["devices"]).any() or (sizes["phases_ms"] != 4 * num_devices).any():
        raise DamagedFileError("The file of placements has lists of impossible lengths.")
    widest = int(expected.max())
    phases = np.zeros((len(topology), widest, 4))
    phases[np.arange(widest) < num_devices[:, None]] = _values(columns["phases_ms"]).reshape(-1, 4)
    return CostDataset(
        tables=tables,
        topologies=tuple(topologies),
        topology=topology,
        start=np.concatenate([[0], np.cumsum(sizes["tables"])]),
        members=_values(columns["tables"]),
        devices=_values(columns["devices"]),
        phases_ms=phases,
        cost_ms=_values(columns["cost_ms"]),
        source=source,
    )
