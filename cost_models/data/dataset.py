"""Data sets of placements and their costs, in memory: what neural cost models are trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import CostEstimate, FloatArray
from shard_gym.errors import DamagedFileError, InvalidOptionError
from shard_gym.hardware import HardwareProfile
from shard_gym.io.arrays import Arrays
from shard_gym.io.parsing import parse_json, require_fields
from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.topology import DeviceSpec, LinkSpec, Topology
from shard_gym.workload import Workload

IntArray = NDArray[np.int64]

TABLE_ARRAYS = tuple(field.name for field in fields(Tables) if field.name not in ("workload", "names"))


@dataclass(frozen=True, eq=False)
class CostDataset:
    """P placements and the ms of each phase on each of their devices; equal tables are kept once.

    Attributes:
        tables: the M different tables.
        topologies: the different topologies.
        topology: (P,) int64, the number of the topology of each placement.
        start: (P + 1,) int64; placement p places the tables `members[start[p]:start[p + 1]]`.
        members: (R,) int64, rows of `tables`.
        devices: (R,) int64, the device of each.
        phases_ms: (P, D, 4) float64, D that of the largest topology; 0 beyond the devices of a placement.
        cost_ms: (P,) float64, ms of the iteration.
        source: fingerprint of the cost model that gave the costs.

    Raises:
        InvalidOptionError: the arrays do not describe placements and their costs.
    """

    tables: Tables
    topologies: tuple[Topology, ...]
    topology: IntArray
    start: IntArray
    members: IntArray
    devices: IntArray
    phases_ms: FloatArray
    cost_ms: FloatArray
    source: str

    def __post_init__(self) -> None:
        for sentence, holds in self._requirements():
            if not holds:
                raise InvalidOptionError(f"These arrays are no measured costs: {sentence}.")

    def _requirements(self) -> Iterator[tuple[str, bool]]:
        """Each requirement with whether it holds; later ones rely on earlier ones."""
        count, rows = self.cost_ms.shape[:1], self.members.shape
        yield "there must be a topology", bool(self.topologies)
        widest = max(topology.num_devices for topology in self.topologies)
        for name, dtype, shape in (
            *(("topology", np.int64, count), ("start", np.int64, (self.cost_ms.size + 1,))),
            *(("members", np.int64, rows[:1]), ("devices", np.int64, rows[:1])),
            *(("phases_ms", np.float64, (*count, widest, 4)), ("cost_ms", np.float64, count)),
        ):
            array = getattr(self, name)
            yield f"{name} must be {np.dtype(dtype)} of shape {shape}", array.dtype == dtype and array.shape == shape
        yield (
            "start must rise from 0 to the number of members",
            bool(self.start[0] == 0 and self.start[-1] == len(self.members) and (np.diff(self.start) > 0).all()),
        )
        yield "topology must number the topologies", _within(self.topology, len(self.topologies))
        yield "members must number the tables", _within(self.members, len(self.tables))
        widths = np.repeat(self.num_devices, np.diff(self.start))
        yield "devices must number the devices of each placement", _within(self.devices, widths)
        yield "every cost must be a positive number", bool(((self.cost_ms > 0) & (self.cost_ms < np.inf)).all())
        yield "no phase may be negative or infinite", bool(((self.phases_ms >= 0) & (self.phases_ms < np.inf)).all())
        beyond = np.arange(widest) >= self.num_devices[:, None]
        yield "phases_ms must be 0 where there is no device", not self.phases_ms[beyond].any()

    def __len__(self) -> int:
        return len(self.cost_ms)

    @property
    def num_devices(self) -> IntArray:
        """(P,) int64, the number of devices of each placement."""
        return np.array([topology.num_devices for topology in self.topologies])[self.topology]

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
            phases_ms=self.phases_ms[which],
            cost_ms=self.cost_ms[which],
        )

    def on(self, profile: HardwareProfile) -> CostDataset:
        """The same placements on the devices and links of `profile`, for a cost model that reads them."""
        topologies = tuple(
            profile.topology(topology.num_devices, memory_cap_bytes=topology.memory_cap_bytes)
            for topology in self.topologies
        )
        return replace(self, topologies=topologies)

    def to_arrays(self) -> Arrays:
        """Everything as arrays, for a file; topologies and workload as JSON in bytes."""
        about = {
            "workload": asdict(self.tables.workload),
            "names": list(self.tables.names),
            "topologies": [topology_to_json(topology) for topology in self.topologies],
            "source": self.source,
        }
        own = {name: getattr(self, name).copy() for name in _OWN_ARRAYS}
        tables = {f"tables.{name}": getattr(self.tables, name).copy() for name in TABLE_ARRAYS}
        return {**own, **tables, "about": np.frombuffer(json.dumps(about).encode(), np.uint8).copy()}

    @staticmethod
    def from_arrays(arrays: Arrays) -> CostDataset:
        """The inverse of `to_arrays`.

        Raises:
            DamagedFileError: an array is missing or impossible.
        """
        try:
            lacking = sorted({"about", *_OWN_ARRAYS, *(f"tables.{name}" for name in TABLE_ARRAYS)} ^ arrays.keys())
            if lacking:
                raise DamagedFileError(f"{lacking[0]!r} is missing, or does not belong there.")
            about = require_fields(parse_json(arrays["about"].tobytes(), "The description"), _ABOUT_KEYS, "It")
            require_fields(about["workload"], _WORKLOAD_KEYS, "Its workload")
            for record in about["topologies"]:
                require_fields(record, TOPOLOGY_KEYS, "A topology")
            tables = Tables(
                **{name: arrays[f"tables.{name}"] for name in TABLE_ARRAYS},
                workload=Workload(**about["workload"]),
                names=tuple(about["names"]),
            )
            topologies = tuple(topology_from_json(record) for record in about["topologies"])
            own = {name: arrays[name] for name in _OWN_ARRAYS}
            return CostDataset(tables=tables, topologies=topologies, source=about["source"], **own)
        except (TypeError, ValueError) as error:
            raise DamagedFileError(f"The measured costs are damaged: {error}") from error


_ABOUT_KEYS: dict[str, type] = {"workload": dict, "names": list, "topologies": list, "source": str}
_WORKLOAD_KEYS: dict[str, type] = {"batch_size": int, "weight_dtype": str, "optimizer": str}


def _within(numbers: IntArray, below: int | IntArray) -> bool:
    return bool(((numbers >= 0) & (numbers < below)).all())


_OWN_ARRAYS = ("topology", "start", "members", "devices", "phases_ms", "cost_ms")


class CostRecorder:
    """Builds a `CostDataset` placement by placement; equal tables and equal topologies are kept once.

    Args:
        source: fingerprint of the cost model that gives the costs.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._clear()

    def _clear(self) -> None:
        self._tables: list[tuple[Tables, IntArray]] = []
        self._table_rows: dict[bytes, int] = {}
        self._topologies: list[Topology] = []
        self._topology_rows: dict[str, int] = {}
        self._placements: list[tuple[int, IntArray, Placement, CostEstimate]] = []

    def __len__(self) -> int:
        return len(self._placements)

    def add(self, tables: Tables, topology: Topology, placement: Placement, estimate: CostEstimate) -> None:
        """Record the cost of a valid `placement`.

        Raises:
            InvalidOptionError: the tables have another workload than those recorded before.
        """
        if self._tables and tables.workload != self._tables[0][0].workload:
            raise InvalidOptionError(
                f"A data set holds tables of one workload; this one has {self._tables[0][0].workload}, "
                f"and these tables have {tables.workload}. Record them in another data set."
            )
        members = self._rows_of(tables)
        self._placements.append((self._row_of(topology), members, np.array(placement), estimate))

    def extend(self, data: CostDataset) -> None:
        """Record all placements of another data set."""
        for p in range(len(data)):
            rows = slice(int(data.start[p]), int(data.start[p + 1]))
            topology = data.topologies[data.topology[p]]
            estimate = CostEstimate(data.phases_ms[p, : topology.num_devices].copy(), float(data.cost_ms[p]))
            self.add(data.tables.select(data.members[rows]), topology, data.devices[rows], estimate)

    def to_arrays(self) -> Arrays:
        """Everything as arrays, for a file; none if nothing was recorded."""
        return self.dataset().to_arrays() if len(self) else {}

    def restore(self, arrays: Arrays) -> None:
        """Forget everything, and record what `to_arrays` returned.

        Raises:
            DamagedFileError: an array is missing or impossible.
        """
        self._clear()
        if arrays:
            self.extend(CostDataset.from_arrays(arrays))

    def _rows_of(self, tables: Tables) -> IntArray:
        columns = [getattr(tables, name) for name in TABLE_ARRAYS]
        rows, new = np.empty(len(tables), np.int64), []
        for table in range(len(tables)):
            key = b"".join(array[table].tobytes() for array in columns)
            if key not in self._table_rows:
                self._table_rows[key] = len(self._table_rows)
                new.append(table)
            rows[table] = self._table_rows[key]
        if new:
            self._tables.append((tables, np.array(new)))
        return rows

    def _row_of(self, topology: Topology) -> int:
        key = json.dumps(topology_to_json(topology), sort_keys=True)
        if key not in self._topology_rows:
            self._topology_rows[key] = len(self._topologies)
            self._topologies.append(topology)
        return self._topology_rows[key]

    def dataset(self) -> CostDataset:
        """All placements recorded so far.

        Raises:
            InvalidOptionError: there are none.
        """
        if not self._placements:
            raise InvalidOptionError("Nothing was measured yet; record a placement first.")
        widest = max(topology.num_devices for topology in self._topologies)
        phases = np.zeros((len(self), widest, 4))
        for p, (_, _, _, estimate) in enumerate(self._placements):
            phases[p, : len(estimate.phases_ms)] = estimate.phases_ms
        sizes = [len(members) for _, members, _, _ in self._placements]
        return CostDataset(
            tables=concatenate_tables([tables.select(rows) for tables, rows in self._tables]),
            topologies=tuple(self._topologies),
            topology=np.array([row for row, _, _, _ in self._placements], np.int64),
            start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            members=np.concatenate([members for _, members, _, _ in self._placements]),
            devices=np.concatenate([placement for _, _, placement, _ in self._placements]).astype(np.int64),
            phases_ms=phases,
            cost_ms=np.array([estimate.total_ms for _, _, _, estimate in self._placements]),
            source=self.source,
        )


