"""Data sets of placements and their costs, in memory: what neural cost models are trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.io.parsing import parse_json, require_fields
from shard_gym.cost_models.base import PHASES, CostEstimate
from shard_gym.hardware import HardwareProfile, Topology
from shard_gym.hardware.topology import topologies_from_json, topology_to_json
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.needs import HOST_MEMORY, NEEDS, REPLICAS, needs_of, require_supported
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables, Workload

SUPPORTS = frozenset(NEEDS) - {HOST_MEMORY, REPLICAS}
"""What tasks may need whose costs are recorded."""

_NO_ARRAYS = ("workload", "names", "popularity", "rows_in")
TABLE_ARRAYS = tuple(field.name for field in fields(Tables) if field.name not in _NO_ARRAYS)
STORED_ARRAYS = tuple(name for name in TABLE_ARRAYS if name != "pooled")
"""Those that every file has; `pooled` is stored where a table is a sequence table."""


@dataclass(frozen=True, eq=False)
class PlacementCosts:
    """P placements and the ms of each phase on each of their devices.

    Raises:
        InvalidOptionError: the arrays do not describe placements and their costs.
    """

    topologies: tuple[Topology, ...]  # the different topologies
    topology: IntArray  # (P,) int64, the number of the topology of each placement
    start: IntArray  # (P + 1,) int64; placement p has the rows from `start[p]` to before `start[p + 1]`
    devices: IntArray  # (R,) int64, the device of each row: of a table, or of a shard
    phases_ms: FloatArray  # (P, D, 4) float64, D that of the largest topology; 0 beyond the devices of a placement
    cost_ms: FloatArray  # (P,) float64, ms of the iteration

    def __post_init__(self) -> None:
        for sentence, holds in self._requirements():
            if not holds:
                raise InvalidOptionError(f"These arrays are no measured costs: {sentence}.")

    def _requirements(self) -> Iterator[tuple[str, bool]]:
        """Each requirement with whether it holds; later ones rely on earlier ones."""
        count, rows = self.cost_ms.shape[:1], self.devices.shape[:1]
        yield "there must be a topology", bool(self.topologies)
        widest = max(topology.num_devices for topology in self.topologies)
        for name, dtype, shape in (
            *(("topology", np.int64, count), ("start", np.int64, (self.cost_ms.size + 1,))),
            *(("devices", np.int64, rows), ("cost_ms", np.float64, count)),
            ("phases_ms", np.float64, (*count, widest, len(PHASES))),
        ):
            yield has_form(name, getattr(self, name), dtype, shape)
        yield (
            "start must rise from 0 to the number of devices",
            bool(self.start[0] == 0 and self.start[-1] == len(self.devices) and (np.diff(self.start) > 0).all()),
        )
        yield "topology must number the topologies", _within(self.topology, len(self.topologies))
        widths = np.repeat(self.num_devices, np.diff(self.start))
        yield "devices must number the devices of each placement", _within(self.devices, widths)

    def __len__(self) -> int:
        return len(self.cost_ms)

    @property
    def num_devices(self) -> IntArray:
        """(P,) int64, the number of devices of each placement."""
        return np.array([topology.num_devices for topology in self.topologies])[self.topology]


def has_form(name: str, array: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> tuple[str, bool]:
    """A requirement of `PlacementCosts`: the dtype and the shape of an array."""
    return f"{name} must be {np.dtype(dtype)} of shape {shape}", array.dtype == dtype and array.shape == shape


def _within(numbers: IntArray, below: int | IntArray) -> bool:
    return bool(((numbers >= 0) & (numbers < below)).all())


class Shards(NamedTuple):
    """Shards of one sharding type on devices of one topology."""

    topology: int  # its number
    sharding_type: str
    rows: IntArray  # (n,) int64, of the data set
    tables: Tables  # the different shards, as `shard_tables` describes them
    which: IntArray  # (n,) int64, which of `tables` each row is


@dataclass(frozen=True, eq=False)
class CostDataset(PlacementCosts):
    """Placements of tables and their costs; equal tables are kept once."""

    tables: Tables  # the M different tables
    members: IntArray  # (R,) int64, rows of `tables`; placement p places `members[start[p]:start[p + 1]]`
    source: str  # fingerprint of the cost model that gave the costs
    kinds: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """(R,) int64, of plans the sharding type of each shard, its number in `SHARDING_TYPES`; 0 for a table that is one
    shard. The tables of column shards have their columns. By default 0 for all."""

    def __post_init__(self) -> None:
        if not self.kinds.size:
            object.__setattr__(self, "kinds", np.zeros(len(self.devices), np.int64))
        super().__post_init__()

    @property
    def has_plans(self) -> bool:
        """Whether a table is split."""
        return bool(self.kinds.any())

    @property
    def needs(self) -> frozenset[str]:
        """Names in `shard_gym.plans.needs.NEEDS`, of all placements."""
        return frozenset[str]().union(*(needs_of(self.tables, topology) for topology in self.topologies))

    @property
    def planned(self) -> NDArray[np.bool_]:
        """(P,) bool, where a table is split."""
        return np.add.reduceat(self.kinds > 0, self.start[:-1]) > 0

    def shards(self) -> list[Shards]:
        """All rows by what they are to their devices: by topology and sharding type."""
        topology = np.repeat(self.topology, np.diff(self.start))
        found = []
        for number, kind in np.unique(np.stack([topology, self.kinds]), axis=1).T.tolist():
            rows = np.flatnonzero((topology == number) & (self.kinds == kind))
            members, which = np.unique(self.members[rows], return_inverse=True)
            sharding_type = SHARDING_TYPES[kind]
            tables = shard_tables(self.tables.select(members), sharding_type, self.topologies[number])
            found.append(Shards(number, sharding_type, rows, tables, which))
        return found

    def _requirements(self) -> Iterator[tuple[str, bool]]:
        yield from super()._requirements()
        yield has_form("members", self.members, np.int64, self.devices.shape)
        yield "members must number the tables", _within(self.members, len(self.tables))
        yield has_form("kinds", self.kinds, np.int64, self.devices.shape)
        yield "kinds must number the sharding types", _within(self.kinds, len(SHARDING_TYPES))
        yield "every cost must be a positive number", bool(((self.cost_ms > 0) & (self.cost_ms < np.inf)).all())
        yield "no phase may be negative or infinite", bool(((self.phases_ms >= 0) & (self.phases_ms < np.inf)).all())
        beyond = np.arange(self.phases_ms.shape[1]) >= self.num_devices[:, None]
        yield "phases_ms must be 0 where there is no device", not self.phases_ms[beyond].any()

    def take(self, which: Sequence[int] | IntArray) -> CostDataset:
        """The placements `which`, in that order, with all tables."""
        which = np.asarray(which, np.int64)
        sizes = np.diff(self.start)[which]
        rows = np.concatenate([np.arange(self.start[p], self.start[p + 1]) for p in which] or [np.empty(0, np.int64)])
        return replace(
            self,
            topology=self.topology[which],
            start=np.concatenate([[0], np.cumsum(sizes)]),
            members=self.members[rows],
            devices=self.devices[rows],
            kinds=self.kinds[rows],
            phases_ms=self.phases_ms[which],
            cost_ms=self.cost_ms[which],
        )

    def on(self, profile: HardwareProfile) -> CostDataset:
        """The same placements and hosts with the devices and links of `profile`, for a cost model that reads them."""
        topologies = tuple(
            replace(topology, device=profile.device, links=profile.links) for topology in self.topologies
        )
        return replace(self, topologies=topologies)

    def to_arrays(self) -> Arrays:
        """Everything as arrays, for a file; topologies and workload as JSON in bytes."""
        about = {
            "workload": self.tables.workload.to_json(),
            "names": list(self.tables.names),
            "topologies": [topology_to_json(topology) for topology in self.topologies],
            "source": self.source,
        }
        own = {name: getattr(self, name).copy() for name in (*_OWN_ARRAYS, *(["kinds"] if self.has_plans else []))}
        names = STORED_ARRAYS if self.tables.pooled.all() else TABLE_ARRAYS
        tables = {f"tables.{name}": getattr(self.tables, name).copy() for name in names}
        return {**own, **tables, "about": json_array(about)}

    @staticmethod
    def from_arrays(arrays: Arrays) -> CostDataset:
        """The inverse of `to_arrays`; raises DamagedFileError if an array is missing or impossible."""
        try:
            names = TABLE_ARRAYS if "tables.pooled" in arrays else STORED_ARRAYS
            arrays = {"kinds": np.empty(0, np.int64), **arrays}
            lacking = sorted({"about", "kinds", *_OWN_ARRAYS, *(f"tables.{name}" for name in names)} ^ arrays.keys())
            if lacking:
                raise DamagedFileError(f"{lacking[0]!r} is missing, or does not belong there.")
            about = require_fields(parse_json(arrays["about"].tobytes(), "The description"), _ABOUT_KEYS, "It")
            columns: dict[str, Any] = {name: arrays[f"tables.{name}"] for name in names}
            tables = Tables(
                **columns,
                workload=Workload.from_json(about["workload"], "Its workload"),
                names=tuple(about["names"]),
            )
            own = {name: arrays[name] for name in (*_OWN_ARRAYS, "kinds")}
            return CostDataset(
                tables=tables, topologies=topologies_from_json(about["topologies"]), source=about["source"], **own
            )
        except (TypeError, ValueError) as error:
            raise DamagedFileError(f"The measured costs are damaged: {error}") from error


_ABOUT_KEYS: dict[str, type] = {"workload": dict, "names": list, "topologies": list, "source": str}
_OWN_ARRAYS = ("topology", "start", "members", "devices", "phases_ms", "cost_ms")


class PlacementRecorder:
    """Placements on devices and their costs, recorded one by one; equal topologies are kept once."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._topologies: dict[str, tuple[int, Topology]] = {}
        self._placements: list[tuple[int, IntArray, CostEstimate]] = []

    def __len__(self) -> int:
        return len(self._placements)

    def _record(self, topology: Topology, devices: IntArray, estimate: CostEstimate) -> None:
        key = json.dumps(topology_to_json(topology), sort_keys=True)
        number, _ = self._topologies.setdefault(key, (len(self._topologies), topology))
        self._placements.append((number, np.array(devices), estimate))

    def _recorded(self) -> dict[str, Any]:
        """The arguments of `PlacementCosts`, of one placement at least."""
        topologies = tuple(topology for _, topology in self._topologies.values())
        phases = np.zeros((len(self), max(topology.num_devices for topology in topologies), len(PHASES)))
        for p, (_, _, estimate) in enumerate(self._placements):
            phases[p, : len(estimate.phases_ms)] = estimate.phases_ms
        return {
            "topologies": topologies,
            "topology": np.array([number for number, _, _ in self._placements], np.int64),
            "start": np.cumsum([0, *(len(devices) for _, devices, _ in self._placements)]),
            "devices": np.concatenate([devices for _, devices, _ in self._placements]).astype(np.int64),
            "phases_ms": phases,
            "cost_ms": np.array([estimate.total_ms for _, _, estimate in self._placements]),
        }


