"""Sharding plans as the JSON of TorchRec's, in and out; needs no TorchRec.

The JSON is what `ShardingPlan._serialize` of TorchRec 1.8 makes (torchrec/distributed/types.py); TorchRec has no loader
for it. Device d is rank d, on host d // devices_per_host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shard_gym.checks import is_integer
from shard_gym.errors import InvalidPlanError, short_repr
from shard_gym.sharding import SHARDING_TYPES, Shard, ShardingPlan, TableSharding, check_plan, data_parallel
from shard_gym.sharding.files import in_order
from shard_gym.sharding.plan import DATA_PARALLEL
from shard_gym.tables import Tables
from shard_gym.topology import Topology

KERNELS = ("fused", "dense")
"""Compute kernels with the weights in the memory of the device."""

_KEYS = {"sharding_type", "compute_kernel", "ranks"}
_PLACEMENT = re.compile(r"rank:([0-9]{1,9})/.+")


def torchrec_json(
    plan: ShardingPlan, tables: Tables, topology: Topology, modules: str | Mapping[str, str], device_type: str = "cuda"
) -> dict[str, Any]:
    """The plan as TorchRec's JSON; needs no TorchRec.

    Args:
        tables: their names are those of the model.
        modules: path of the collection of every table in the module that will be wrapped, by the table's name; or one
            for all.
        device_type: "cuda" or "cpu".

    Raises:
        InvalidPlanError, MemoryExceededError: the plan is not valid (`check_plan`), or a table has no module.
    """
    if device_type not in ("cuda", "cpu"):
        raise InvalidPlanError(f"device_type must be 'cuda' or 'cpu', not {short_repr(device_type)}.")
    paths = modules.values() if isinstance(modules, Mapping) else [modules]
    if not all(isinstance(path, str) for path in paths):
        raise InvalidPlanError(f"modules is a path, or the path of each table by its name, not {short_repr(modules)}.")
    names = [
        "cpu" if device_type == "cpu" else f"cuda:{rank % topology.devices_per_host}"
        for rank in range(topology.num_devices)
    ]
    content: dict[str, dict[str, Any]] = {}
    for name, sharding in zip(tables.names, check_plan(plan, tables, topology).tables, strict=True):
        path = modules if isinstance(modules, str) else modules.get(name)
        if path is None:
            raise InvalidPlanError(
                f"Table {name!r} is not in the model, whose tables are {short_repr(sorted(modules))}."
            )
        replicated = sharding.sharding_type == DATA_PARALLEL
        entry: dict[str, Any] = {
            "sharding_type": sharding.sharding_type,
            "compute_kernel": "dense" if replicated else "fused",
            "ranks": sharding.devices,
        }
        if not replicated:
            entry["shards"] = [
                {
                    "shard_offsets": [shard.first_row, shard.first_column],
                    "shard_sizes": [shard.num_rows, shard.num_columns],
                    "placement": f"rank:{shard.device}/{names[shard.device]}",
                }
                for shard in sharding.shards
            ]
        if name in content.setdefault(path, {}):
            raise InvalidPlanError(f"Two tables are named {name!r}, by which TorchRec finds tables; give each its own.")
        content[path][name] = entry
    return {"plan": content}


def from_torchrec_json(value: Any, tables: Tables, topology: Topology) -> ShardingPlan:
    """The checked plan of `tables` on `topology` in TorchRec's JSON (`torchrec_json`, or TorchRec's own).

    Raises:
        InvalidPlanError, MemoryExceededError: `value` is no such JSON, a table is missing or is none of `tables`, its
            sharding type is none of `SHARDING_TYPES`, its kernel keeps its weights elsewhere than on the device, or the
            plan is not valid (`check_plan`).
    """
    of_table: dict[str, dict[str, Any]] = {}
    for path, module in checked_json(value).items():
        for name, entry in module.items():
            if name in of_table:
                raise InvalidPlanError(f"The plan has a table {name!r} twice, one in {path!r}; give each its own name.")
            of_table[name] = entry
    shardings = [_sharding(entry, tables, table, topology) for table, entry in enumerate(in_order(of_table, tables))]
    return check_plan(ShardingPlan(tuple(shardings)), tables, topology)


def checked_json(value: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """The modules of a plan in TorchRec's JSON: by path, the entries of their tables by name.

    Raises:
        InvalidPlanError: `value` is no such JSON.
    """
    modules = value.get("plan") if isinstance(value, dict) else None
    if not isinstance(modules, dict) or not all(isinstance(module, dict) for module in modules.values()):
        raise InvalidPlanError(
            f"A plan of TorchRec in JSON has 'plan', and in it an object for each module, not {short_repr(value)}."
        )
    for module in modules.values():
        for name, entry in module.items():
            _require_entry(name, entry)
    return modules


def _require_entry(name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or not set(entry) >= _KEYS:
        raise InvalidPlanError(f"Table {name!r} of a plan in JSON must have {sorted(_KEYS)}, not {short_repr(entry)}.")
    given, ranks = entry.get("shards", []), entry["ranks"]
    replicated = entry["sharding_type"] == DATA_PARALLEL
    valid = isinstance(given, list) and isinstance(ranks, list) and all(map(is_integer, ranks))
    if not valid or not (replicated or given) or not all(map(_is_shard, given)):
        raise InvalidPlanError(
            f"Table {name!r} of a plan in JSON needs ranks and, unless it is data_parallel, shards: each with "
            "two shard_offsets, two shard_sizes and a placement such as 'rank:0/cuda:0'."
        )


def _is_shard(shard: Any) -> bool:
    return (
        isinstance(shard, dict)
        and _rank(shard.get("placement")) is not None
        and all(
            isinstance(pair := shard.get(key), list) and len(pair) == 2 and all(map(is_integer, pair))
            for key in ("shard_offsets", "shard_sizes")
        )
    )


def _rank(placement: Any) -> int | None:
    found = _PLACEMENT.fullmatch(placement) if isinstance(placement, str) else None
    return None if found is None else int(found[1])


def _sharding(entry: Mapping[str, Any], tables: Tables, table: int, topology: Topology) -> TableSharding:
    name, kind, kernel, ranks = tables.names[table], entry["sharding_type"], entry["compute_kernel"], entry["ranks"]
    if kind not in SHARDING_TYPES:
        raise InvalidPlanError(
            f"Table {name!r} is {short_repr(kind)}, which ShardGym does not know; known are "
            f"{', '.join(SHARDING_TYPES)}."
        )
    if kernel not in KERNELS:
        raise InvalidPlanError(
            f"Table {name!r} has the compute kernel {short_repr(kernel)}; ShardGym knows those with the weights in the "
            f"memory of the device: {', '.join(KERNELS)}."
        )
    if kind == DATA_PARALLEL:
        if sorted(ranks) != list(range(topology.num_devices)):
            raise InvalidPlanError(
                f"Table {name!r} is data_parallel on ranks {short_repr(ranks)}, but a replica is on each of the "
                f"{topology.num_devices} devices."
            )
        return data_parallel(tables, table, topology)
    placed = [rank for shard in entry["shards"] if (rank := _rank(shard["placement"])) is not None]
    if set(placed) != set(ranks):
        raise InvalidPlanError(
            f"Table {name!r} has ranks {short_repr(ranks)}, but its shards are on ranks {short_repr(placed)}."
        )
    return TableSharding(
        kind,
        tuple(
            Shard(rank, row, rows, column, columns)
            for rank, shard in zip(placed, entry["shards"], strict=True)
            for (row, column), (rows, columns) in [(shard["shard_offsets"], shard["shard_sizes"])]
        ),
    )
