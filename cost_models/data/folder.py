"""Measured costs in a folder, to which measurements are only ever added.

    index.json               where the costs come from, how the tables are trained, and for each part its topologies and
                             the SHA-256 of its two files; where placements are drawn by number also how they are drawn,
                             and which of them could not be measured
    tables-0000.parquet      the tables of part 0; see `parquet` for the columns
    placements-0000.parquet  its placements

A part counts once the index names it; what a killed program left behind is written over. One program at a time may add
to a folder (`only_one`); `SplitCosts.joined` puts several together. Needs pyarrow (extra `torch`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.cost_models.data.dataset import topology_from_json, topology_to_json
from shard_gym.cost_models.data.parquet import Notes, from_parquet, notes_from_parquet, require_arrow, to_parquet
from shard_gym.cost_models.data.splits import SplitCosts
from shard_gym.errors import DamagedFileError, InvalidOptionError, UnwritablePathError, missing_extra
from shard_gym.io.files import read_json, sha256_of, write_atomically, write_json
from shard_gym.tables import Workload

SCHEMA = "shard-gym-costs/1"
INDEX = "index.json"
_RESTORE = "Restore its two files and the index from a copy, or collect into another folder."
LOCK = ".lock"
HARDWARE = re.compile(r"[a-z0-9][a-z0-9.-]{0,99}")
"""Names of machines: files are named after them."""

_KEYS = {"schema", "source", "workload", "parts"}
_OF_SOURCE = (
    "A source stands for layout, iterations, dtype and optimizer, for the machine, and for the versions of torch and "
    "FBGEMM."
)
_DRAWN_KEYS = {"hardware", "drawn", "skipped"}
"""Of a folder that `begin_costs` began."""


class Skipped(NamedTuple):
    """A draw that could not be measured, by its number, and why; `repeat` as in `Notes`."""

    number: int
    repeat: int
    reason: str


@dataclass(frozen=True)
class Collected:
    """What a folder of placements drawn by number holds, beside the costs.

    Attributes:
        source: fingerprint of what measures.
        hardware: name of the machine.
        workload: how the tables are trained.
        drawn: how placements are drawn, as `begin_costs` was told.
        notes: of the measurements, in the order of `load_costs`; None before the first.
        skipped: what could not be measured.
    """

    source: str
    hardware: str
    workload: Workload
    drawn: Mapping[str, Any]
    notes: Notes | None
    skipped: tuple[Skipped, ...]


def begin_costs(
    folder: str | Path, *, source: str, hardware: str, workload: Workload, drawn: Mapping[str, Any]
) -> None:
    """Make `folder` ready for placements that are drawn by number; one that is ready stays as it is.

    Args:
        folder: made if it is missing.
        source: fingerprint of what measures.
        hardware: name of the machine.
        workload: how the tables are trained.
        drawn: all that a draw depends on besides its number; JSON values.

    Raises:
        InvalidOptionError: the folder holds costs of another source or workload, or drawn in another way; or parts
            whose index is gone.
        DamagedFileError: the folder's index is damaged.
        UnwritablePathError: the disk refuses.
        MissingExtraError: pyarrow is not installed.
    """
    require_arrow()
    folder = Path(folder)
    origin = {
        "source": source,
        "hardware": hardware,
        "workload": asdict(workload),
        "drawn": json.loads(json.dumps(drawn)),  # as they will be read
    }
    if not (folder / INDEX).exists():
        lost = sorted(path.name for path in folder.glob("*.parquet"))
        if lost:
            raise InvalidOptionError(
                f"{folder} holds {lost[0]} and no {INDEX}, so nobody knows what was measured there. Bring {INDEX} "
                "back, or name another folder."
            )
        write_json(folder / INDEX, {"schema": SCHEMA, **origin, "parts": [], "skipped": []})
        return
    index = _read_index(folder)
    if "drawn" not in index:
        raise InvalidOptionError(f"The costs in {folder} were not drawn by number; name another folder for these.")
    _require_origin(folder, index, origin)


@contextmanager
def only_one(folder: str | Path) -> Iterator[None]:
    """Keep other programs from adding to `folder`; a program that is killed keeps nobody from it.

    Raises:
        InvalidOptionError: another program adds to it now.
        UnwritablePathError: the disk refuses.
        MissingExtraError: pyarrow or filelock is not installed.
    """
    require_arrow()
    try:
        from filelock import FileLock, Timeout
    except ModuleNotFoundError as error:
        raise missing_extra("filelock", "torch", "Collecting measured costs") from error
    folder = Path(folder)
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InvalidOptionError(
            f"Another program is adding to {folder}. Wait until it is done, or name another folder."
        ) from error
    except OSError as error:
        raise UnwritablePathError(f"{folder} cannot be written to: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()


def append_costs(folder: str | Path, costs: SplitCosts, notes: Notes | None = None) -> None:
    """Add `costs` to `folder` as one more part; the folder is made if it is missing.

    Args:
        folder: as above.
        costs: what was measured.
        notes: one for each placement, if and only if `begin_costs` began the folder.

    Raises:
        InvalidOptionError: the costs come from another source than those already there, or their tables are trained in
            another way; or there are notes where none belong, or none where they do.
        DamagedFileError: the folder's index is damaged.
        UnwritablePathError: the disk refuses.
        MissingExtraError: pyarrow is not installed.
    """
    folder, data = Path(folder), costs.data
    origin = {"source": data.source, "workload": asdict(data.tables.workload)}
    index = _read_index(folder) if (folder / INDEX).exists() else {"schema": SCHEMA, **origin, "parts": []}
    _require_origin(folder, index, origin)
    if (notes is not None) != ("drawn" in index):
        raise InvalidOptionError(
            f"Costs and their notes go together, but {folder} holds, or is given, one of them only."
        )
    files = to_parquet(costs, notes)
    for kind, content in files.items():
        write_atomically(_path(folder, kind, len(index["parts"])), content)
    part = {
        "topologies": [topology_to_json(topology) for topology in data.topologies],
        "sha256": {kind: sha256_of(content) for kind, content in files.items()},
    }
    write_json(folder / INDEX, {**index, "parts": [*index["parts"], part]})


def append_skipped(folder: str | Path, skipped: Sequence[Skipped]) -> None:
    """Note in a `folder` that `begin_costs` began what could not be measured.

    Raises:
        DamagedFileError: the folder's index is damaged, or holds placements that were not drawn by number.
        UnwritablePathError: the disk refuses.
    """
    folder = Path(folder)
    index = _read_drawn(folder)
    write_json(folder / INDEX, {**index, "skipped": [*index["skipped"], *(each._asdict() for each in skipped)]})


def load_collected(folder: str | Path) -> Collected:
    """What `folder`, which `begin_costs` began, holds beside the costs.

    Raises:
        DamagedFileError: the folder holds no such costs, or a file is missing or is not the one that was written.
        MissingExtraError: pyarrow is not installed.
    """
    folder = Path(folder)
    index = _read_drawn(folder)
    notes = [_read_notes(folder, number, index) for number in range(len(index["parts"]))]
    try:
        return Collected(
            source=index["source"],
            hardware=str(index["hardware"]),
            workload=Workload(**index["workload"]),
            drawn=index["drawn"],
            notes=Notes.joined(notes) if notes else None,
            skipped=tuple(Skipped(**each) for each in index["skipped"]),
        )
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"{folder / INDEX} is damaged: {error}") from error


def _require_origin(folder: Path, index: Mapping[str, Any], origin: Mapping[str, Any]) -> None:
    for key, value in origin.items():
        there = index[key]
        if there == value:
            continue
        if isinstance(there, dict) and isinstance(value, dict):
            key, there, value = next(
                (name, there.get(name), value.get(name))
                for name in (*value, *there)
                if there.get(name) != value.get(name)
            )
        more = f" {_OF_SOURCE}" if key == "source" else ""
        raise InvalidOptionError(
            f"{folder} holds costs whose {key} is {there!r}, not {value!r}.{more} Name another folder for these."
        )


def load_costs(folder: str | Path) -> SplitCosts:
    """All costs in `folder`; equal tables of different parts are kept once.

    Raises:
        DamagedFileError: the folder holds no such costs, or a file is missing or is not the one that was written.
        InvalidOptionError: two parts put a table into different splits, or nothing was measured yet.
        MissingExtraError: pyarrow is not installed.
    """
    folder = Path(folder)
    index = _read_index(folder)
    parts = [_read_part(folder, number, index) for number in range(len(index["parts"]))]
    if not parts:
        raise InvalidOptionError(f"{folder} holds no measurement yet; measure something first.")
    return parts[0] if len(parts) == 1 else SplitCosts.joined(parts)


def _path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:04d}.parquet"


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    index = read_json(path)
    if not isinstance(index, dict) or index.get("schema") != SCHEMA:
        raise DamagedFileError(f"{path} is no index of the form {SCHEMA!r}; it may come from another version.")
    drawn = "drawn" in index
    keys = _KEYS | _DRAWN_KEYS if drawn else _KEYS
    if index.keys() != keys or not isinstance(index["parts"], list) or not (index["parts"] or drawn):
        raise DamagedFileError(f"{path} must have the keys {', '.join(sorted(keys))}, and a list of parts.")
    return index


def _read_drawn(folder: Path) -> dict[str, Any]:
    """The index of a folder that `begin_costs` began."""
    index = _read_index(folder)
    if "drawn" not in index:
        raise DamagedFileError(f"The costs in {folder} were not drawn by number; `shard-gym collect` makes such.")
    source, hardware = index["source"], index["hardware"]
    if not isinstance(source, str) or not isinstance(hardware, str) or not HARDWARE.fullmatch(hardware):
        raise DamagedFileError(
            f"{folder / INDEX} must name a source, and hardware by small letters, digits, '.' and '-'."
        )
    if not isinstance(index["drawn"], dict) or not isinstance(index["skipped"], list):
        raise DamagedFileError(f"{folder / INDEX} must say how placements are drawn, and list what was skipped.")
    return index


def _read_notes(folder: Path, number: int, index: Mapping[str, Any]) -> Notes:
    try:
        kind = "placements"
        content = _read_file(_path(folder, kind, number), index["parts"][number]["sha256"][kind])
        notes = notes_from_parquet(content)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"Part {number} of {folder} is damaged: {error} {_RESTORE}") from error
    if notes is None:
        raise DamagedFileError(f"Part {number} of {folder} does not say which draws were measured. {_RESTORE}")
    return notes


def _read_part(folder: Path, number: int, index: Mapping[str, Any]) -> SplitCosts:
    try:
        part = index["parts"][number]
        files = {kind: _read_file(_path(folder, kind, number), known) for kind, known in part["sha256"].items()}
        topologies = [topology_from_json(record) for record in part["topologies"]]
        return from_parquet(files, Workload(**index["workload"]), topologies, index["source"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # every refusal of the parts is a ValueError
        raise DamagedFileError(f"Part {number} of {folder} is damaged: {error} {_RESTORE}") from error


def _read_file(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    if sha256_of(content) != sha256:
        raise DamagedFileError(f"{path.name} is not the file that was written: its SHA-256 is another one.")
    return content
