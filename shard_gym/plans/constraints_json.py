"""Constraints in JSON: what a user writes, with TorchRec's names, and the numbers in files of tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import as_array, holds_integers, is_integer, is_one_of
from shard_gym.common.errors import (
    InvalidConstraintsError,
    UnknownNameError,
    short_repr,
    unknown_name,
)
from shard_gym.common.io.files import read_bytes
from shard_gym.common.io.parsing import parse_json
from shard_gym.common.text import counted, listed
from shard_gym.plans.constraints import CACHED_KERNEL, IN_HOST_KERNEL, Constraints
from shard_gym.plans.plan import DATA_PARALLEL, PLAN_TYPES, SHARDING_TYPES
from shard_gym.tables import Tables

_DP = SHARDING_TYPES.index(DATA_PARALLEL)

DENSE = "dense"
HBM_KERNELS = (DENSE, "fused", "quant")
"""TorchRec's compute kernels of tables that are in the memory of their device (torchrec/distributed/embedding_types.py,
`EmbeddingComputeKernel`): a replica is dense, trained tables are fused, served ones quant."""

UVM_KERNELS, CACHING_KERNELS = (IN_HOST_KERNEL, "quant_uvm"), (CACHED_KERNEL, "quant_uvm_caching")
HOST_KERNELS = (*UVM_KERNELS, *CACHING_KERNELS)
"""Those of tables with rows in host memory, without a cache in HBM and with one."""

_OF_TABLE: Mapping[str, str] = {
    "sharding_types": "a list of sharding types, such as ['table_wise', 'row_wise']",
    "min_partition": "an integer, the fewest columns of a column shard",
    "devices": "a list of device numbers, such as [0, 1]",
    "compute_kernels": "a list of TorchRec's compute kernels, such as ['fused']",
}
_KEYS = ("tables", "together", "apart")


def constraints_from_json(record: Any, tables: Tables, num_devices: int, *, host_memory: bool = False) -> Constraints:
    """The constraints in a JSON value, an object of three keys that has TorchRec's names (`ParameterConstraints`).

    - "tables": {"user": {"sharding_types": ["row_wise"], "min_partition": 32}, "ad_*": {"devices": [0, 1]}}
    - "together": [["a", "b"]]
    - "apart": [["c", "d", "e"]]

    Every key may be left out. A name with * or ? means all tables that match, but a table's own name comes before a
    pattern, and of several patterns the last one that says something counts.

    Args:
        record: the value.
        tables: whose names it has.
        num_devices: D.
        host_memory: whether rows may be in host memory.

    Raises:
        InvalidConstraintsError: it has another form, or asks for what ShardGym cannot do.
        UnknownNameError: no table has a name, or matches a pattern.
    """
    if not isinstance(record, dict) or not set(record) <= set(_KEYS):
        wrong = [key for key in record if key not in _KEYS] if isinstance(record, dict) else record
        raise InvalidConstraintsError(
            f"Constraints are an object with the keys {', '.join(_KEYS)}, each of which may be left out; "
            f"got {short_repr(wrong)}."
        )
    of_tables = record.get("tables", {})
    if not isinstance(of_tables, dict):
        raise InvalidConstraintsError(f"tables must map names to constraints, not be {short_repr(of_tables)}.")
    given = _of_each_table(of_tables, tables)
    types = np.ones((len(tables), len(SHARDING_TYPES)), np.bool_)
    least, devices = np.zeros(len(tables), np.int64), np.ones((len(tables), num_devices), np.bool_)
    kept: dict[str, Any] = {"in_hbm": [], "in_host": [], "cached": []}
    for table, own in given.items():
        name = tables.names[table]
        if "sharding_types" in own:
            types[table] = _types(name, own["sharding_types"])
        if "min_partition" in own:
            least[table] = _count(name, own["min_partition"])
        if "devices" in own:
            devices[table] = _devices(name, own["devices"], num_devices)
        if "compute_kernels" in own:
            kernels = _kernels(name, own["compute_kernels"], host_memory, types[table])
            if where := _kept_in(kernels):
                kept[where].append(table)
            # The kernel of replicas is dense, and that of all others is not.
            replicas = np.arange(len(SHARDING_TYPES)) == _DP
            types[table] &= replicas if kernels == {DENSE} else ~replicas | (DENSE in kernels)
            if not types[table].any():
                raise InvalidConstraintsError(
                    f"{name!r} may have the kernel {listed(sorted(kernels))} only, and may be "
                    f"{listed(own['sharding_types'])} only; the kernel of data_parallel is dense, and that of all "
                    "others is not. Allow another kernel or sharding type."
                )
    sets = {key: _sets_of(key, record.get(key, []), tables) for key in ("together", "apart")}
    for members, others in product(sets["together"], sets["apart"]):
        if len(both := [tables.names[table] for table in members if table in others]) > 1:
            raise InvalidConstraintsError(f"Tables {both[0]!r} and {both[1]!r} cannot be both together and apart.")
    return Constraints(types, least, devices, sets["together"], sets["apart"], **kept)


def _of_each_table(of_tables: Mapping[Any, Any], tables: Tables) -> dict[int, dict[str, Any]]:
    """What is given for each table, by number: each key by its own name, or else by the last pattern that matches."""
    given: dict[int, dict[str, Any]] = {}
    exact = [name for name in of_tables if name in tables.names]
    for name in [*(each for each in of_tables if each not in tables.names), *exact]:
        own = of_tables[name]
        if not isinstance(own, dict) or not set(own) <= set(_OF_TABLE):
            unknown = [key for key in own if key not in _OF_TABLE] if isinstance(own, dict) else own
            raise InvalidConstraintsError(
                f"A table's constraints have the keys {', '.join(_OF_TABLE)}; {short_repr(name)} has "
                f"{short_repr(unknown)}."
            )
        for table in _named(name, tables):
            given.setdefault(table, {}).update(own)
    return given


def _sets_of(key: str, given: Any, tables: Tables) -> tuple[tuple[int, ...], ...]:
    """Sets of tables by their names, of which each has two or more."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, (list, tuple)) for each in given):
        raise InvalidConstraintsError(f"{key} must be a list of lists of names, not {short_repr(given)}.")
    found, seen = [], set[int]()
    for each in given:
        members = tuple(dict.fromkeys(table for name in each for table in _named(name, tables)))
        if len(members) < 2:
            raise InvalidConstraintsError(
                f"Each set in {key} names two or more different tables; {short_repr(list(each))} does not."
            )
        if key == "together" and (twice := seen & {*members}):
            raise InvalidConstraintsError(
                f"Table {tables.names[min(twice)]!r} is in two sets of together; make one set of all tables that stay "
                "together."
            )
        seen |= {*members}
        found.append(members)
    return tuple(found)


