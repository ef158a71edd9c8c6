"""Lower bounds on the costs of the tasks of the named suites, computed once: by linear programs, some by CP-SAT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shard_gym.common.checks import is_positive
from shard_gym.common.errors import DamagedFileError, short_repr
from shard_gym.cost_models import CostModel
from shard_gym.tasks.suites.best_known import TOLERANCE, stated_costs
from shard_gym.tasks.suites.records import bounds_path, read_bounds, read_record, write_entries
from shard_gym.tasks.task import Suite


def lower_bounds(suite: Suite[Any], cost_model: CostModel) -> dict[str, float]:
    """Ms that no answer costs less than, by name of the task; empty without a file for this cost model.

    Raises:
        DamagedFileError: the file is for another version of the suite, or is damaged; or a best known placement costs
            less than a bound.
    """
    path, entries = bounds_path(suite.name), read_bounds(suite, cost_model)
    best = stated_costs(suite, cost_model) if entries else {}
    for name, bound in entries.items():
        if not is_positive(bound):
            wrong = short_repr(bound)
            raise DamagedFileError(f"The bound of task {name!r} in {path} must be a positive number, not {wrong}.")
        if name in best and bound > best[name] * (1.0 + TOLERANCE):
            raise DamagedFileError(
                f"The bound of task {name!r} in {path} is {bound} ms, but its best known placement costs {best[name]}. "
                "Reinstall shard-gym, or make the file again."
            )
    return {name: float(bound) for name, bound in entries.items()}


def lower_bounds_effort(suite: str) -> str:
    """How the lower bounds of the suite named `suite` were found, a sentence; empty without a file."""
    return str(read_record(bounds_path(suite)).get("how", ""))


def write_lower_bounds(
    splits: Sequence[Suite[Any]], bounds_ms: Mapping[str, float], cost_model: CostModel, how: str
) -> Path:
    """Write lower bounds of tasks of one named suite, in ms by name, to its file, atomically; returns its path."""
    path = bounds_path(splits[0].name)
    write_entries(path, splits, bounds_ms, cost_model, how)
    return path
