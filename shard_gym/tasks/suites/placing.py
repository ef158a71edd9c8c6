"""The files of the named suites of placement and sharding; the SHA-256 of each is checked before it is parsed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, ShardGymError, short_repr
from shard_gym.common.io.files import read_index, read_shipped, sha256_of
from shard_gym.common.io.parsing import parse_json
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.plans.constraints_json import constraints_from_numbers
from shard_gym.tables import Tables, load_pool
from shard_gym.tasks.suites.drawing import SCHEMA, record_of
from shard_gym.tasks.suites.fresh import fresh_name, parted
from shard_gym.tasks.suites.info import DATA, SHARDING, SIMULATED, SuiteInfo
from shard_gym.tasks.suites.recipes import RECIPES, TASKS_PER_SPLIT
from shard_gym.tasks.task import Task, TaskSuite

_SUITE_KEYS = {
    *("schema", "name", "version", "description", "pool", "pool_sha256"),
    *("hardware", "weight_dtype", "optimizer", "splits"),
}
_OPTIONAL_KEYS = {"track", "batch_size", "training", "splittable"}
"""Left out where they have their default; tables of the track "sharding" may be split without `splittable`."""

_TASK_KEYS = {"name", "tables", "embedding_dim", "num_devices", "memory_cap_bytes", "known_placement"}
_OPTIONAL_TASK_KEYS = {"hbm_bytes", "hardware", "sequences", "sync_every", "constraints"}
"""Of tasks with host memory, on other hardware than the suite's, with sequence tables (a truth value for each table),
of those whose plans may have groups, and of those with constraints."""


def names() -> list[str]:
    """The names of the suites of placement and sharding."""
    return list(read_index(DATA))


def sizes(name: str) -> dict[str, tuple[int, int]]:
    """T and D of every task in all splits of the suite named `name`, by name of the task."""
    return _sizes(_record(name)[0])


@lru_cache(maxsize=256)
def info(name: str) -> SuiteInfo:
    """Summary of the suite named `name`; raises the errors of `load`."""
    record, sha256 = _record(name)
    tables, devices = zip(*_sizes(record).values(), strict=True)
    return SuiteInfo(
        name=record["name"],
        version=record["version"],
        description=record["description"],
        pool=record["pool"],
        hardware=record["hardware"],
        track=record.get("track", SIMULATED),
        sha256=sha256,
        tasks={split: len(members) for split, members in record["splits"].items()},
        num_tables=(min(tables), max(tables)),
        num_devices=(min(devices), max(devices)),
        splittable=_splittable(record),
    )


@lru_cache(maxsize=64)
def load(name: str, split: str) -> TaskSuite:
    """One split of the suite named `name`; see `shard_gym.tasks.suites.load_suite` for errors."""
    record, sha256 = _record(name)
    if split not in record["splits"]:
        known = sorted(record["splits"])
        if split == "train":
            raise InvalidOptionError(
                f"Suite {name!r} has no training tasks, only the splits {known}. Train on another suite, such as "
                f"{_like(record)}, and answer the tasks of this one afterwards."
            )
        hint = " or ".join(f"split={each!r}" for each in known)
        raise InvalidOptionError(f"Suite {name!r} has the splits {known}, not {split!r}. Pass {hint}.")
    pool = load_pool(record["pool"])
    if pool.sha256 != record["pool_sha256"]:
        raise DamagedFileError(
            f"Suite {name!r} was made for pool {record['pool']!r} with SHA-256 {record['pool_sha256']}, "
            f"but the installed pool has {pool.sha256}. Reinstall shard-gym."
        )
    tables = pool.tables.with_training(
        weight_dtype=record["weight_dtype"], optimizer=record["optimizer"], training=record.get("training", True)
    )
    tables = tables.at_batch_size(record.get("batch_size", tables.workload.batch_size))
    hardware = hardware_profile(record["hardware"])
    padding = tuple(map(max, zip(*sizes(parted(name)[0]).values(), strict=True)))
    splittable = _splittable(record)
    tasks = tuple(_task(entry, tables, hardware, name, splittable) for entry in record["splits"][split])
    return TaskSuite(name, tasks, split, record["version"], sha256, record["description"], padding=padding)


def _like(record: Mapping[str, Any]) -> str:
    """A suite with training tasks of the same problem."""
    return "shard-8" if _splittable(record) else "mixdim-8"


def _splittable(record: Mapping[str, Any]) -> bool:
    return record.get("track") == SHARDING or record.get("splittable") is True


def _sizes(record: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    entries = [entry for split in record["splits"].values() for entry in split]
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) - _OPTIONAL_TASK_KEYS != _TASK_KEYS:
            raise DamagedFileError(
                f"A task of suite {record['name']!r} must have the keys {sorted(_TASK_KEYS)}; got {short_repr(entry)}."
            )
        if not isinstance(entry["tables"], list) or not isinstance(entry["num_devices"], int):
            raise DamagedFileError(
                f"Task {entry['name']!r} of suite {record['name']!r} is not valid: "
                "tables must be a list, and num_devices an integer."
            )
    return {entry["name"]: (len(entry["tables"]), entry["num_devices"]) for entry in entries}


def _task(entry: Mapping[str, Any], pool: Tables, hardware: HardwareProfile, suite: str, splittable: bool) -> Task:
    try:
        tables = pool.select(entry["tables"]).with_dims(entry["embedding_dim"])
        if "sequences" in entry:
            tables = replace(tables, pooled=~np.asarray(entry["sequences"], np.bool_))
        own = hardware_profile(entry["hardware"]) if "hardware" in entry else hardware
        topology = own.topology(entry["num_devices"], memory_cap_bytes=entry["memory_cap_bytes"])
        if "hbm_bytes" in entry:
            topology = replace(topology, host=own.host_memory(entry["hbm_bytes"]))
        known = entry["known_placement"]
        placement = None if splittable and known is None else np.asarray(known)
        limits = constraints_from_numbers(entry["constraints"]) if "constraints" in entry else None
        return Task(entry["name"], tables, topology, placement, splittable, entry.get("sync_every", 0), limits)
    except (ShardGymError, TypeError, ValueError) as error:
        raise DamagedFileError(f"Task {entry['name']!r} of suite {suite!r} is not valid: {error}") from error


def _record(name: str) -> tuple[dict[str, Any], str]:
    """The record of a suite, shipped or of fresh tasks, and its SHA-256."""
    base, seed = parted(name)
    return _file(name) if seed is None else _drawn(base, seed)


@lru_cache(maxsize=32)
def _drawn(name: str, seed: int) -> tuple[dict[str, Any], str]:
    """The record of fresh tasks: no larger than those of the suite, so that every policy that it trains holds them."""
    recipe, known = next(each for each in RECIPES if each.name == name), info(name)
    if recipe.num_tables is None:
        raise InvalidOptionError(
            f"The suite {name!r} is one task with all tables of its model, so there are no others like it. Draw fresh "
            f"tasks of another suite, such as {fresh_name(_like(_file(name)[0]), seed)}."
        )
    record = record_of(
        replace(
            recipe,
            name=fresh_name(name, seed),
            description=f"{TASKS_PER_SPLIT} fresh tasks, drawn with seed {seed}. {recipe.description}",
            num_tables=known.num_tables,
            num_devices=known.num_devices,
            train_tasks=TASKS_PER_SPLIT,
            test_tasks=TASKS_PER_SPLIT,
        )
    )
    return record, sha256_of(json.dumps(record).encode())


def _file(name: str) -> tuple[dict[str, Any], str]:
    data = read_shipped(DATA, name, "suite")
    path = DATA / f"{name}.json"
    record = parse_json(data, str(path))
    keys = set(record) if isinstance(record, dict) else set()
    if keys - _OPTIONAL_KEYS != _SUITE_KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"{path} is not a suite file of schema {SCHEMA} with the keys {sorted(_SUITE_KEYS)}.")
    return record, sha256_of(data)