def concatenate_tables(parts: Sequence[Tables]) -> Tables:
    """Tables of one workload after each other.

    Raises:
        InvalidOptionError: they have several workloads.
    """
    different = next((part.workload for part in parts if part.workload != parts[0].workload), None)
    if different is not None:
        raise InvalidOptionError(
            f"Tables of one workload are wanted, but these have {parts[0].workload} and {different}. Learn from tasks "
            "of one batch size, weight dtype and optimizer."
        )
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in TABLE_ARRAYS}
    names = tuple(name for part in parts for name in part.names)
    return Tables(**arrays, workload=parts[0].workload, names=names)


_DEVICE_KEYS, _LINK_KEYS = (
    tuple(field.name for field in fields(kind) if field.name != "sources") for kind in (DeviceSpec, LinkSpec)
)

_KNEES = tuple(name for name in _LINK_KEYS if "knee" in name)

TOPOLOGY_KEYS: dict[str, type] = {
    **{"device": dict, "links": dict, "num_devices": int, "devices_per_host": int, "memory_cap_bytes": list}
}
"""The keys of `topology_to_json`."""


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """`topology` as JSON values, without the sources of its numbers."""
    device, links = asdict(topology.device), asdict(topology.links)
    return {
        "device": {key: value for key, value in device.items() if key != "sources"},
        "links": {key: value for key, value in links.items() if key != "sources"},
        "num_devices": topology.num_devices,
        "devices_per_host": topology.devices_per_host,
        "memory_cap_bytes": topology.memory_cap_bytes.tolist(),
    }


def topology_from_json(record: dict[str, Any]) -> Topology:
    """The inverse of `topology_to_json`.

    Records of older versions name a device's `ramp_bytes`, which is left out, and no knees of links, which are 0 then.

    Raises:
        DamagedFileError: `record` is no such object.
        InvalidTopologyError: its numbers are impossible.
    """
    for part, known, older in (("device", _DEVICE_KEYS, {"ramp_bytes"}), ("links", _LINK_KEYS, set(_KNEES))):
        if not isinstance(record[part], dict) or set(record[part]) ^ set(known) not in (set(), older):
            raise DamagedFileError(f"The {part} of a topology must have the keys {', '.join(known)}.")
    caps = record["memory_cap_bytes"]
    if not all(type(cap) is int and 0 <= cap < 2**63 for cap in caps):
        raise DamagedFileError("memory_cap_bytes of a topology must be whole numbers.")
    device = {key: value for key, value in record["device"].items() if key != "ramp_bytes"}
    return Topology(
        device=DeviceSpec(**device),
        links=LinkSpec(**record["links"]),
        num_devices=record["num_devices"],
        devices_per_host=record["devices_per_host"],
        memory_cap_bytes=np.array(record["memory_cap_bytes"], np.int64),
    )