class CostRecorder(PlacementRecorder):
    """Builds a `CostDataset` with costs of the model `source`, placement by placement; equal tables are kept once."""

    def __init__(self, source: str) -> None:
        self.source = source
        super().__init__()

    @override
    def _clear(self) -> None:
        super()._clear()
        self._tables: list[tuple[Tables, IntArray]] = []
        self._table_rows: dict[bytes, int] = {}
        self._members: list[IntArray] = []
        self._kinds: list[IntArray] = []

    def add_plan(self, tables: Tables, topology: Topology, plan: ShardingPlan, estimate: CostEstimate) -> None:
        """Record the cost of a valid plan; errors as in `add`."""
        shards = plan.shard_arrays()
        whole = [len(sharding.shards) == 1 for sharding in plan.tables]
        types = [SHARDING_TYPES.index(sharding.sharding_type) for sharding in plan.tables]
        kinds = np.where(whole, SHARDING_TYPES.index(TABLE_WISE), types)[shards[:, 0]]
        parts = tables.select(shards[:, 0]).with_dims(shards[:, 5])
        self.add(parts, topology, shards[:, 1], estimate, kinds)

    def add(
        self,
        tables: Tables,
        topology: Topology,
        placement: Placement,
        estimate: CostEstimate,
        kinds: IntArray | None = None,
    ) -> None:
        """Record the cost of a valid `placement`; InvalidOptionError for another workload than before, for host memory,
        and for replicas. The popularity of rows is not kept: costs of rows that are all in HBM do not depend on it.

        `kinds` are those of shards, see `CostDataset`.
        """
        require_supported("A data set of costs", needs_of(tables, topology), SUPPORTS, (tables, topology))
        if self._tables and tables.workloads != self._tables[0][0].workloads:
            raise InvalidOptionError(
                "A data set holds tables of one workload, or of the same groups; this one has "
                f"{self._tables[0][0].workload}, and these tables have {tables.workload}. "
                "Record them in another data set."
            )
        self._record(topology, placement, estimate)
        self._members.append(self._rows_of(tables))
        self._kinds.append(np.zeros(len(tables), np.int64) if kinds is None else kinds)

    def extend(self, data: CostDataset) -> None:
        """Record all placements of another data set."""
        for p in range(len(data)):
            rows = slice(int(data.start[p]), int(data.start[p + 1]))
            topology = data.topologies[data.topology[p]]
            estimate = CostEstimate(data.phases_ms[p, : topology.num_devices].copy(), float(data.cost_ms[p]))
            tables = data.tables.select(data.members[rows])
            self.add(tables, topology, data.devices[rows], estimate, data.kinds[rows])

    def to_arrays(self) -> Arrays:
        """Everything as arrays, for a file; none if nothing was recorded."""
        return self.dataset().to_arrays() if len(self) else {}

    def restore(self, arrays: Arrays) -> None:
        """Forget everything, and record what `to_arrays` returned; DamagedFileError if it is something else."""
        self._clear()
        if arrays:
            self.extend(CostDataset.from_arrays(arrays))

    def _rows_of(self, tables: Tables) -> IntArray:
        columns = [getattr(tables, name) for name in TABLE_ARRAYS]
        rows, new = np.empty(len(tables), np.int64), []
        for table in range(len(tables)):
            key = b"".join(array[table].tobytes() for array in columns)
            key += tables.group[table].tobytes()
            if key not in self._table_rows:
                self._table_rows[key] = len(self._table_rows)
                new.append(table)
            rows[table] = self._table_rows[key]
        if new:
            self._tables.append((tables, np.array(new)))
        return rows

    def dataset(self) -> CostDataset:
        """All placements recorded so far; raises InvalidOptionError if there are none."""
        if not self._placements:
            raise InvalidOptionError("Nothing was measured yet; record a placement first.")
        return CostDataset(
            **self._recorded(),
            tables=concatenate_tables([tables.select(rows) for tables, rows in self._tables]),
            members=np.concatenate(self._members),
            kinds=np.concatenate(self._kinds),
            source=self.source,
        )


