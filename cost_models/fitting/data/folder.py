"""A folder of measurements, to which parts are only ever added.

    index.json               where the costs come from, how the tables are trained, how placements are sampled, which
                             could not be measured, for each part its topologies and the SHA-256 of its two files,
                             and a SHA-256 of all of that
    tables-0000.parquet      the tables of part 0; see `parquet` for the columns
    placements-0000.parquet  its measurements

A part counts once the index names it; files that a killed program left behind are overwritten. One program at a time
may add to a folder (`shard_gym.common.io.lock`).

Needs pyarrow (extra `torch`); a MissingExtraError says so. What reads raises DamagedFileError where a file
is missing or is not the one that was written, and what writes UnwritablePathError where the disk refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, short_repr
from shard_gym.common.io.files import read_bytes, read_json, sha256_of, write_atomically, write_json
from shard_gym.common.io.parsing import require_fields, require_schema
from shard_gym.cost_models.fitting.data.parquet import MeasurementInfo, from_parquet, to_parquet
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.hardware.topology import TOPOLOGY_KEYS, TOPOLOGY_OPTIONS, topology_from_json, topology_to_json
from shard_gym.tables import Workload
from shard_gym.tables.workload import WORKLOAD_KEYS, WORKLOAD_MAY_LACK

SCHEMA = "shard-gym-costs/2"
INDEX = "index.json"
HARDWARE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,99}")  # names of machines; report pages have them in their file names

_SOURCE_MEANING = (
    " A source identifies layout, iterations, dtype, optimizer, the machine, and the versions of torch and FBGEMM."
)


class FailedMeasurement(NamedTuple):
    """A measurement that failed: `number` and `repeat` as in `MeasurementInfo`, and the reason."""

    number: int
    repeat: int
    reason: str


@dataclass(frozen=True)
class MeasurementIndex:
    """The index of a folder."""

    source: str  # fingerprint of the cost model that measures
    hardware: str  # name of the machine
    workload: Workload  # how the tables are trained
    sampling: Mapping[str, Any]  # `PlacementSampler.to_json` of the sampler
    parts: tuple[Any, ...] = ()  # for each part its "topologies" and the "sha256" of its files
    failed: tuple[FailedMeasurement, ...] = ()  # measurements that failed

    @property
    def has_plans(self) -> bool:
        """Whether plans are among the placements."""
        return bool(self.sampling.get("plan_share", 0.0))


def read_index(folder: str | Path) -> MeasurementIndex:
    """The index of `folder`; raises DamagedFileError if it is missing, damaged, or from another version."""
    path = Path(folder) / INDEX
    index = require_fields(require_schema(read_json(path), SCHEMA, str(path)), _KEYS, str(path))
    if index.pop("sha256") != _digest(index):
        raise DamagedFileError(
            f"{path} is damaged: its content is not what its SHA-256 says. Restore it from a copy, or collect into "
            "another folder."
        )
    return _from_json(index, path)


_KEYS = {
    **{"schema": str, "source": str, "hardware": str, "workload": dict},
    **{"drawn": dict, "parts": list, "skipped": list, "sha256": str},
}


def _from_json(index: dict[str, Any], path: Path) -> MeasurementIndex:
    if not HARDWARE_NAME.fullmatch(index["hardware"]):
        raise DamagedFileError(
            f"{path} is damaged: hardware is named by small letters, digits, '.' and '-', not "
            f"{short_repr(index['hardware'])}."
        )
    require_fields(index["workload"], WORKLOAD_KEYS, f"The workload in {path}", WORKLOAD_MAY_LACK)
    for each in index["skipped"]:
        require_fields(each, {"number": int, "repeat": int, "reason": str}, f"A failed measurement in {path}")
    for number, part in enumerate(index["parts"]):
        require_fields(part, {"topologies": list, "sha256": dict}, f"Part {number} in {path}")
        require_fields(part["sha256"], {"tables": str, "placements": str}, f"The checksums of part {number} in {path}")
        for topology in part["topologies"]:
            require_fields(topology, TOPOLOGY_KEYS, f"A topology of part {number} in {path}", TOPOLOGY_OPTIONS)
    try:
        return MeasurementIndex(
            source=index["source"],
            hardware=index["hardware"],
            workload=Workload(**index["workload"]),
            sampling=dict(index["drawn"]),
            parts=tuple(index["parts"]),
            failed=tuple(FailedMeasurement(**each) for each in index["skipped"]),
        )
    except ValueError as error:  # of this project
        raise DamagedFileError(f"{path} is damaged: {error}") from error


def _digest(content: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(content, sort_keys=True, allow_nan=False).encode())


def _write_index(folder: Path, index: MeasurementIndex) -> None:
    content = {
        "schema": SCHEMA,
        "source": index.source,
        "hardware": index.hardware,
        "workload": index.workload.to_json(),
        "drawn": dict(index.sampling),
        "parts": list(index.parts),
        "skipped": [failed._asdict() for failed in index.failed],
    }
    plain = json.loads(json.dumps(content, allow_nan=False))  # as it is read back: tuples become lists
    write_json(folder / INDEX, {**plain, "sha256": _digest(plain)})


def begin_folder(folder: str | Path, index: MeasurementIndex) -> MeasurementIndex:
    """Write `index`, without parts, to a new folder, or check that it goes with the one there; the index of the folder.

    Raises:
        InvalidOptionError: the folder holds measurements of another source, machine, workload or sampler; or parts
            whose index is gone.
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        existing = read_index(folder)
        there, given = _origin(existing), _origin(index)
        for name in (*given, *there):
            if there.get(name) != given.get(name):
                raise InvalidOptionError(
                    f"{folder} holds measurements whose {name} is {there.get(name)!r}, not {given.get(name)!r}."
                    f"{_SOURCE_MEANING if name == 'source' else ''} Name another folder for these."
                )
        return existing
    lost = sorted(path.name for path in folder.glob("*.parquet"))
    if lost:
        raise InvalidOptionError(
            f"{folder} holds {lost[0]} and no {INDEX}, so the origin of its measurements is unknown. Restore {INDEX}, "
            "or name another folder."
        )
    _write_index(folder, index)
    return index


