"""Custom suites in a file: JSON that holds everything, tables and devices included."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, ShardGymError, short_repr, wrong_kind
from shard_gym.common.io.files import read_bytes, sha256_of, write_atomically
from shard_gym.common.io.parsing import parse_json, require_fields, require_schema
from shard_gym.hardware import DeviceSpec, HostMemory, LinkSpec, Replicas, Topology, WorkRates
from shard_gym.plans.constraints_json import constraints_from_numbers
from shard_gym.tables import Popularity, RowPopularity, RowSteps, Tables, Workload
from shard_gym.tasks.task import Suite, Task, TaskSuite

SCHEMA = "shard-gym suite 1"
SUFFIX = ".json"
PLACING = "placement"
MAX_PADDING = 2**20
"""The largest padding that can be given."""

_KEYS: dict[str, type] = {"schema": str, "name": str, "version": int, "description": str, "splits": dict}
_MORE_KEYS: dict[str, type] = {"problem": str, "padding": list}
_TASK_KEYS: dict[str, type | tuple[type, ...]] = {
    **{"name": str, "tables": dict, "topology": dict},
    "known_placement": (list, type(None)),
}
_OPTIONAL_KEYS: dict[str, type | tuple[type, ...]] = {"splittable": bool, "sync_every": int, "constraints": dict}
_PARTS: dict[str, Any] = {
    **{"tables": Tables, "topology": Topology},
    **{"device": DeviceSpec, "links": LinkSpec, "host": HostMemory, "replicas": Replicas},
    "rates": WorkRates,
}
"""The objects in a task, by their keys; each has the fields of its class."""

_MAY_LACK = {
    "tables": {"popularity", "pooled", "rows_in"},
    "topology": {"host", "cross_host_ratio", "replicas", "devices_per_domain"},
    "device": {"rates"},
    "host": {"total_bytes"},
}
"""Fields that are left out where they have their default, and that files of earlier versions do not have."""

_POPULARITIES: dict[str, Any] = {"law": RowPopularity, "steps": RowSteps}


@dataclass(frozen=True)
class SuiteFormat:
    """How suites of a kind are written.

    Attributes:
        suite_class: of the suites.
        to_json, from_json: of a task; the second takes the path that messages name, too.
        sizes: two numbers of a task, of which a suite's `padding` has the largest.
    """

    suite_class: type[Suite[Any]]
    to_json: Callable[[Any], dict[str, Any]]
    from_json: Callable[[Any, str], Any]
    sizes: Callable[[Any], tuple[int, int]]


def save_suite(path: str | Path, *suites: Suite[Any]) -> None:
    """Write a suite to `path`, atomically; `load_suite(path)` reads it.

    Args:
        path: of the file; its name ends in .json.
        suites: the splits of one suite, which differ in `split` alone; one or several.

    Raises:
        InvalidOptionError: there is no suite, two have the same split or different names, or the path has another end.
        UnwritablePathError: the file cannot be written.
    """
    if not isinstance(path, (str, Path)):
        raise wrong_kind("path", path, f"the path of a file, which ends in {SUFFIX}")
    text = _text_of(suites)
    if Path(path).suffix != SUFFIX:
        raise InvalidOptionError(f"The file of a suite ends in {SUFFIX}, but {str(path)!r} does not.")
    write_atomically(Path(path), text)


def suite_record(suite: Suite[Any]) -> dict[str, Any]:
    """What `save_suite` writes of a suite with one split, as objects of JSON."""
    record: dict[str, Any] = json.loads(_text_of((suite,)))
    return record


def _problem_of(suites: Sequence[Suite[Any]]) -> str:
    """The problem, in `FORMATS`, of the splits of one suite; raises the errors of `save_suite` if they are none."""
    for suite in suites:
        if not isinstance(suite, tuple(each.suite_class for each in FORMATS.values())):
            raise wrong_kind("suite", suite, "a TaskSuite or a DriftSuite")
    if not suites or len({suite.split for suite in suites}) < len(suites) or len({each.name for each in suites}) > 1:
        named = ", ".join(f"{suite.name!r} ({suite.split})" for suite in suites) or "none"
        raise InvalidOptionError(f"save_suite wants the splits of one suite, each once; got {named}.")
    return next(name for name, each in FORMATS.items() if isinstance(suites[0], each.suite_class))


def _text_of(suites: Sequence[Suite[Any]]) -> bytes:
    """The file of the splits of one suite."""
    problem, first = _problem_of(suites), suites[0]
    paddings = [suite.padding for suite in suites if suite.padding is not None]
    record = {
        "schema": SCHEMA,
        "name": first.name,
        "version": first.version,
        "description": first.description,
        **({} if problem == PLACING else {"problem": problem}),
        **({"padding": np.max(paddings, axis=0)} if paddings else {}),
        "splits": {suite.split: [FORMATS[problem].to_json(task) for task in suite] for suite in suites},
    }
    return (json.dumps(record, default=np.ndarray.tolist, allow_nan=False) + "\n").encode()


def read_suite(path: Path, split: str) -> Suite[Any]:
    """One split of the suite in the file at `path`; a suite with a single split needs no name of it."""
    return _read(read_bytes(path), split, str(path))


def suite_of_record(record: Mapping[str, Any], split: str) -> Suite[Any]:
    """The suite of a `suite_record`; raises the errors of `load_suite`."""
    try:
        data = json.dumps(record).encode()
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"{short_repr(record)} is not a suite, which save_suite writes.") from error
    return _read(data, split, "The object")


def _read(data: bytes, split: str, path: str) -> Suite[Any]:
    try:
        record = require_fields(require_schema(parse_json(data, "It"), SCHEMA, "It"), _KEYS, "It", _MORE_KEYS)
        own = _format_of(record.get("problem", PLACING))
        padding = _padding(record.get("padding", [1, 1]))
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is not a suite, which save_suite writes: {error}") from error
    splits = record["splits"]
    if not splits or not all(isinstance(tasks, list) and tasks for tasks in splits.values()):
        raise DamagedFileError(f"{path}: splits must map the name of each split to its tasks, and hold one at least.")
    if split not in splits and len(splits) > 1:
        raise InvalidOptionError(f"The suite in {path} has the splits {sorted(splits)}, not {split!r}.")
    found = {name: [own.from_json(each, path) for each in tasks] for name, tasks in splits.items()}
    sizes = [padding, *(own.sizes(task) for tasks in found.values() for task in tasks)]
    chosen = split if split in found else next(iter(found))
    try:
        return own.suite_class(
            record["name"],
            tuple(found[chosen]),
            chosen,
            record["version"],
            sha256_of(data),
            record["description"],
            padding=(max(size for size, _ in sizes), max(size for _, size in sizes)),
        )
    except ShardGymError as error:
        raise DamagedFileError(f"{path} does not describe a suite: {error}") from error


def _format_of(problem: str) -> SuiteFormat:
    if problem not in FORMATS:
        raise DamagedFileError(f"Its problem must be one of {', '.join(FORMATS)}, not {short_repr(problem)}.")
    return FORMATS[problem]


def _padding(numbers: list[Any]) -> tuple[int, int]:
    if len(numbers) != 2 or not all(is_integer(each) and 1 <= each <= MAX_PADDING for each in numbers):
        raise DamagedFileError(
            f"Its padding must be two integers from 1 to {MAX_PADDING:,}, not {short_repr(numbers)}."
        )
    return numbers[0], numbers[1]


def task_to_json(task: Task) -> dict[str, Any]:
    """The record of a task, in which arrays may be of NumPy."""
    tables = {field.name: getattr(task.tables, field.name) for field in fields(Tables)}
    topology = {field.name: getattr(task.topology, field.name) for field in fields(Topology)}
    popularity, host, replicas = tables.pop("popularity"), topology.pop("host"), topology.pop("replicas")
    del tables["rows_in"]  # the constraints say it
    if popularity is not None:
        kind = next(name for name, each in _POPULARITIES.items() if isinstance(popularity, each))
        tables["popularity"] = {kind: asdict(popularity)}
    if task.tables.pooled.all():
        del tables["pooled"]
    if host is not None:
        topology["host"] = asdict(host)
        if host.total_bytes is None:
            del topology["host"]["total_bytes"]
    if replicas is not None:
        topology["replicas"] = asdict(replicas)
    if topology["devices_per_domain"] is None:
        del topology["devices_per_domain"]
    if topology["cross_host_ratio"] == 1.0:
        del topology["cross_host_ratio"]
    return {
        "name": task.name,
        "tables": tables | {"workload": task.tables.workload.to_json()},
        "topology": topology | {"device": asdict(task.topology.device), "links": asdict(task.topology.links)},
        "known_placement": task.known_placement,
        **({"splittable": True} if task.splittable else {}),
        **({"sync_every": task.sync_every} if task.sync_every else {}),
        **({} if task.constraints is None else {"constraints": task.constraints.to_numbers()}),
    }


def task_from_json(record: Mapping[str, Any], path: str) -> Task:
    """The task of a record; `path` is named in messages."""
    try:
        require_fields(record, _TASK_KEYS, "It", _OPTIONAL_KEYS)
        tables, topology = _part(record, "tables"), _part(record, "topology")
        for key in ("device", "links"):
            _part(topology, key)
        if topology["device"].get("rates") is not None:
            topology["device"] = topology["device"] | {"rates": WorkRates(**_part(topology["device"], "rates"))}
        if "popularity" in tables:
            tables["popularity"] = _popularity(tables["popularity"])
        if "host" in topology:
            topology["host"] = HostMemory(**_part(topology, "host"))
        if "replicas" in topology:
            topology["replicas"] = Replicas(**_part(topology, "replicas"))
        known = record["known_placement"]
        return Task(
            record["name"],
            Tables(**(tables | {"workload": Workload.from_json(tables["workload"], "Its workload")})),
            Topology(
                **(topology | {"device": DeviceSpec(**topology["device"]), "links": LinkSpec(**topology["links"])})
            ),
            None if known is None else np.asarray(known),
            record.get("splittable", False),
            record.get("sync_every", 0),
            constraints_from_numbers(record["constraints"]) if "constraints" in record else None,
        )
    except (ShardGymError, TypeError, ValueError, OverflowError) as error:
        name = short_repr(record.get("name", "")) if isinstance(record, dict) else "without a name"
        raise DamagedFileError(f"{path}: task {name} is not valid: {error}") from error


def _part(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`, if it has the fields of its class and no others."""
    part, known = record[key], {field.name for field in fields(_PARTS[key])}
    if not isinstance(part, dict) or not known - _MAY_LACK.get(key, set()) <= set(part) <= known:
        raise DamagedFileError(f"Its {key} must be an object with the keys {', '.join(sorted(known))}.")
    return dict(part)


def _popularity(record: Any) -> Popularity:
    """The popularity of rows: {"law": {"q": [...], "s": [...]}}, or {"steps": {"rows": [...], "shares": [...]}}."""
    kind = next(iter(record)) if isinstance(record, dict) and len(record) == 1 else None
    if kind not in _POPULARITIES or not isinstance(record[kind], dict):
        raise DamagedFileError(f"Its popularity must be an object with one of {', '.join(_POPULARITIES)}.")
    found: Popularity = _POPULARITIES[kind](**record[kind])
    return found


FORMATS: dict[str, SuiteFormat] = {
    PLACING: SuiteFormat(TaskSuite, task_to_json, task_from_json, lambda task: (task.num_tables, task.num_devices))
}
"""By the problem that a file names; one that names none is of placement. `shard_gym.replanning` adds its own."""