def joined_data(parts: Sequence[CostDataset]) -> CostDataset:
    """The placements of all parts; InvalidOptionError if they have different sources."""
    sources = sorted({part.source for part in parts})
    if len(sources) > 1:
        raise InvalidOptionError(f"Measurements of one source are wanted, but these have {' and '.join(sources)}.")
    recorder = CostRecorder(parts[0].source)
    for part in parts:
        recorder.extend(part)
    return recorder.dataset()


def concatenate_tables(parts: Sequence[Tables]) -> Tables:
    """Tables of one workload, or of the same groups, after each other; raises InvalidOptionError for others."""
    different = next((part.workload for part in parts if part.workloads != parts[0].workloads), None)
    if different is not None:
        raise InvalidOptionError(
            f"Tables of one workload are wanted, but these have {parts[0].workload} and {different}. Learn from tasks "
            "of one batch size, weight dtype and optimizer, or of the same groups of tables."
        )
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in TABLE_ARRAYS}
    names = tuple(name for part in parts for name in part.names)
    workload = Workload.mixed(parts[0].workloads, np.concatenate([part.group for part in parts]))
    return Tables(**arrays, workload=workload, names=names)


def json_array(value: Any) -> NDArray[np.uint8]:
    """A JSON value as an array of bytes, for a file of arrays."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
