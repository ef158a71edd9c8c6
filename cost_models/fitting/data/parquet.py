"""Measurements as two Parquet files, one of tables and one of placements, and back. Needs pyarrow (extra `torch`).

tables      one row for each table: its arrays (see `Tables`), `name` and `split`
placements  one row for each measurement: `topology` (its number in a list kept elsewhere), `num_devices`, `tables`
            (rows of the file of tables), `devices` (one for each of them), `phases_ms` (four for each device),
            `cost_ms`, and the columns of `MeasurementInfo`; where plans were measured also `kinds` (one for each table,
            see `CostDataset`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.common.io.parquet import read_table, require_arrow, values_of, write_table
from shard_gym.cost_models.fitting.data.dataset import STORED_ARRAYS, CostDataset
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts
from shard_gym.hardware import Topology
from shard_gym.plans.needs import MIXED, SEQUENCES, TRAINING, require_supported
from shard_gym.tables import NUM_BINS, Tables, Workload

HISTOGRAMS = ("reuse_histogram", "access_histogram")


@dataclass(frozen=True, eq=False)
class MeasurementInfo:
    """What is known of P measurements besides their costs.

    Raises:
        InvalidOptionError: a number is negative.
    """

    number: IntArray  # (P,) int64, number of the sampled placement
    repeat: IntArray  # (P,) int64, 0 for its first measurement, 1 for its second
    spread: FloatArray  # (P,) float64, interquartile range over median of the iteration's cost; NaN where it is unknown
    clock_ghz: FloatArray  # (P,) float64, lowest SM clock of the GPUs; NaN on a CPU, and where it is unknown
    late: IntArray  # (P,) int64, iterations on a GPU whose times contain time of the host

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


def to_parquet(costs: SplitCosts, info: MeasurementInfo, plans: bool = False) -> dict[str, bytes]:
    """The bytes of both files, "tables" and "placements"; with `plans`, the latter has the kinds of the shards."""
    data = costs.data
    for need in (SEQUENCES, MIXED):
        if need in data.needs:
            require_supported("A file of measurements", {need}, {TRAINING})
    tables = {name: list(getattr(data.tables, name)) for name in STORED_ARRAYS}
    tables |= {"name": list(data.tables.names), "split": [SPLITS[split] for split in costs.table_split]}
    placements = {
        **{name: getattr(data, name) for name in ("topology", "num_devices", "cost_ms")},
        "tables": np.split(data.members, data.start[1:-1]),
        "devices": np.split(data.devices, data.start[1:-1]),
        "phases_ms": [ms[:count].ravel() for ms, count in zip(data.phases_ms, data.num_devices, strict=True)],
        **({"kinds": np.split(data.kinds, data.start[1:-1])} if plans else {}),
        **{name: getattr(info, name) for name in _INFO},
    }
    columns = {"tables": tables, "placements": placements}
    return {kind: write_table(each, _schema(kind, plans)) for kind, each in columns.items()}


def from_parquet(
    files: Mapping[str, bytes], workload: Workload, topologies: Sequence[Topology], source: str, plans: bool = False
) -> tuple[SplitCosts, MeasurementInfo]:
    """The measurements in the two `files`; the other arguments are what the files do not hold.

    Raises DamagedFileError, InvalidTablesError or InvalidOptionError where a file is none, or has something impossible.
    """
    tables, table_split = _read_tables(_read("tables", files["tables"]), workload)
    placements = _read("placements", files["placements"], plans)
    costs = SplitCosts(_read_placements(placements, tables, topologies, source), table_split)
    return costs, MeasurementInfo(*(values_of(placements[name]) for name in _INFO))


def _schema(kind: str, plans: bool = False) -> Any:
    arrow = require_arrow()
    whole, real = arrow.int64(), arrow.float64()
    if kind == "placements":
        types = {
            **{"topology": whole, "num_devices": whole, "tables": arrow.list_(whole), "devices": arrow.list_(whole)},
            **{"phases_ms": arrow.list_(real), "cost_ms": real, "number": whole, "repeat": whole, "spread": real},
            **{"clock_ghz": real, "late": whole},
            **({"kinds": arrow.list_(whole)} if plans else {}),
        }
    else:
        types = {
            **dict.fromkeys(("name", "split"), arrow.string()),
            **dict.fromkeys(STORED_ARRAYS, real),
            **dict.fromkeys(("num_embeddings", "embedding_dim", "num_features"), whole),
            **dict.fromkeys(HISTOGRAMS, arrow.list_(real, NUM_BINS)),
        }
    return arrow.schema([arrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def _read(kind: str, content: bytes, plans: bool = False) -> dict[str, Any]:
    table = read_table(content, _schema(kind, plans), f"The file of {kind}")
    return {name: table[name].combine_chunks() for name in table.column_names}


def _read_tables(columns: Mapping[str, Any], workload: Workload) -> tuple[Tables, IntArray]:
    arrays: dict[str, Any] = {name: values_of(columns[name]) for name in STORED_ARRAYS}
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
    topology, num_devices = values_of(columns["topology"]), values_of(columns["num_devices"])
    expected = np.array([each.num_devices for each in topologies])
    if ((topology < 0) | (topology >= len(expected))).any() or (expected[topology] != num_devices).any():
        raise DamagedFileError("The topologies of the file of placements are not those of the index.")
    lists = [name for name in ("tables", "devices", "kinds", "phases_ms") if name in columns]
    sizes = {name: np.diff(values_of(columns[name].offsets)) for name in lists}
    unlike = any((sizes[name] != sizes["tables"]).any() for name in lists[:-1])
    if unlike or (sizes["phases_ms"] != 4 * num_devices).any():
        raise DamagedFileError("The file of placements has lists of impossible lengths.")
    widest = int(expected.max())
    phases = np.zeros((len(topology), widest, 4))
    phases[np.arange(widest) < num_devices[:, None]] = values_of(columns["phases_ms"]).reshape(-1, 4)
    return CostDataset(
        tables=tables,
        topologies=tuple(topologies),
        topology=topology,
        start=np.concatenate([[0], np.cumsum(sizes["tables"])]),
        members=values_of(columns["tables"]),
        devices=values_of(columns["devices"]),
        kinds=values_of(columns["kinds"]) if "kinds" in columns else np.empty(0, np.int64),
        phases_ms=phases,
        cost_ms=values_of(columns["cost_ms"]),
        source=source,
    )
