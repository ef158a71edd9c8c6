"""Files beside the named suites, with one entry for each task: for one version of a suite and one cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shard_gym.common.errors import DamagedFileError, InvalidTaskError
from shard_gym.common.io.files import read_json, write_json
from shard_gym.cost_models import CostModel
from shard_gym.tasks.suites.info import DATA
from shard_gym.tasks.suites.load import suite_info, suite_names
from shard_gym.tasks.task import Suite

SCHEMA = 1
BOUNDS = DATA / "bounds"  # folder with one JSON file of lower bounds for each suite

_KEYS = {"schema", "suite", "suite_sha256", "cost_model", "how", "splits"}


def read_record(path: Path) -> dict[str, Any]:
    """The JSON record of a file, with checked keys; empty without a file."""
    if not path.exists():
        return {}
    record = read_json(path)
    if not isinstance(record, dict) or set(record) != _KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"{path} must be an object of schema {SCHEMA} with the keys {sorted(_KEYS)}.")
    return record


def bounds_path(suite: str) -> Path:
    """The file of the lower bounds of the suite named `suite`, which may not exist."""
    return BOUNDS / f"{suite}.json"


def read_bounds(suite: Suite[Any], cost_model: CostModel) -> dict[str, Any]:
    """The JSON values in the file of the lower bounds; `shard_gym.tasks.suites.bounds.lower_bounds` checks them."""
    return read_entries(bounds_path(suite.name), suite, cost_model)


def read_entries(path: Path, suite: Suite[Any], cost_model: CostModel) -> dict[str, Any]:
    """The entries of a file for one split, by name of the task; empty without a file for this suite and cost model."""
    record = read_record(path) if _is_shipped(suite) else {}
    if not record:
        return {}
    if (record["suite"], record["suite_sha256"]) != (suite.name, suite.sha256):
        raise DamagedFileError(
            f"{path} is for suite {record['suite']!r} with SHA-256 {record['suite_sha256']}, but suite {suite.name!r} "
            f"has {suite.sha256}. Reinstall shard-gym, or make the file again."
        )
    if record["cost_model"] != cost_model.fingerprint:
        return {}
    splits = record["splits"]
    entries = splits.get(suite.split, {}) if isinstance(splits, dict) else None
    if not isinstance(entries, dict):
        raise DamagedFileError(f"The splits in {path} must map names of tasks to their entries.")
    if not set(entries) <= {task.name for task in suite}:
        raise DamagedFileError(f"{path} has tasks that suite {suite.name!r} ({suite.split}) does not have.")
    return entries


def write_entries(
    path: Path, splits: Sequence[Suite[Any]], entries: Mapping[str, Any], cost_model: CostModel, how: str
) -> None:
    """Write JSON values by name of the task, for tasks of one named suite and a cost model, atomically."""
    check_names(splits, entries)
    record = {
        "schema": SCHEMA,
        "suite": splits[0].name,
        "suite_sha256": splits[0].sha256,
        "cost_model": cost_model.fingerprint,
        "how": how,
        "splits": {
            suite.split: {task.name: entries[task.name] for task in suite if task.name in entries} for suite in splits
        },
    }
    write_json(path, record, indent=None)


def check_names(splits: Sequence[Suite[Any]], entries: Mapping[str, Any]) -> None:
    """Raise InvalidTaskError as `write_entries` does."""
    if len({(suite.name, suite.sha256) for suite in splits}) != 1 or not _is_shipped(splits[0]):
        raise InvalidTaskError("Only named suites have files of their tasks; pass splits of one, from load_suite.")
    unknown = set(entries) - {task.name for suite in splits for task in suite}
    if unknown:
        raise InvalidTaskError(f"Suite {splits[0].name!r} has no task named {min(unknown)!r} in the splits given.")


def _is_shipped(suite: Suite[Any]) -> bool:
    """Whether it is a suite of the package. A custom one may have its name; the index alone says which is which."""
    return suite.name in suite_names() and suite_info(suite.name).sha256 == suite.sha256
