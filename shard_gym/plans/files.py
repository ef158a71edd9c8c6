"""Sharding plans as JSON values and as files with a checksum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, starmap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import DamagedFileError, InvalidPlanError, short_repr
from shard_gym.common.io.files import read_json, sha256_of, write_json
from shard_gym.common.io.parsing import require_fields, require_schema
from shard_gym.common.text import counted
from shard_gym.hardware import Topology
from shard_gym.plans.check import check_answer, check_plan
from shard_gym.plans.hbm_rows import check_hbm_rows, split_of_plan
from shard_gym.plans.plan import LAYOUTS, ONE_GROUP, Groups, Shard, ShardingPlan, TableSharding
from shard_gym.tables import Tables

Entry = TypeVar("Entry")

SCHEMA = "shard-gym plan 1"
_FILE_KEYS: dict[str, type] = {"schema": str, "sha256": str, "plan": list}
_FILE_OPTIONS: dict[str, type | tuple[type, ...]] = {"groups": list}
_KEYS = {"table", "sharding_type", "shards"}
GROUPS = "groups"
"""The key of the groups of a plan, which plans for one group do not have."""

_LEAST, _MOST = 0, 2**62 - 1  # numbers of shards

HBM_ROWS = "hbm_rows"
"""The key of the rows of each shard in HBM, which only plans for devices with host memory have."""


def plan_to_json(plan: ShardingPlan, tables: Tables, topology: Topology | None = None) -> list[dict[str, Any]]:
    """The plan as a list of T objects: the table's name, its sharding type, and its shards, five integers each.

    The integers of a shard are those of `Shard`: device, first row, rows, first column, columns. For a topology with
    host memory, an object has `hbm_rows`, too: how many rows of each shard are in HBM (`split_of_plan`), those that are
    read most.

    Raises:
        InvalidPlanError: it is no plan of so many tables.
        MemoryExceededError: the HBM of a device has no room for the states of its rows.
    """
    if not isinstance(plan, ShardingPlan) or len(plan) != len(tables):
        raise InvalidPlanError(f"A plan of {len(tables)} tables is needed, not {short_repr(plan)}.")
    content = [
        {"table": name, "sharding_type": kind, "shards": shards}
        for name, (kind, shards) in zip(tables.names, shardings_to_json(plan), strict=True)
    ]
    if topology is not None and topology.host is not None:
        best = split_of_plan(plan, tables, topology).hbm_rows
        rows = iter(check_hbm_rows(best, plan, tables, topology).tolist())
        for entry in content:
            entry[HBM_ROWS] = [next(rows) for _ in entry["shards"]]
    return content


def shardings_to_json(plan: ShardingPlan) -> list[Any]:
    """The plan as a list of T pairs: the sharding type, and the shards, five integers each (see `plan_to_json`)."""
    return [[each.sharding_type, [[int(n) for n in shard] for shard in each.shards]] for each in plan.tables]


def groups_to_json(groups: Groups) -> list[Any]:
    """Their number and layout."""
    return [groups.count, groups.layout]


def groups_from_json(value: Any) -> Groups:
    """The inverse of `groups_to_json`.

    Raises:
        InvalidPlanError: `value` has another form.
    """
    pair: list[Any] = value if isinstance(value, list) and len(value) == 2 else [0, ""]
    if not is_integer(pair[0]) or pair[0] < 1 or pair[1] not in LAYOUTS:
        raise InvalidPlanError(
            f"The groups of a plan are a list of their number and {' or '.join(LAYOUTS)}, not {short_repr(value)}."
        )
    return Groups(*pair)


def shardings_from_json(value: Any, tables: Tables, topology: Topology, groups: Groups = ONE_GROUP) -> ShardingPlan:
    """The answer to a task in a JSON value of `shardings_to_json`, with these groups.

    Raises:
        InvalidPlanError: `value` has another form; also the errors of `check_answer`.
    """
    return _plan(value, _good_pair if _are_good_pairs(value) else _pair, tables, topology, groups, check_answer)


def plan_from_json(value: Any, tables: Tables, topology: Topology) -> ShardingPlan:
    """The checked plan in a JSON value. Rows in HBM are checked, too; `hbm_rows_from_json` returns them.

    Raises:
        InvalidPlanError: `value` does not have the form of `plan_to_json`, or names other tables; also the errors of
            `check_plan` and `check_hbm_rows`.
    """
    plan = _plan(value, _object, tables, topology)
    hbm_rows_from_json(value, plan, tables, topology)
    return plan


def hbm_rows_from_json(value: Any, plan: ShardingPlan, tables: Tables, topology: Topology) -> NDArray[np.int64] | None:
    """(S,) int64, the rows in HBM of each shard of `plan`, which `value` holds; None if it does not say.

    Raises:
        InvalidPlanError, MemoryExceededError: `check_hbm_rows` rejects them, or some tables have them and others not.
    """
    found = [entry[HBM_ROWS] for entry in value if HBM_ROWS in entry]
    if not found:
        return None
    for entry, sharding in zip(value, plan.tables, strict=True):
        rows = entry.get(HBM_ROWS)
        if not isinstance(rows, list) or len(rows) != len(sharding.shards) or not all(map(is_integer, rows)):
            raise InvalidPlanError(
                f"Table {entry['table']!r} of a plan needs {HBM_ROWS}, an integer for each of its "
                f"{counted(len(sharding.shards), 'shard')}, as other tables have them; not {short_repr(rows)}."
            )
    return check_hbm_rows([number for rows in found for number in rows], plan, tables, topology)


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names of tables as keys: the second table of a name gets " (2)" behind it, the third " (3)".

    Such a key that is a name itself gets the next number that is free.
    """
    given, taken, keys = set(names), set[str](), []
    for name in names:
        key, number = name, 1
        while key in taken or (number > 1 and key in given):
            number += 1
            key = f"{name} ({number})"
        taken.add(key)
        keys.append(key)
    return keys