def as_constraints(given: Any, tables: Tables, num_devices: int, *, host_memory: bool = False) -> Constraints:
    """Constraints as a user has them: `Constraints`, the path of a file, or what a file holds.

    Raises:
        DamagedFileError, InvalidConstraintsError, UnknownNameError: see `read_constraints`; or they are of other tables
            or devices.
    """
    if isinstance(given, Constraints):
        if (len(given), given.num_devices) != (len(tables), num_devices):
            raise InvalidConstraintsError(
                f"The constraints are of {counted(len(given), 'table')} and {counted(given.num_devices, 'device')}, "
                f"not of {len(tables)} and {num_devices}."
            )
        return given
    if isinstance(given, (str, Path)):
        return read_constraints(given, tables, num_devices, host_memory=host_memory)
    return constraints_from_json(given, tables, num_devices, host_memory=host_memory)


def read_constraints(path: str | Path, tables: Tables, num_devices: int, *, host_memory: bool = False) -> Constraints:
    """The constraints in a JSON file; see `constraints_from_json`.

    Raises:
        DamagedFileError: the file is no JSON.
        InvalidConstraintsError, UnknownNameError: see `constraints_from_json`.
    """
    record = parse_json(read_bytes(Path(path)), str(path))
    try:
        return constraints_from_json(record, tables, num_devices, host_memory=host_memory)
    except (InvalidConstraintsError, UnknownNameError) as error:
        raise type(error)(f"{path}: {error}") from error


def _named(name: Any, tables: Tables) -> list[int]:
    """The tables with a name, or that match a pattern."""
    if not isinstance(name, str):
        raise InvalidConstraintsError(f"A table is named by a text, not by {short_repr(name)}.")
    found = [number for number, own in enumerate(tables.names) if own == name]
    if not found and set(name) & set("*?"):
        pattern = name.replace("[", "[[]")  # only * and ? are special
        found = [number for number, own in enumerate(tables.names) if fnmatchcase(own, pattern)]
    if not found:
        listing = None if len(tables) <= 20 else f"{counted(len(tables), 'table')}, such as {tables.names[0]!r}"
        raise unknown_name("table", name, tables.names, listing or "")
    return found


def _list_of(name: str, key: str, given: Any) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise InvalidConstraintsError(f"{key} of {name!r} must be {_OF_TABLE[key]}, not {short_repr(given)}.")
    return given


