"""Proofs of the lower bounds on plans of the named suites, which a check computes anew without a solver.

They are for whoever doubts a bound, so they are in the repository and not in the package.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.common.checks import is_positive
from shard_gym.common.errors import DamagedFileError, short_repr
from shard_gym.common.io.files import MAX_BYTES, read_bytes, sha256_of, write_atomically
from shard_gym.common.io.parsing import parse_json
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.bounds import PlanProof, proven_ms
from shard_gym.tasks.groups import tasks_of_groups
from shard_gym.tasks.problems import problem_of
from shard_gym.tasks.suites.info import DATA
from shard_gym.tasks.suites.records import check_names
from shard_gym.tasks.task import Suite, Task

SCHEMA = 2
PROOFS = DATA / "proofs"  # folder with one compressed JSON file for each suite

_KEYS = {"schema", "suite", "suite_sha256", "cost_model", "sha256", "splits"}


class TaskProof(NamedTuple):
    """A proof of the bound of a task."""

    bound_ms: float  # what it proves
    of_groups: tuple[PlanProof | None, ...]  # of each of the `tasks_of_groups`; none where no solver is needed


def proofs_path(suite: str) -> Path:
    """The file of the proofs of the suite named `suite`, which may not exist."""
    return PROOFS / f"{suite}.json.gz"


def read_proofs(suite: Suite[Any], cost_model: CostModel) -> dict[str, TaskProof]:
    """The proofs of a split, by name of the task; empty without a file for this suite and cost model.

    Raises:
        DamagedFileError: the file is damaged, or its checksum is another.
    """
    path = proofs_path(suite.name)
    if not path.exists():
        return {}
    try:
        unpacked = zlib.decompressobj(wbits=31)
        content = unpacked.decompress(read_bytes(path), MAX_BYTES)
    except zlib.error as error:
        raise DamagedFileError(f"{path} cannot be unpacked: {error}. Make it again.") from error
    record = parse_json(content, str(path))
    if not isinstance(record, dict) or set(record) != _KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"{path} must be an object of schema {SCHEMA} with the keys {sorted(_KEYS)}.")
    if record["sha256"] != _checksum(record["splits"]):
        raise DamagedFileError(f"{path} has another SHA-256 than it states. Make it again.")
    wanted = suite.name, suite.sha256, cost_model.fingerprint
    if (record["suite"], record["suite_sha256"], record["cost_model"]) != wanted:
        return {}
    try:
        found = {}
        for name, (bound_ms, *of_groups) in record["splits"].get(suite.split, {}).items():
            proofs = tuple(None if each is None else PlanProof.from_json(each) for each in of_groups)
            if not is_positive(bound_ms):
                raise ValueError(f"The bound of task {name} is {short_repr(bound_ms)}")
            found[name] = TaskProof(float(bound_ms), proofs)
        return found
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFileError(f"{path} has no proofs by name of the task. Make it again.") from error


def write_proofs(splits: Sequence[Suite[Any]], proofs: Mapping[str, TaskProof], cost_model: CostModel) -> Path:
    """Write proofs of tasks of one named suite by name, atomically; returns the path of the file."""
    check_names(splits, proofs)
    of_splits = {
        suite.split: {
            task.name: [
                proofs[task.name].bound_ms,
                *(None if each is None else each.to_json() for each in proofs[task.name].of_groups),
            ]
            for task in suite
            if task.name in proofs
        }
        for suite in splits
    }
    record = {
        "schema": SCHEMA,
        "suite": splits[0].name,
        "suite_sha256": splits[0].sha256,
        "cost_model": cost_model.fingerprint,
        "sha256": _checksum(of_splits),
        "splits": of_splits,
    }
    path = proofs_path(splits[0].name)
    write_atomically(path, gzip.compress(_packed(record), mtime=0))
    return path


def checked_ms(proof: TaskProof, task: Task, model: AnalyticalShardingModel) -> float:
    """Ms that `proof` proves that no plan of the task costs less than, computed anew; 0 for a proof of another task."""
    tasks = tasks_of_groups(task)
    if len(tasks) != len(proof.of_groups):
        return 0.0
    found = []
    for own, each in zip(tasks, proof.of_groups, strict=True):
        simple = problem_of(own).lower_bound_ms(own, model)
        linear = 0.0 if each is None else proven_ms(each, own.tables, own.topology, model, own.constraints)
        found.append(max(simple, linear))
    return min(found)


def _packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _checksum(splits: Any) -> str:
    return sha256_of(_packed(splits))