def in_order(found: Mapping[str, Entry], tables: Tables) -> list[Entry]:
    """What `found` has for each table, by the table's name.

    Raises:
        InvalidPlanError: it has none for a table, or one for what is no table, or two tables have one name.
    """
    names = tables.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidPlanError(f"Two tables are named {twice!r}, and a plan finds them by name; give each its own.")
    for name in names:
        if name not in found:
            raise InvalidPlanError(f"The plan has no table {name!r}; it has {short_repr(sorted(found))}.")
    known = set(names)
    for name in found:
        if name not in known:
            raise InvalidPlanError(f"The plan has a table {name!r}, but the tables are {short_repr(sorted(names))}.")
    return [found[name] for name in names]


def _plan(
    value: Any,
    sharding: Callable[[Any, int, str], TableSharding],
    tables: Tables,
    topology: Topology,
    groups: Groups = ONE_GROUP,
    check: Callable[[ShardingPlan, Tables, Topology], ShardingPlan] = check_plan,
) -> ShardingPlan:
    if not isinstance(value, list):
        raise InvalidPlanError(f"A plan in JSON is a list with an entry for each table, not {short_repr(value)}.")
    if len(value) != len(tables):
        raise InvalidPlanError(f"The plan has {len(value)} tables, but there are {len(tables)}.")
    shardings = (sharding(entry, table, tables.names[table]) for table, entry in enumerate(value))
    return check(ShardingPlan(tuple(shardings), groups), tables, topology)


def _pair(entry: Any, table: int, name: str) -> TableSharding:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        raise InvalidPlanError(f"Table {table} ({name}) of a plan is a type and its shards, not {short_repr(entry)}.")
    return TableSharding(entry[0], _shards(entry[1], table, name))