def _origin(index: MeasurementIndex) -> dict[str, Any]:
    sampling = json.loads(json.dumps(dict(index.sampling)))  # as read from a file: tuples become lists
    return {"source": index.source, "hardware": index.hardware, **index.workload.to_json(), **sampling}


def append_part(folder: str | Path, costs: SplitCosts, info: MeasurementInfo) -> None:
    """Add measurements to a `folder` that `begin_folder` made, as one more part."""
    folder = Path(folder)
    index = read_index(folder)
    files = to_parquet(costs, info, index.has_plans)
    for kind, content in files.items():
        write_atomically(_path(folder, kind, len(index.parts)), content)
    part = {
        "topologies": [topology_to_json(topology) for topology in costs.data.topologies],
        "sha256": {kind: sha256_of(content) for kind, content in files.items()},
    }
    _write_index(folder, replace(index, parts=(*index.parts, part)))


def append_failed(folder: str | Path, failed: Sequence[FailedMeasurement]) -> None:
    """Note measurements that failed in the index of `folder`."""
    index = read_index(folder)
    _write_index(Path(folder), replace(index, failed=(*index.failed, *failed)))


def read_parts(folder: str | Path, index: MeasurementIndex) -> tuple[SplitCosts, MeasurementInfo]:
    """All measurements in `folder`, in the order in which they were added; equal tables are kept once.

    Raises InvalidOptionError if two parts put a table into different splits, or there is no part yet.
    """
    if not index.parts:
        raise InvalidOptionError(f"{folder} holds no measurement yet; measure something first.")
    parts = [_read_part(Path(folder), number, index) for number in range(len(index.parts))]
    return SplitCosts.joined([costs for costs, _ in parts]), MeasurementInfo.joined([info for _, info in parts])


def _path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:04d}.parquet"


def _read_part(folder: Path, number: int, index: MeasurementIndex) -> tuple[SplitCosts, MeasurementInfo]:
    try:
        part = index.parts[number]
        files = {kind: _read_file(_path(folder, kind, number), sha256) for kind, sha256 in part["sha256"].items()}
        topologies = [topology_from_json(record) for record in part["topologies"]]
        return from_parquet(files, index.workload, topologies, index.source, index.has_plans)
    except ValueError as error:  # of this project
        raise DamagedFileError(
            f"Part {number} of {folder} is damaged: {error} Restore its two files and the index from a copy, or "
            "collect into another folder."
        ) from error


def _read_file(path: Path, sha256: str) -> bytes:
    try:
        content = read_bytes(path)
    except DamagedFileError as error:
        raise DamagedFileError(str(error).replace(str(path), path.name)) from error
    if sha256_of(content) != sha256:
        raise DamagedFileError(f"{path.name} is not the file that was written: its SHA-256 differs.")
    return content
