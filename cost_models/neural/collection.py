"""Measured costs in a folder, to which measurements are only ever added.

    index.json               where the costs come from, how the tables are trained, and for each part its topologies and
                             the SHA-256 of its two files
    tables-0000.parquet      the tables of part 0; see `parquet` for the columns
    placements-0000.parquet  its placements

A part counts once the index names it; what a killed program left behind is written over. One program at a time may add
to a folder; `SplitCosts.joined` puts several together. Needs pyarrow (extra `torch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shard_gym.cost_models.neural.dataset import topology_from_json, topology_to_json
from shard_gym.cost_models.neural.parquet import from_parquet, to_parquet
from shard_gym.cost_models.neural.splits import SplitCosts
from shard_gym.errors import DamagedFileError, InvalidOptionError
from shard_gym.files import read_json, sha256_of, write_atomically, write_json
from shard_gym.tables import Workload

SCHEMA = "shard-gym-costs/1"
INDEX = "index.json"
_KEYS = {"schema", "source", "workload", "parts"}


def append_costs(folder: str | Path, costs: SplitCosts) -> None:
    """Add `costs` to `folder` as one more part; the folder is made if it is missing.

    Raises:
        InvalidOptionError: the costs come from another source than those already there, or their tables are trained in
            another way.
        DamagedFileError: the folder's index is damaged.
        UnwritablePathError: the disk refuses.
        MissingExtraError: pyarrow is not installed.
    """
    folder, data = Path(folder), costs.data
    origin = {"source": data.source, "workload": asdict(data.tables.workload)}
    index = _read_index(folder) if (folder / INDEX).exists() else {"schema": SCHEMA, **origin, "parts": []}
    for key, value in origin.items():
        if index[key] != value:
            raise InvalidOptionError(
                f"{folder} holds costs whose {key} is {index[key]!r}, not {value!r}; name another folder for these."
            )
    files = to_parquet(costs)
    for kind, content in files.items():
        write_atomically(_path(folder, kind, len(index["parts"])), content)
    part = {
        "topologies": [topology_to_json(topology) for topology in data.topologies],
        "sha256": {kind: sha256_of(content) for kind, content in files.items()},
    }
    write_json(folder / INDEX, {**index, "parts": [*index["parts"], part]})


def load_costs(folder: str | Path) -> SplitCosts:
    """All costs in `folder`; equal tables of different parts are kept once.

    Raises:
        DamagedFileError: the folder holds no such costs, or a file is missing or is not the one that was written.
        InvalidOptionError: two parts put a table into different splits.
        MissingExtraError: pyarrow is not installed.
    """
    folder = Path(folder)
    index = _read_index(folder)
    parts = [_read_part(folder, number, index) for number in range(len(index["parts"]))]
    return parts[0] if len(parts) == 1 else SplitCosts.joined(parts)


def _path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:04d}.parquet"


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    index = read_json(path)
    if not isinstance(index, dict) or index.get("schema") != SCHEMA:
        raise DamagedFileError(f"{path} is no index of the form {SCHEMA!r}; it may come from another version.")
    if index.keys() != _KEYS or not isinstance(index["parts"], list) or not index["parts"]:
        raise DamagedFileError(f"{path} must have the keys {', '.join(sorted(_KEYS))}, and a list of parts.")
    return index


def _read_part(folder: Path, number: int, index: Mapping[str, Any]) -> SplitCosts:
    try:
        part = index["parts"][number]
        files = {kind: _read_file(_path(folder, kind, number), known) for kind, known in part["sha256"].items()}
        topologies = [topology_from_json(record) for record in part["topologies"]]
        return from_parquet(files, Workload(**index["workload"]), topologies, index["source"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # every refusal of the parts is a ValueError
        raise DamagedFileError(f"Part {number} of {folder} is damaged: {error}") from error


def _read_file(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    if sha256_of(content) != sha256:
        raise DamagedFileError(f"{path.name} is not the file that was written: its SHA-256 is another one.")
    return content