def _types(name: str, given: Any) -> NDArray[np.bool_]:
    for kind in _list_of(name, "sharding_types", given):
        if not is_one_of(kind, PLAN_TYPES):
            raise unknown_name(f"sharding type of {name!r}", kind, PLAN_TYPES)
    allowed = np.isin(SHARDING_TYPES, given)
    if not allowed.any():
        raise InvalidConstraintsError(
            f"{name!r} may be {listed(given)} only, which no search of ShardGym looks for; allow one of "
            f"{', '.join(SHARDING_TYPES)}, too."
        )
    return np.asarray(allowed)


def _count(name: str, given: Any) -> int:
    if not is_integer(given) or not 0 <= given <= 2**31:
        raise InvalidConstraintsError(
            f"min_partition of {name!r} must be {_OF_TABLE['min_partition']}, not {short_repr(given)}."
        )
    return int(given)


def _devices(name: str, given: Any, num_devices: int) -> NDArray[np.bool_]:
    chosen = as_array("devices", _list_of(name, "devices", given), InvalidConstraintsError)
    if (
        not all(map(is_integer, given))
        or chosen.ndim != 1
        or not holds_integers(chosen)
        or chosen.min() < 0
        or chosen.max() >= num_devices
    ):
        raise InvalidConstraintsError(
            f"devices of {name!r} must be numbers from 0 to {num_devices - 1}, not {short_repr(given)}."
        )
    return np.isin(np.arange(num_devices), chosen)


def _kernels(name: str, given: Any, host_memory: bool, types: NDArray[np.bool_]) -> set[str]:
    """The kernels of a table of (5,) sharding `types`, if a plan can have one; refuses others.

    Of dense and kernels of host memory alone one side is left, as rows of a replica are in HBM: the latter where there
    is host memory and the table may be more than data_parallel.
    """
    kernels: Collection[str] = _list_of(name, "compute_kernels", given)
    for kernel in kernels:
        if not is_one_of(kernel, (*HBM_KERNELS, *HOST_KERNELS)):
            raise unknown_name(
                f"compute kernel of {name!r} that ShardGym models", kernel, (*HBM_KERNELS, *HOST_KERNELS)
            )
    found = set(kernels)
    if DENSE in found and found & set(HOST_KERNELS) and not found & set(HBM_KERNELS[1:]):
        sharded = bool(np.delete(types, _DP).any())
        found = {DENSE} if types[_DP] and not (host_memory and sharded) else found - {DENSE}
    if not found & set(HBM_KERNELS) and not host_memory:
        raise InvalidConstraintsError(
            f"{name!r} may have the kernel {listed(sorted(found))} only, which keeps rows in host memory, and "
            f"these devices have none; allow {' or '.join(HBM_KERNELS[1:])}, or give the devices host memory."
        )
    return found


def _kept_in(kernels: set[str]) -> str:
    """The set of `Constraints` of a table that may have these kernels; "" for none, if its rows may be anywhere."""
    if not kernels & set(HOST_KERNELS):
        return "in_hbm"
    if kernels & set(HBM_KERNELS):
        return ""
    return "cached" if kernels & set(CACHING_KERNELS) else "in_host"


def constraints_from_numbers(record: Any) -> Constraints:
    """The constraints of `Constraints.to_numbers`.

    Raises:
        InvalidConstraintsError: it is no such record, or has impossible values.
    """
    keys = {"sharding_types", "min_columns", "devices", "together", "apart"}
    kept = ("in_hbm", "in_host", "cached")
    if not isinstance(record, dict) or set(record) - {*kept} != keys:
        raise InvalidConstraintsError(f"Constraints in a file have the fields of the class, not {short_repr(record)}.")
    truths = {}
    for name in ("sharding_types", "devices"):
        value = record[name]
        rows = value if isinstance(value, list) else [value]
        if not all(isinstance(row, list) and all(is_integer(each) and each in (0, 1) for each in row) for row in rows):
            raise InvalidConstraintsError(f"{name} must be lists of 0 and 1, not {short_repr(value)}.")
        truths[name] = as_array(name, value, InvalidConstraintsError).astype(np.bool_)
    least = as_array("min_columns", record["min_columns"], InvalidConstraintsError)
    for name in kept:
        if not isinstance(record.get(name, []), list):
            raise InvalidConstraintsError(f"{name} must be a list of table numbers, not {short_repr(record[name])}.")
    own: dict[str, Any] = {name: record[name] for name in kept if name in record}
    sets = record["together"], record["apart"]
    return Constraints(truths["sharding_types"], least, truths["devices"], *sets, **own)
