"""The best placements known of the named suites: what the gap of an agent is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from shard_gym.cost_models import AdditiveCostModel
from shard_gym.errors import DamagedFileError, InvalidPlacementError, InvalidTaskError
from shard_gym.io.files import read_json, write_json
from shard_gym.placement import Placement, check_placement, placement_from_json, placement_to_json
from shard_gym.suites.load import DATA
from shard_gym.tasks import Task, TaskSuite

BEST_KNOWN = DATA / "best_known"
"""Holds one JSON file for each suite that has been searched."""

SCHEMA = 1
_KEYS = {"schema", "suite", "suite_sha256", "cost_model", "how", "splits"}


@dataclass(frozen=True, eq=False)
class BestKnown:
    """The best placement known of one task.

    Attributes:
        cost_ms: its cost.
        placement: (T,) int64, checked.
    """

    cost_ms: float
    placement: Placement


def best_known_path(suite: str) -> Path:
    """Where the best placements of the suite named `suite` are kept, whether there are any or not."""
    return BEST_KNOWN / f"{suite}.json"


def best_known_costs(suite: TaskSuite, cost_model: AdditiveCostModel) -> dict[str, float]:
    """Cost in ms of the best placement known, by name of the task; see `best_known`."""
    return {name: best.cost_ms for name, best in best_known(suite, cost_model).items()}


def best_known(suite: TaskSuite, cost_model: AdditiveCostModel) -> dict[str, BestKnown]:
    """The best placements known, by name of the task.

    Empty for a suite that is not from a file, that nobody searched, or that was searched under another cost model.

    Raises:
        DamagedFileError: the file was made for another version of the suite, or is not what it should be.
    """
    path = best_known_path(suite.name)
    if not suite.sha256 or not path.exists():
        return {}
    record = read_json(path)
    if not isinstance(record, dict) or set(record) != _KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"{path} must be an object of schema {SCHEMA} with the keys {sorted(_KEYS)}.")
    if (record["suite"], record["suite_sha256"]) != (suite.name, suite.sha256):
        raise DamagedFileError(
            f"{path} is for suite {record['suite']!r} with SHA-256 {record['suite_sha256']}, but suite {suite.name!r} "
            f"has {suite.sha256}. Reinstall shard-gym, or search the suite again."
        )
    if record["cost_model"] != cost_model.fingerprint:
        return {}
    splits = record["splits"]
    if not isinstance(splits, dict) or not isinstance(splits.get(suite.split, {}), dict):
        raise DamagedFileError(f"The splits in {path} must map the names of tasks to placements.")
    tasks = {task.name: task for task in suite}
    entries = splits.get(suite.split, {})
    if not set(entries) <= set(tasks):
        raise DamagedFileError(f"{path} names tasks that suite {suite.name!r} ({suite.split}) does not have.")
    return {name: _entry(entry, tasks[name], path) for name, entry in entries.items()}


def _entry(entry: Any, task: Task, path: Path) -> BestKnown:
    """One task's best placement from its JSON form."""
    if not isinstance(entry, dict) or set(entry) != {"cost_ms", "placement"}:
        raise DamagedFileError(f"Task {task.name!r} in {path} must have exactly the keys cost_ms and placement.")
    cost = entry["cost_ms"]
    if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 < cost < math.inf:
        raise DamagedFileError(f"cost_ms of task {task.name!r} in {path} must be a positive number, not {cost!r}.")
    try:
        placement = placement_from_json(entry["placement"], task.tables, task.topology)
    except InvalidPlacementError as error:
        raise DamagedFileError(f"The placement of task {task.name!r} in {path} is not valid: {error}") from error
    return BestKnown(float(cost), placement)


def best_known_effort(suite: str) -> str:
    """How the best known placements of the suite of that name were found, words; empty if nobody searched it.

    Raises:
        DamagedFileError: the file is not what it should be.
    """
    path = best_known_path(suite)
    if not path.exists():
        return ""
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("how"), str):
        raise DamagedFileError(f"{path} does not say how its placements were found.")
    return str(record["how"])


def write_best_known(
    splits: Sequence[TaskSuite], placements: Mapping[str, ArrayLike], cost_model: AdditiveCostModel, how: str
) -> Path:
    """Write the best placements of a suite to their file, atomically; every placement is checked and costed first.

    Args:
        splits: the splits of one named suite.
        placements: (T,) ints for each task, by the task's name; tasks that are not named are left out.
        cost_model: the model under which they are best.
        how: how they were found, a sentence.

    Returns:
        The path of the file.

    Raises:
        InvalidTaskError: the splits are not of one named suite, or a placement is of none of their tasks.
        InvalidPlacementError: a placement is not valid.
    """
    if len({(suite.name, suite.sha256) for suite in splits}) != 1 or not splits[0].sha256:
        raise InvalidTaskError("Best known placements are kept for named suites; pass splits of one, from load_suite.")
    unknown = set(placements) - {task.name for suite in splits for task in suite}
    if unknown:
        raise InvalidTaskError(f"Suite {splits[0].name!r} has no task named {min(unknown)!r} in the splits given.")
    record = {
        "schema": SCHEMA,
        "suite": splits[0].name,
        "suite_sha256": splits[0].sha256,
        "cost_model": cost_model.fingerprint,
        "how": how,
        "splits": {
            suite.split: {
                task.name: _costed(task, placements[task.name], cost_model) for task in suite if task.name in placements
            }
            for suite in splits
        },
    }
    path = best_known_path(splits[0].name)
    write_json(path, record, indent=None)
    return path


def _costed(task: Task, placement: ArrayLike, cost_model: AdditiveCostModel) -> dict[str, Any]:
    """The JSON form of one task's placement, with its cost."""
    checked = check_placement(placement, task.tables, task.topology)
    cost = cost_model.estimate(checked, task.tables, task.topology).total_ms
    return {"cost_ms": cost, "placement": placement_to_json(checked)}
