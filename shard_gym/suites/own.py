"""Suites of your own in a file: JSON that holds everything, tables and devices included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import DamagedFileError, InvalidOptionError, ShardGymError, wrong_kind
from shard_gym.io.files import read_bytes, sha256_of, write_atomically
from shard_gym.io.parsing import parse_json
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, TaskSuite
from shard_gym.topology import DeviceSpec, LinkSpec, Topology

SCHEMA = "shard-gym suite 1"
SUFFIX = ".json"

_KEYS = {"schema", "name", "version", "description", "splits"}


def save_suite(path: str | Path, *suites: TaskSuite) -> None:
    """Write a suite to `path`, atomically; `load_suite(path)` reads it.

    Args:
        path: of the file; its name ends in .json.
        suites: the splits of one suite, which differ in `split` alone; one or several.

    Raises:
        InvalidOptionError: there is no suite, two have the same split or different names, or the path has another end.
        UnwritablePathError: the file cannot be written.
    """
    for suite in suites:
        if not isinstance(suite, TaskSuite):
            raise wrong_kind("suite", suite, "a TaskSuite")
    if not suites or len({suite.split for suite in suites}) < len(suites) or len({each.name for each in suites}) > 1:
        named = ", ".join(f"{suite.name!r} ({suite.split})" for suite in suites) or "none"
        raise InvalidOptionError(f"save_suite wants the splits of one suite, each once; got {named}.")
    if Path(path).suffix != SUFFIX:
        raise InvalidOptionError(f"The file of a suite ends in {SUFFIX}, but {str(path)!r} does not.")
    record = {
        "schema": SCHEMA,
        "name": suites[0].name,
        "version": suites[0].version,
        "description": suites[0].description,
        "splits": {suite.split: [_task_to_json(task) for task in suite] for suite in suites},
    }
    write_atomically(Path(path), (json.dumps(record, default=np.ndarray.tolist, allow_nan=False) + "\n").encode())


def read_suite(path: Path, split: str) -> TaskSuite:
    """One split of the suite in the file at `path`; a suite with a single split needs no name of it.

    Raises:
        DamagedFileError: the file is missing, or holds no suite.
        InvalidOptionError: the suite has no such split.
    """
    data = read_bytes(path)
    record = parse_json(data, str(path))
    if not isinstance(record, dict) or record.get("schema") != SCHEMA or set(record) != _KEYS:
        raise DamagedFileError(
            f"{path} is not a suite: it must be an object with schema {SCHEMA!r} and the keys {sorted(_KEYS)}. "
            "save_suite writes such files."
        )
    splits = record["splits"]
    if not isinstance(splits, dict) or not splits or not all(isinstance(tasks, list) for tasks in splits.values()):
        raise DamagedFileError(f"{path}: splits must map the name of each split to its tasks, and hold one at least.")
    if split not in splits and len(splits) > 1:
        raise InvalidOptionError(f"The suite in {path} has the splits {sorted(splits)}, not {split!r}.")
    found = {name: [_task_from_json(each, path) for each in tasks] for name, tasks in splits.items()}
    everything = [task for tasks in found.values() for task in tasks]
    chosen = split if split in found else next(iter(found))
    try:
        return TaskSuite(
            str(record["name"]),
            tuple(found[chosen]),
            chosen,
            int(record["version"]),
            sha256_of(data),
            str(record["description"]),
            padding=(max(task.num_tables for task in everything), max(task.num_devices for task in everything)),
        )
    except (ShardGymError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} does not describe a suite: {error}") from error


def _task_to_json(task: Task) -> dict[str, Any]:
    topology = {field.name: getattr(task.topology, field.name) for field in fields(Topology)}
    return {
        "name": task.name,
        "tables": {field.name: getattr(task.tables, field.name) for field in fields(Tables)}
        | {"workload": asdict(task.tables.workload)},
        "topology": topology | {"device": asdict(task.topology.device), "links": asdict(task.topology.links)},
        "known_placement": task.known_placement,
    }


def _task_from_json(record: Mapping[str, Any], path: Path) -> Task:
    try:
        tables, topology = dict(record["tables"]), dict(record["topology"])
        known = record["known_placement"]
        return Task(
            record["name"],
            Tables(**(tables | {"workload": Workload(**tables["workload"])})),
            Topology(
                **(topology | {"device": DeviceSpec(**topology["device"]), "links": LinkSpec(**topology["links"])})
            ),
            None if known is None else np.asarray(known),
        )
    except (ShardGymError, KeyError, TypeError, ValueError) as error:
        name = record.get("name", "") if isinstance(record, dict) else ""
        raise DamagedFileError(f"{path}: task {name!r} is not valid: {error}") from error
