"""The least seconds of the episodes of the named suites, with hindsight: data beside the suites, made once.

`tools/oracle_seconds.py` makes them with the oracle of `shard_gym.agents.replanning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shard_gym.checks import is_positive
from shard_gym.cost_models import CostModel
from shard_gym.drift.suites import DATA, DriftSuite, load_drift_suite
from shard_gym.errors import DamagedFileError, InvalidTaskError, short_repr
from shard_gym.io.files import write_json
from shard_gym.suites.records import SCHEMA, read_record

ORACLE = DATA / "oracle"
"""Folder with one JSON file per suite."""


def oracle_path(suite: str) -> Path:
    """The file of the suite named `suite`, which may not exist."""
    return ORACLE / f"{suite}.json"


def oracle_command(suite: str) -> str:
    """The command that makes the file of a suite."""
    return f"python tools/oracle_seconds.py {suite}"


def oracle_seconds(suite: DriftSuite, cost_model: CostModel) -> dict[str, float]:
    """Seconds that no sequence of actions takes less than, by name of the task.

    Empty without a file, and for a split that it does not have: `shard_gym.agents.replanning.oracle` finds them.

    Raises:
        DamagedFileError: the file is for another version of the suite or for another cost model, or is damaged.
    """
    path, again = oracle_path(suite.name), f"Make it again with: {oracle_command(suite.name)}."
    record = read_record(path)
    if not record:
        return {}
    for key, found, needed in (
        ("suite", record["suite"], suite.name),
        ("suite_sha256", record["suite_sha256"], suite.sha256),
        ("cost_model", record["cost_model"], cost_model.fingerprint),
    ):
        if found != needed:
            raise DamagedFileError(f"{key} of {path} is {short_repr(found)}, but must be {needed!r}. {again}")
    splits = record["splits"]
    found = splits.get(suite.split, {}) if isinstance(splits, dict) else None
    if found == {}:
        return {}
    if not isinstance(found, dict) or set(found) != {task.name for task in suite}:
        raise DamagedFileError(
            f"{path} must map every task of {suite.name!r} ({suite.split}), and no other, to seconds. {again}"
        )
    for name, seconds in found.items():
        if not is_positive(seconds):
            raise DamagedFileError(
                f"The seconds of task {name!r} in {path} must be a positive number, not {short_repr(seconds)}. {again}"
            )
    return {task.name: float(found[task.name]) for task in suite}


def write_oracle_seconds(suite: DriftSuite, seconds: Mapping[str, float], cost_model: CostModel, how: str) -> Path:
    """Write the seconds of one split of a named suite to its file, atomically.

    Args:
        suite: the split.
        seconds: of every task, by its name.
        cost_model: the model under which they hold.
        how: how they were found, a sentence.

    Returns:
        The path of the file.

    Raises:
        InvalidTaskError: the suite is not a named one, or the names are not those of its tasks.
    """
    if not suite.sha256 or load_drift_suite(suite.name, suite.split).sha256 != suite.sha256:
        raise InvalidTaskError(f"{suite!r} is not a named suite. Take one from load_drift_suite.")
    if set(seconds) != {task.name for task in suite}:
        raise InvalidTaskError(f"Give the seconds of every task of {suite!r}, and of no other.")
    if not all(is_positive(each) for each in seconds.values()):
        raise InvalidTaskError(f"The seconds of all tasks of {suite!r} must be positive and finite.")
    path = oracle_path(suite.name)
    record = {
        "schema": SCHEMA,
        "suite": suite.name,
        "suite_sha256": suite.sha256,
        "cost_model": cost_model.fingerprint,
        "how": how,
        "splits": {suite.split: {task.name: seconds[task.name] for task in suite}},
    }
    write_json(path, record, indent=None)
    return path
