"""Loading of named suites; every byte is checked against the shipped index before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import DamagedFileError, InvalidOptionError, ShardGymError, short_repr, unknown_name, wrong_kind
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.io.files import parse_json, read_json, sha256_of
from shard_gym.pools import load_pool
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

DATA = Path(__file__).parent / "data"
INDEX = DATA / "index.json"
SCHEMA = 1
SPLITS = ("train", "test")

_SUITE_KEYS = {
    "schema",
    "name",
    "version",
    "description",
    "pool",
    "pool_sha256",
    "hardware",
    "weight_dtype",
    "optimizer",
    "splits",
}
_TASK_KEYS = {"name", "tables", "embedding_dim", "num_devices", "memory_cap_bytes", "known_placement"}


@dataclass(frozen=True)
class SuiteInfo:
    """A suite at a glance, read without building its tasks.

    Attributes:
        name: its name.
        version: raised when its data change.
        description: one sentence.
        pool: the pool its tables come from.
        hardware: name of the hardware profile.
        sha256: of its file.
        tasks: number of tasks in each split.
        num_tables: smallest and largest T over all splits.
        num_devices: smallest and largest D over all splits.
    """

    name: str
    version: int
    description: str
    pool: str
    hardware: str
    sha256: str
    tasks: Mapping[str, int]
    num_tables: tuple[int, int]
    num_devices: tuple[int, int]


def suite_names() -> list[str]:
    """The names of all suites, sorted as a person would (20 before 100)."""
    return sorted(_index(), key=lambda name: [int(p) if p.isdigit() else p for p in _pieces(name)])


def suite_info(name: str) -> SuiteInfo:
    """What is in the suite named `name`; see `load_suite` for errors."""
    record, sha256 = _record(name)
    sizes, devices = _sizes(record)
    return SuiteInfo(
        name=record["name"],
        version=record["version"],
        description=record["description"],
        pool=record["pool"],
        hardware=record["hardware"],
        sha256=sha256,
        tasks={split: len(members) for split, members in record["splits"].items()},
        num_tables=(min(sizes), max(sizes)),
        num_devices=(min(devices), max(devices)),
    )


def load_suite(name: str, split: str = "test") -> TaskSuite:
    """One split of the suite named `name`; its `max_tables` and `max_devices` are those of all splits.

    Raises:
        UnknownNameError: no suite has that name.
        InvalidOptionError: the suite has no such split; a suite of a whole model has only "test".
        DamagedFileError: the suite's file, or its pool's, is not the one that was published.
    """
    if not isinstance(split, str):
        raise wrong_kind("split", split, f"the name of a split, one of {list(SPLITS)}")
    if not isinstance(name, str):
        raise unknown_name("suite", name, _index())
    return _load(name, split)


@lru_cache(maxsize=64)
def _load(name: str, split: str) -> TaskSuite:
    record, sha256 = _record(name)
    if split not in record["splits"]:
        there = sorted(record["splits"])
        way_out = " or ".join(f"split={each!r}" for each in there)
        raise InvalidOptionError(f"Suite {name!r} has the splits {there}, not {split!r}. Pass {way_out}.")
    pool = load_pool(record["pool"])
    if pool.sha256 != record["pool_sha256"]:
        raise DamagedFileError(
            f"Suite {name!r} was made for pool {record['pool']!r} with SHA-256 {record['pool_sha256']}, "
            f"but the pool here has {pool.sha256}. Reinstall shard-gym."
        )
    tables = pool.tables.with_training(weight_dtype=record["weight_dtype"], optimizer=record["optimizer"])
    hardware = hardware_profile(record["hardware"])
    tasks = tuple(_task(entry, tables, hardware, f"suite {name!r}") for entry in record["splits"][split])
    sizes, devices = _sizes(record)
    padding = max(sizes), max(devices)
    return TaskSuite(record["name"], tasks, split, record["version"], sha256, record["description"], padding)


def _sizes(record: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """T and D of every task in all splits of a suite's record."""
    entries = [entry for split in record["splits"].values() for entry in split]
    for entry in entries:
        _check_keys(entry, f"suite {record['name']!r}")
        if not isinstance(entry["tables"], list) or not isinstance(entry["num_devices"], int):
            raise DamagedFileError(
                f"Task {entry['name']!r} in suite {record['name']!r} is not usable: "
                "tables must be a list, and num_devices an integer."
            )
    return [len(entry["tables"]) for entry in entries], [entry["num_devices"] for entry in entries]


def _check_keys(entry: Any, source: str) -> None:
    if not isinstance(entry, dict) or set(entry) != _TASK_KEYS:
        raise DamagedFileError(
            f"A task in {source} must have exactly the keys {sorted(_TASK_KEYS)}; got {short_repr(entry)}."
        )


def _task(entry: Any, pool: Tables, hardware: HardwareProfile, source: str) -> Task:
    """One task from its JSON form."""
    _check_keys(entry, source)
    try:
        tables = pool.select(entry["tables"]).with_dims(entry["embedding_dim"])
        topology = hardware.topology(entry["num_devices"], memory_cap_bytes=entry["memory_cap_bytes"])
        return Task(entry["name"], tables, topology, np.asarray(entry["known_placement"]))
    except (ShardGymError, TypeError, ValueError) as error:
        raise DamagedFileError(f"Task {entry['name']!r} in {source} is not usable: {error}") from error


def _record(name: str) -> tuple[dict[str, Any], str]:
    """The JSON record of a suite and its SHA-256, both checked."""
    index = _index()
    if not isinstance(name, str) or name not in index:
        raise unknown_name("suite", name, index)
    path = DATA / f"{name}.json"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedFileError(f"The file of suite {name!r} cannot be read: {error}. Reinstall shard-gym.") from error
    found = sha256_of(data)
    if found != index[name]:
        raise DamagedFileError(
            f"The file of suite {name!r} ({path}) has SHA-256 {found}, but {index[name]} was published. "
            "It was changed or damaged; reinstall shard-gym."
        )
    record = parse_json(data, str(path))
    if not isinstance(record, dict) or set(record) != _SUITE_KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"{path} is not a suite file of schema {SCHEMA} with the keys {sorted(_SUITE_KEYS)}.")
    return record, found


def _index() -> dict[str, str]:
    """SHA-256 of each suite's file, by name."""
    index = read_json(INDEX)
    if not isinstance(index, dict) or not all(isinstance(value, str) for value in index.values()):
        raise DamagedFileError(f"{INDEX} must map suite names to SHA-256 sums. Reinstall shard-gym.")
    return index


def _pieces(name: str) -> list[str]:
    """`name` cut into runs of digits and of other characters, digits at odd places."""
    pieces, run = [], ""
    for character in name:
        if run and character.isdigit() != run[-1].isdigit():
            pieces.append(run)
            run = ""
        run += character
    return [*pieces, run]
