"""Loading of the named suites; the SHA-256 of every file is checked before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import DamagedFileError, InvalidOptionError, ShardGymError, short_repr, unknown_name, wrong_kind
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.io.files import read_index, read_shipped, sha256_of
from shard_gym.io.parsing import parse_json
from shard_gym.pools import load_pool
from shard_gym.suites.own import SUFFIX, read_suite
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

DATA = Path(__file__).parent / "data"
SCHEMA = 1
SPLITS = ("train", "test")

SIMULATED, MEASURED, SHARDING = TRACKS = ("simulated", "measured", "sharding")
"""Tracks of the leaderboards: suites of whole tables whose costs are estimated; those made to be measured on a machine
at hand; and those whose tables may be split, with estimated costs."""

_SUITE_KEYS = {
    *("schema", "name", "version", "description", "pool", "pool_sha256"),
    *("hardware", "weight_dtype", "optimizer", "splits"),
}
_OPTIONAL_KEYS = {"track", "batch_size"}
_TASK_KEYS = {"name", "tables", "embedding_dim", "num_devices", "memory_cap_bytes", "known_placement"}


@dataclass(frozen=True)
class SuiteInfo:
    """Summary of a suite, read without building its tasks.

    Attributes:
        name: its name.
        version: raised when its data change.
        description: one sentence.
        pool: name of the pool of its tables.
        hardware: name of the hardware profile.
        track: one of `TRACKS`.
        sha256: SHA-256 of its file.
        tasks: number of tasks in each split.
        num_tables: smallest and largest T over all splits.
        num_devices: smallest and largest D over all splits.
    """

    name: str
    version: int
    description: str
    pool: str
    hardware: str
    track: str
    sha256: str
    tasks: Mapping[str, int]
    num_tables: tuple[int, int]
    num_devices: tuple[int, int]


def suite_names(track: str | None = None) -> list[str]:
    """The names of all suites, or of those of a track, with the numbers in them sorted by value (20 before 100)."""
    names = sorted(read_index(DATA), key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])
    return [name for name in names if track in (None, suite_info(name).track)]


def suite_info(name: str) -> SuiteInfo:
    """Summary of the suite named `name`; raises the errors of `load_suite`."""
    record, sha256 = _record(name)
    sizes, devices = _sizes(record)
    return SuiteInfo(
        name=record["name"],
        version=record["version"],
        description=record["description"],
        pool=record["pool"],
        hardware=record["hardware"],
        track=record.get("track", SIMULATED),
        sha256=sha256,
        tasks={split: len(members) for split, members in record["splits"].items()},
        num_tables=(min(sizes), max(sizes)),
        num_devices=(min(devices), max(devices)),
    )


def load_suite(name: str | Path, split: str = "test") -> TaskSuite:
    """One split of the suite named `name`, or in a file; its `max_tables` and `max_devices` cover all splits.

    Args:
        name: of a suite, or the path of a file that `save_suite` wrote: a Path, or a text that ends in .json.
        split: "train" or "test"; for a file, one of its own, and ignored if it has only one.

    Raises:
        UnknownNameError: no suite has that name.
        InvalidOptionError: the suite has no such split; a suite of a whole model has only "test".
        DamagedFileError: the file of the suite or of its pool was changed, or the file at a path holds no suite.
    """
    if not isinstance(split, str):
        raise wrong_kind("split", split, f"the name of a split, one of {list(SPLITS)}")
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(SUFFIX)):
        return read_suite(Path(name), split)
    if not isinstance(name, str):  # lru_cache needs a hashable name
        raise unknown_name("suite", name, read_index(DATA))
    return _load(name, split)


@lru_cache(maxsize=64)
def _load(name: str, split: str) -> TaskSuite:
    record, sha256 = _record(name)
    if split not in record["splits"]:
        known = sorted(record["splits"])
        if split == "train":
            raise InvalidOptionError(
                f"Suite {name!r} has no training tasks, only the splits {known}. Train on another suite, such as "
                "mixdim-8, and place the tasks of this one afterwards."
            )
        hint = " or ".join(f"split={each!r}" for each in known)
        raise InvalidOptionError(f"Suite {name!r} has the splits {known}, not {split!r}. Pass {hint}.")
    pool = load_pool(record["pool"])
    if pool.sha256 != record["pool_sha256"]:
        raise DamagedFileError(
            f"Suite {name!r} was made for pool {record['pool']!r} with SHA-256 {record['pool_sha256']}, "
            f"but the installed pool has {pool.sha256}. Reinstall shard-gym."
        )
    tables = pool.tables.with_training(weight_dtype=record["weight_dtype"], optimizer=record["optimizer"])
    tables = tables.at_batch_size(record.get("batch_size", tables.workload.batch_size))
    hardware = hardware_profile(record["hardware"])
    sizes, devices = _sizes(record)
    splittable = record.get("track") == SHARDING
    tasks = tuple(_task(entry, tables, hardware, name, splittable) for entry in record["splits"][split])
    return TaskSuite(
        name, tasks, split, record["version"], sha256, record["description"], padding=(max(sizes), max(devices))
    )


def _sizes(record: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """T and D of every task in all splits of a suite's JSON record, whose keys are checked."""
    entries = [entry for split in record["splits"].values() for entry in split]
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != _TASK_KEYS:
            raise DamagedFileError(
                f"A task of suite {record['name']!r} must have the keys {sorted(_TASK_KEYS)}; got {short_repr(entry)}."
            )
        if not isinstance(entry["tables"], list) or not isinstance(entry["num_devices"], int):
            raise DamagedFileError(
                f"Task {entry['name']!r} of suite {record['name']!r} is not valid: "
                "tables must be a list, and num_devices an integer."
            )
    return [len(entry["tables"]) for entry in entries], [entry["num_devices"] for entry in entries]


def _task(entry: Mapping[str, Any], pool: Tables, hardware: HardwareProfile, suite: str, splittable: bool) -> Task:
    """One task from its JSON record."""
    try:
        tables = pool.select(entry["tables"]).with_dims(entry["embedding_dim"])
        topology = hardware.topology(entry["num_devices"], memory_cap_bytes=entry["memory_cap_bytes"])
        known = entry["known_placement"]
        placement = None if splittable and known is None else np.asarray(known)
        return Task(entry["name"], tables, topology, placement, splittable)
    except (ShardGymError, TypeError, ValueError) as error:
        raise DamagedFileError(f"Task {entry['name']!r} of suite {suite!r} is not valid: {error}") from error


def _record(name: str) -> tuple[dict[str, Any], str]:
    """The checked JSON record of a suite, and the SHA-256 of its file."""
    data = read_shipped(DATA, name, "suite")
    path = DATA / f"{name}.json"
    record = parse_json(data, str(path))
    keys = set(record) if isinstance(record, dict) else set()
    if keys - _OPTIONAL_KEYS != _SUITE_KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"{path} is not a suite file of schema {SCHEMA} with the keys {sorted(_SUITE_KEYS)}.")
    return record, sha256_of(data)
