"""The files of the named suites of drifting tables; the SHA-256 of each is checked before it is parsed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, short_repr
from shard_gym.common.io.files import read_index, read_shipped, sha256_of
from shard_gym.common.io.parsing import parse_json
from shard_gym.replanning.drift.levels import DriftLevel
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.drift.tasks import DriftTask, most_parts
from shard_gym.tables import RowPopularity, load_pool
from shard_gym.tasks import Task
from shard_gym.tasks.suites import SuiteInfo, placing
from shard_gym.tasks.suites.fresh import parted
from shard_gym.tasks.suites.info import DRIFT_SCHEMA, DRIFTING, REPLANNING

_KEYS = {"schema", "name", "version", "description", "level", "pauses_s", "pool", "suites", "splits"}


def names() -> list[str]:
    """The names of the suites, such as "drift-strong-600": a file, and the seconds of a pause."""
    files = sorted(read_index(DRIFTING))
    return [f"{file}-{pause:g}" for file in files for pause in _record(file, None)[0]["pauses_s"]]


@lru_cache(maxsize=256)
def info(name: str) -> SuiteInfo:
    """Summary of the suite named `name`; raises the errors of `load`."""
    base, seed = parted(name)
    record, sha256 = _record(base.rpartition("-")[0], seed)
    sizes = {task: size for suite in record["suites"] for task, size in placing.sizes(suite).items()}
    tables, devices = zip(*(sizes[each["task"]] for split in record["splits"].values() for each in split), strict=True)
    return SuiteInfo(
        name=name,
        version=record["version"],
        description=record["description"],
        pool=record["pool"]["name"],
        hardware=placing.info(next(iter(record["suites"]))).hardware,
        track=REPLANNING,
        sha256=sha256,
        tasks={split: len(entries) for split, entries in record["splits"].items()},
        num_tables=(min(tables), max(tables)),
        num_devices=(min(devices), max(devices)),
    )


@lru_cache(maxsize=64)
def load(name: str, split: str) -> DriftSuite:
    """One split of the suite named `name`, such as "drift-strong-600"; see `load_suite` for errors."""
    base, seed = parted(name)
    file, _, pause = base.rpartition("-")
    record, sha256 = _record(file, seed)
    splits, pause_s = record["splits"], float(pause)
    if split not in splits:
        raise InvalidOptionError(f"Suite {name!r} has the splits {sorted(splits)}, not {short_repr(split)}.")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in record["level"].items()}
    level = DriftLevel(**values)
    made = {
        each: [_task(entry["task"], entry["memory_cap_bytes"]) for entry in entries] for each, entries in splits.items()
    }
    tasks = tuple(
        DriftTask(f"{name}/{split}/{number}", task, _law(task), level, entry["seed"], pause_s)
        for number, (task, entry) in enumerate(zip(made[split], splits[split], strict=True))
    )
    every = [task for entries in made.values() for task in entries]
    padding = max(map(most_parts, every)), max(task.num_devices for task in every)
    if seed is not None and (known := load(base, split).padding):  # policies that were trained there hold fresh tasks
        padding = max(padding[0], known[0]), max(padding[1], known[1])
    return DriftSuite(name, tasks, split, record["version"], sha256, record["description"], padding)


@lru_cache(maxsize=2048)
def _task(name: str, memory_cap_bytes: int | None) -> Task:
    """A task of another suite, perhaps with other memory caps; shared by all pauses."""
    suite, split, _ = name.split("/")
    task = placing.load(suite, split)[name]
    if memory_cap_bytes is not None:
        caps = np.full(task.num_devices, memory_cap_bytes)
        task = replace(task, topology=replace(task.topology, memory_cap_bytes=caps), known_placement=None)
    return task


def _law(task: Task) -> RowPopularity:
    """The popularity of the rows of tables of a pool that has one."""
    law = task.tables.popularity
    assert isinstance(law, RowPopularity)
    return law


@lru_cache(maxsize=64)
def _record(file: str, seed: int | None) -> tuple[dict[str, Any], str]:
    if seed is None:
        data = read_shipped(DRIFTING, file, "suite of drifting tasks")
    else:
        from shard_gym.replanning.drawing import fresh_record  # it needs environments

        data = json.dumps(fresh_record(file, seed)).encode()
    record = parse_json(data, f"Suite {file!r}")
    if not isinstance(record, dict) or set(record) != _KEYS or record["schema"] != DRIFT_SCHEMA:
        raise DamagedFileError(
            f"The file of suite {file!r} must be an object of schema {DRIFT_SCHEMA} with {sorted(_KEYS)}."
        )
    pool = load_pool(record["pool"]["name"])
    if pool.sha256 != record["pool"]["sha256"]:
        raise DamagedFileError(
            f"Suite {file!r} was made for pool {record['pool']['name']!r} with SHA-256 {record['pool']['sha256']}, but "
            f"the installed pool has {pool.sha256}. Reinstall shard-gym."
        )
    for suite, sha256 in record["suites"].items():
        if placing.info(suite).sha256 != sha256:
            raise DamagedFileError(
                f"Suite {file!r} was made for suite {suite!r} with SHA-256 {sha256}, but the installed one has "
                f"{placing.info(suite).sha256}. Reinstall shard-gym."
            )
    return record, sha256_of(data)