def _are_good_pairs(value: Any) -> bool:
    """Whether `_pair` takes every entry of `value`. No line runs for each shard, of which entries have thousands."""
    if not isinstance(value, list) or set(map(type, value)) != {list} or set(map(len, value)) != {2}:
        return False
    kinds, lists = zip(*value, strict=True)
    if set(map(type, kinds)) != {str} or set(map(type, lists)) != {list}:
        return False
    shards = list(chain.from_iterable(lists))
    if set(map(type, shards)) != {list} or set(map(len, shards)) != {5}:
        return False
    numbers = list(chain.from_iterable(shards))
    return set(map(type, numbers)) == {int} and min(numbers) >= _LEAST and max(numbers) <= _MOST


def _good_pair(entry: Any, table: int, name: str) -> TableSharding:
    """`_pair` of an entry that it takes."""
    return TableSharding(entry[0], tuple(starmap(Shard, entry[1])))


def _object(entry: Any, table: int, name: str) -> TableSharding:
    if not isinstance(entry, dict) or set(entry) - {HBM_ROWS} != _KEYS or not isinstance(entry["sharding_type"], str):
        raise InvalidPlanError(
            f"Table {table} ({name}) of a plan in JSON is an object with the keys {', '.join(sorted(_KEYS))}, and "
            f"{HBM_ROWS} with host memory, not {short_repr(entry)}."
        )
    if entry["table"] != name:
        raise InvalidPlanError(
            f"Table {table} of the plan is {short_repr(entry['table'])}, but it should be {name!r}. "
            "A plan lists the tables it was made for, in their order."
        )
    return TableSharding(entry["sharding_type"], _shards(entry["shards"], table, name))


def _shards(shards: Any, table: int, name: str) -> tuple[Shard, ...]:
    if not isinstance(shards, list) or not all(map(_is_shard, shards)):
        raise InvalidPlanError(
            f"The shards of table {table} ({name}) must be lists of five integers from 0 (device, first row, rows, "
            f"first column, columns), not {short_repr(shards)}."
        )
    return tuple(starmap(Shard, shards))


def _is_shard(numbers: Any) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) == 5
        and all(is_integer(each) and _LEAST <= each <= _MOST for each in numbers)
    )


def write_plan(path: str | Path, plan: ShardingPlan, tables: Tables, topology: Topology | None = None) -> None:
    """Write the plan of `tables` to `path`, atomically and with a SHA-256 of its content.

    Args:
        topology: the devices; with host memory, the file says the rows of each shard in HBM (`plan_to_json`).

    Raises:
        InvalidPlanError: it is no plan of so many tables.
        UnwritablePathError: `path` cannot be written.
    """
    content: dict[str, Any] = {"plan": plan_to_json(plan, tables, topology)}
    if plan.groups != ONE_GROUP:
        content[GROUPS] = groups_to_json(plan.groups)
    write_json(Path(path), {"schema": SCHEMA, "sha256": _checksum(content)} | content, indent=None)


def read_plan(path: str | Path, tables: Tables, topology: Topology) -> ShardingPlan:
    """The checked plan in the file at `path`.

    Raises:
        DamagedFileError: the file is missing, is no plan, or was changed after it was written.
        InvalidPlanError: the plan is not valid for these tables and this topology; see `plan_from_json`.
        MemoryExceededError: see `check_plan` and `check_hbm_rows`.
    """
    return plan_of_record(read_json(Path(path)), str(path), tables, topology)


def plan_of_record(value: Any, path: str, tables: Tables, topology: Topology) -> ShardingPlan:
    """The checked plan in the content of a file that `write_plan` wrote; see `read_plan` for the errors.

    Args:
        value: the JSON.
        path: of the file, for messages.
    """
    record = require_fields(require_schema(value, SCHEMA, path), _FILE_KEYS, path, _FILE_OPTIONS)
    if record["sha256"] != _checksum(record):
        raise DamagedFileError(f"{path} was changed or damaged: its plan does not have the SHA-256 that it names.")
    plan = plan_from_json(record["plan"], tables, topology)
    return replace(plan, groups=groups_from_json(record[GROUPS])) if GROUPS in record else plan


def _checksum(record: Mapping[str, Any]) -> str:
    """Of the plan in a file, and of its groups if it has some."""
    content = [record["plan"], record[GROUPS]] if GROUPS in record else record["plan"]
    return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
