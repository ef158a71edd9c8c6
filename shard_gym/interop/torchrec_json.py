"""Sharding plans as the JSON of TorchRec's, in and out; needs no TorchRec.

The JSON is what `ShardingPlan._serialize` of TorchRec 1.8 makes (torchrec/distributed/types.py); TorchRec has no loader
for it. Device d is rank d, on host d // devices_per_host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer, is_positive
from shard_gym.common.errors import InvalidPlanError, MemoryExceededError, short_repr
from shard_gym.common.text import format_bytes
from shard_gym.hardware import Topology
from shard_gym.plans import Shard, ShardingPlan, TableSharding, check_plan, data_parallel
from shard_gym.plans.constraints import CACHED_KERNEL, IN_HOST_KERNEL
from shard_gym.plans.files import in_order
from shard_gym.plans.hbm_rows import split_bytes, split_of_plan
from shard_gym.plans.plan import DATA_PARALLEL, PLAN_TYPES
from shard_gym.tables import Tables
from shard_gym.tables.tables import CACHED as CACHED_ROWS

IN_HBM, IN_HOST, CACHED = ("fused", "dense"), IN_HOST_KERNEL, CACHED_KERNEL
"""Compute kernels: all rows in HBM; all in host memory; all in host memory, and a cache in HBM for some of them."""

DEFAULT_LOAD_FACTOR = 0.2
"""Of a cache whose plan says none (FBGEMM v1.8.0, `SplitTableBatchedEmbeddingBagsCodegen`, cache_load_factor)."""

_KEYS = {"sharding_type", "compute_kernel", "ranks"}
_PLACEMENT = re.compile(r"rank:([0-9]{1,9})/.+")


def torchrec_json(
    plan: ShardingPlan,
    tables: Tables,
    topology: Topology,
    modules: str | Mapping[str, str],
    device_type: str | None = None,
) -> dict[str, Any]:
    """The plan as TorchRec's JSON; needs no TorchRec.

    With host memory, a table with some rows in HBM is `fused_uvm_caching`, and its `cache_params` have the share of its
    rows in HBM as `load_factor`, over all of its shards, also where that is 1 or, but for one row, 0, of tables that
    must have a cache (`Tables.rows_in`); one with none is `fused_uvm`. TorchRec's own JSON has no `cache_params`.

    Args:
        tables: their names are those of the model.
        modules: path of the collection of every table in the module that will be wrapped, by the table's name; or one
            for all.
        device_type: "cuda" or "cpu"; None, the default, is that of the topology's devices.

    Raises:
        InvalidPlanError, MemoryExceededError: the plan is not valid (`check_plan`), or a table has no module; or it has
            rows of replicas in host memory, or more tables than it holds, as a table with a cache is there whole.
    """
    if device_type is None:
        device_type = topology.device.device_type
    if device_type not in ("cuda", "cpu"):
        raise InvalidPlanError(f"device_type must be 'cuda', 'cpu' or None, not {short_repr(device_type)}.")
    paths = modules.values() if isinstance(modules, Mapping) else [modules]
    if not all(isinstance(path, str) for path in paths):
        raise InvalidPlanError(f"modules is a path, or the path of each table by its name, not {short_repr(modules)}.")
    names = [
        "cpu" if device_type == "cpu" else f"cuda:{rank % topology.devices_per_host}"
        for rank in range(topology.num_devices)
    ]
    content: dict[str, dict[str, Any]] = {}
    shares = _hbm_shares(check_plan(plan, tables, topology), tables, topology)
    if device_type == "cpu" and min(shares) < 1:
        raise InvalidPlanError("A plan with rows in host memory is for GPUs; device_type must be 'cuda'.")
    cached = tables.are_in(CACHED_ROWS).tolist()
    for name, sharding, share, has_cache in zip(tables.names, plan.tables, shares, cached, strict=True):
        path = modules if isinstance(modules, str) else modules.get(name)
        if path is None:
            raise InvalidPlanError(
                f"Table {name!r} is not in the model, whose tables are {short_repr(sorted(modules))}."
            )
        replicated = sharding.sharding_type == DATA_PARALLEL
        entry: dict[str, Any] = {
            "sharding_type": sharding.sharding_type,
            "compute_kernel": "dense" if replicated else _kernel(share, has_cache),
            "ranks": sharding.devices,
        }
        if entry["compute_kernel"] == CACHED:
            entry["cache_params"] = {"load_factor": share}
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


def _kernel(share: float, has_cache: bool) -> str:
    if has_cache or 0 < share < 1:
        return CACHED
    return "fused" if share == 1 else IN_HOST


def _hbm_shares(plan: ShardingPlan, tables: Tables, topology: Topology) -> list[float]:
    """The share of the rows of each table in HBM, of a plan that TorchRec can train."""
    if topology.host is None:
        return [1.0] * len(tables)
    shards, in_hbm = plan.shard_arrays(), split_of_plan(plan, tables, topology).hbm_rows
    table, device, _, rows, _, columns = shards.T
    cells = np.bincount(table, rows * columns, len(tables))
    shares = np.bincount(table, in_hbm * columns, len(tables)) / cells
    shares[np.bincount(table, in_hbm < rows, len(tables)) == 0] = 1.0  # whatever the division rounds
    cached = tables.are_in(CACHED_ROWS)
    shares[cached] = np.maximum(shares[cached], 1.0 / tables.num_embeddings[cached])
    in_host = (shares < 1) | cached
    away = in_host[table]
    for each in np.flatnonzero(in_host).tolist():
        if plan.tables[each].sharding_type == DATA_PARALLEL:
            raise InvalidPlanError(
                f"Table {tables.names[each]!r} is data_parallel with rows in host memory; TorchRec keeps replicas in "
                "HBM. Plan without replicas of it."
            )
    size = rows * columns * split_bytes(tables.workload.select(table))
    held = np.bincount(topology.hosts[device[away]], size[away], topology.num_hosts)
    of_host = np.maximum(topology.memory_cap_bytes - topology.host.hbm_bytes, 0)
    has = np.bincount(topology.hosts, of_host, topology.num_hosts)
    if topology.host.total_bytes is not None:
        has = np.full(topology.num_hosts, topology.host.total_bytes)
    if (held > has).any():
        host = int((held - has).argmax())
        raise MemoryExceededError(
            f"TorchRec keeps all rows of a table with a cache in host memory, here {format_bytes(int(held[host]))} on "
            f"host {host}, which has {format_bytes(int(has[host]))} for tables. Give more hosts, or more host memory."
        )
    return [float(share) for share in shares]


def hbm_shares_of_json(value: Any, tables: Tables) -> NDArray[np.float64]:
    """(T,) float64, the share of the rows of each table that a plan in TorchRec's JSON keeps in HBM.

    It is 1 for `fused` and `dense`, 0 for `fused_uvm`, and for `fused_uvm_caching` the load factor of its cache, or
    `DEFAULT_LOAD_FACTOR`. FBGEMM has one cache for all tables of a device that have one, whose size is the mean of
    their load factors, by rows; so the shares hold for them together.

    Raises:
        InvalidPlanError: see `from_torchrec_json`.
    """
    return np.array([_hbm_share(*pair) for pair in zip(tables.names, _by_table(value, tables), strict=True)])


def whole_in_host(value: Any, tables: Tables) -> NDArray[np.bool_]:
    """(T,) bool, the tables of which TorchRec keeps all rows in host memory, whatever a cache in HBM holds besides.

    Raises:
        InvalidPlanError: see `from_torchrec_json`.
    """
    return np.array([entry["compute_kernel"] in (IN_HOST, CACHED) for entry in _by_table(value, tables)], np.bool_)


def _hbm_share(name: str, entry: Mapping[str, Any]) -> float:
    kernel, params = entry["compute_kernel"], entry.get("cache_params")
    if kernel != CACHED:
        if kernel not in (*IN_HBM, IN_HOST):
            raise InvalidPlanError(
                f"Table {name!r} has the compute kernel {short_repr(kernel)}; ShardGym knows "
                f"{', '.join((*IN_HBM, IN_HOST, CACHED))}."
            )
        return 0.0 if kernel == IN_HOST else 1.0
    if params is not None and not isinstance(params, dict):
        raise InvalidPlanError(f"cache_params of table {name!r} must be an object, not {short_repr(params)}.")
    factor = (params or {}).get("load_factor")
    if factor is None:
        return DEFAULT_LOAD_FACTOR
    if not is_positive(factor) or factor > 1:
        raise InvalidPlanError(
            f"The load_factor of table {name!r} must be a number above 0, and 1 at most, not {short_repr(factor)}."
        )
    return float(factor)


def from_torchrec_json(value: Any, tables: Tables, topology: Topology) -> ShardingPlan:
    """The checked plan of `tables` on `topology` in TorchRec's JSON (`torchrec_json`, or TorchRec's own).

    Raises:
        InvalidPlanError, MemoryExceededError: `value` is no such JSON, a table is missing or is none of `tables`, its
            sharding type is none of `PLAN_TYPES`, its kernel is not known, or keeps rows in host memory where there
            is none (`hbm_shares_of_json` says how many), or the plan is not valid (`check_plan`).
    """
    entries = _by_table(value, tables)
    if topology.host is None:
        for name, share in zip(tables.names, hbm_shares_of_json(value, tables), strict=True):
            if share < 1:
                raise InvalidPlanError(
                    f"Table {name!r} has rows in host memory, and the devices have none for tables. Give a topology "
                    "with host memory, or a plan whose compute kernels are fused or dense."
                )
    shardings = [_sharding(entry, tables, table, topology) for table, entry in enumerate(entries)]
    return check_plan(ShardingPlan(tuple(shardings)), tables, topology)


def _by_table(value: Any, tables: Tables) -> list[dict[str, Any]]:
    """The entry of each table in TorchRec's JSON."""
    of_table: dict[str, dict[str, Any]] = {}
    for path, module in checked_json(value).items():
        for name, entry in module.items():
            if name in of_table:
                raise InvalidPlanError(f"The plan has a table {name!r} twice, one in {path!r}; give each its own name.")
            of_table[name] = entry
    return in_order(of_table, tables)


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
    name, kind, ranks = tables.names[table], entry["sharding_type"], entry["ranks"]
    if kind not in PLAN_TYPES:
        raise InvalidPlanError(
            f"Table {name!r} is {short_repr(kind)}, which ShardGym does not know; known are {', '.join(PLAN_TYPES)}."
        )
    _hbm_share(name, entry)
    if kind == DATA_PARALLEL:
        if sorted(ranks) != list(range(topology.num_devices)):
            raise InvalidPlanError(
                f"Table {name!r} is data_parallel on ranks {short_repr(ranks)}, but a replica is on each of the "
                f"{topology.num_devices} devices."
            )
        whole = data_parallel(tables, table, topology).shards
        return TableSharding(kind, tuple(whole[rank] for rank in ranks))
    placed = [rank for shard in entry["shards"] if (rank := _rank(shard["placement"])) is not None]
    if placed != ranks:  # TorchRec takes the ranks for those of the shards, one by one
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
