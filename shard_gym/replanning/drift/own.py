"""Drifting tasks as JSON, for suites in files (`shard_gym.tasks.suites.own`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from shard_gym.common.errors import DamagedFileError, ShardGymError, short_repr
from shard_gym.common.io.parsing import require_fields
from shard_gym.replanning.drift.levels import DriftLevel
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.tables import RowPopularity
from shard_gym.tasks.suites.own import SuiteFormat, task_from_json, task_to_json

_KEYS: dict[str, type | tuple[type, ...]] = {
    **{"name": str, "task": dict, "popularity": dict, "level": dict},
    **{"seed": int, "pause_s": (int, float)},
}


def _to_json(drifting: DriftTask) -> dict[str, Any]:
    return {
        "name": drifting.name,
        "task": task_to_json(drifting.task),
        "popularity": asdict(drifting.popularity),
        "level": asdict(drifting.level),
        "seed": drifting.seed,
        "pause_s": drifting.pause_s,
    }


def _from_json(record: Mapping[str, Any], path: str) -> DriftTask:
    name = short_repr(record.get("name", "")) if isinstance(record, dict) else "without a name"
    try:
        require_fields(record, _KEYS, "It")
        level: dict[str, Any] = {
            key: tuple(each) if isinstance(each, list) else each for key, each in record["level"].items()
        }
        for part, kind in (("popularity", RowPopularity), ("level", DriftLevel)):
            if set(record[part]) != {each.name for each in fields(kind)}:
                raise DamagedFileError(f"Its {part} must have the fields of a {kind.__name__}.")
        return DriftTask(
            record["name"],
            task_from_json(record["task"], path),
            RowPopularity(**record["popularity"]),
            DriftLevel(**level),
            record["seed"],
            float(record["pause_s"]),
        )
    except (ShardGymError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFileError(f"{path}: task {name} is not valid: {error}") from error


DRIFT_FORMAT = SuiteFormat(DriftSuite, _to_json, _from_json, lambda each: (each.max_parts, each.num_devices))
"""How suites of replanning are written."""
