"""Files with a plan from elsewhere: ShardGym's JSON of plans and placements, or TorchRec's, told apart by content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import InvalidPlanError, ShardGymError, short_repr
from shard_gym.common.io.files import read_json
from shard_gym.common.text import counted
from shard_gym.hardware.topology import Topology
from shard_gym.interop.torchrec_json import from_torchrec_json, hbm_shares_of_json, whole_in_host
from shard_gym.plans import ShardingPlan, check_plan, plan_from_json, plan_of_placement
from shard_gym.plans.files import GROUPS, HBM_ROWS, groups_from_json, hbm_rows_from_json, in_order, read_plan
from shard_gym.plans.hbm_rows import check_hbm_rows
from shard_gym.plans.plan import DATA_PARALLEL, ONE_GROUP, ROW_WISE, TABLE_WISE, Groups
from shard_gym.tables.pools.pool import SCHEMA as POOL
from shard_gym.tables.tables import Tables
from shard_gym.tasks.groups import topology_of_group

NO_CAP = 2**62  # bytes, more than any plan needs

KNOWN = (
    "Known are the JSON that shard-gym place writes, with 'placement' or 'plan', and that of TorchRec's ShardingPlan."
)


def plan_of_file(path: str | Path, tables: Tables, topology: Topology) -> ShardingPlan:
    """The plan of `tables` in the file at `path`, valid but for memory: it may exceed the caps of `topology`.

    Rows in host memory, which `hbm_rows_of_file` returns, need a topology that has some. A plan for groups of devices
    is for one of the groups of all devices of `topology`.

    The file is JSON, and one of these; nothing is unpickled.

    - 'placement': an object with the device of each table by its name (`shard-gym place --out`).
    - 'plan', a list with an object for each table, in any order (the same; `plan_to_json`, `write_plan`).
    - 'plan', an object with one for each module: TorchRec's (`torchrec_json`, or its own `_serialize`).

    Raises:
        DamagedFileError: the file cannot be read, is no JSON, or is not what its checksum says.
        InvalidPlanError: it has no plan, or none of these tables on so many devices; the message names the file.
    """
    return _read(path, tables, topology)[0]


class Made(NamedTuple):
    """How a plan in a file was made, as far as the file says."""

    cost_model: str  #: the fingerprint of the cost model; empty if it does not say
    index_dedup: bool  #: whether for deduplicated ids (`place --index-dedup`)


def how_made(path: str | Path) -> Made:
    """What the file at `path` says of its plan; raises DamagedFileError if it cannot be read, or is no JSON."""
    value = read_json(Path(path))
    about = value if isinstance(value, dict) else {}
    return Made(str(about.get("cost_model", "")), about.get("index_dedup") is True)


class DevicesOfPlan(NamedTuple):
    """How many devices a plan in a file is for."""

    number: int
    is_known: bool  #: whether the file says so; else these are those up to the last one that has a shard


def devices_of_file(path: str | Path) -> DevicesOfPlan:
    """How many devices the plan in the file at `path` is for; none of a file without a plan.

    ShardGym's files list the host of each device. Without such a list, a table that is row_wise or data_parallel is on
    all devices.

    Raises:
        DamagedFileError: the file cannot be read, or is no JSON.
    """
    value = read_json(Path(path))
    about: Mapping[str, Any] = value if isinstance(value, dict) else {}
    groups, hosts = about.get(GROUPS), about.get("hosts")
    copies = groups[0] if isinstance(groups, list) and groups and is_integer(groups[0]) else 1
    if isinstance(hosts, list) and hosts:  # those of one group
        return DevicesOfPlan(len(hosts) * copies, True)
    found = [(kind, device) for kind, devices in _ranks(about) for device in devices if is_integer(device)]
    on_all = [device for kind, device in found if kind in (ROW_WISE, DATA_PARALLEL)]
    last = max(on_all or [device for _, device in found], default=-1)
    return DevicesOfPlan((last + 1) * copies, bool(on_all))


def _ranks(value: Mapping[str, Any]) -> list[tuple[Any, list[Any]]]:
    """The sharding type of each table of a plan and the devices of its shards, as far as the JSON has them."""
    plan, placement = value.get("plan"), value.get("placement")
    if isinstance(placement, dict):
        return [(TABLE_WISE, [device]) for device in placement.values()]
    if isinstance(plan, dict):
        entries = [entry for module in plan.values() if isinstance(module, dict) for entry in module.values()]
        pairs = [(entry, entry.get("ranks")) for entry in entries if isinstance(entry, dict)]
    else:
        entries = [entry for entry in plan if isinstance(entry, dict)] if isinstance(plan, list) else []
        shards = [(entry, entry.get("shards")) for entry in entries]
        pairs = [
            (entry, [shard[0] for shard in each if isinstance(shard, list) and shard])
            for entry, each in shards
            if isinstance(each, list)
        ]
    return [(entry.get("sharding_type"), ranks) for entry, ranks in pairs if isinstance(ranks, list)]


def hbm_rows_of_file(path: str | Path, tables: Tables, topology: Topology) -> NDArray[np.int64] | None:
    """(S,) int64, the rows in HBM of each shard of the plan in the file at `path`; None if it does not say.

    Raises:
        DamagedFileError, InvalidPlanError: see `plan_of_file`; or it keeps rows in host memory, of which there is none.
    """
    return _read(path, tables, topology)[1]


def whole_in_host_of_file(path: str | Path, tables: Tables) -> NDArray[np.bool_]:
    """(T,) bool, the tables of which a plan of TorchRec in the file at `path` keeps all rows in host memory; none of
    another plan.

    Raises:
        DamagedFileError, InvalidPlanError: see `plan_of_file`.
    """
    value = read_json(Path(path))
    of_torchrec = isinstance(value, dict) and isinstance(value.get("plan"), dict)
    return whole_in_host({"plan": value["plan"]}, tables) if of_torchrec else np.zeros(len(tables), np.bool_)


def _read(path: str | Path, tables: Tables, topology: Topology) -> tuple[ShardingPlan, NDArray[np.int64] | None]:
    value = read_json(Path(path))
    if not isinstance(value, dict) or not ("placement" in value or "plan" in value):
        of_tables = isinstance(value, dict) and value.get("schema") == POOL
        raise InvalidPlanError(f"{path} has {'tables, but ' * of_tables}no plan. {KNOWN}")
    if "placement" in value and "plan" in value:
        raise InvalidPlanError(f"{path} has both 'placement' and 'plan', which may differ. Remove one of them.")
    roomy = topology.with_caps(NO_CAP)
    if roomy.host is not None:
        roomy = replace(roomy, host=replace(roomy.host, hbm_bytes=NO_CAP))
    groups, roomy = _of_group(value, roomy, path) if GROUPS in value else (ONE_GROUP, roomy)
    if "schema" in value or "sha256" in value:  # of a file with a checksum, which damage to either would hide
        plan = read_plan(path, tables, roomy)
        return plan, hbm_rows_from_json(value["plan"], plan, tables, roomy)
    try:
        plan = replace(_plan_of(value, tables, roomy), groups=groups)
        return plan, _hbm_rows_of(value, plan, tables, roomy)
    except ShardGymError as error:
        raise InvalidPlanError(
            f"{path} is no plan of these tables on {counted(roomy.num_devices, 'device')}. {error}"
        ) from error


def _of_group(value: Mapping[str, Any], topology: Topology, path: str | Path) -> tuple[Groups, Topology]:
    """The groups that a plan is for, and the devices of one of them."""
    devices = counted(topology.num_devices, "device")
    try:
        groups = groups_from_json(value[GROUPS])
        if topology.num_devices % groups.count:
            raise InvalidPlanError(f"Its {groups.count} groups do not divide them.")
        if groups == ONE_GROUP:
            return groups, topology
        return groups, replace(topology_of_group(groups, replace(topology, host=None), 1), replicas=None)
    except ShardGymError as error:
        raise InvalidPlanError(f"{path} is no plan for groups of {devices}. {error}") from error


def _plan_of(value: Mapping[str, Any], tables: Tables, topology: Topology) -> ShardingPlan:
    if "placement" in value:
        return _plan_of_devices(value["placement"], tables, topology)
    plan = value["plan"]
    if isinstance(plan, dict):
        return from_torchrec_json({"plan": plan}, tables, topology)
    return plan_from_json(in_order(_by_name(plan), tables), tables, topology)


def _hbm_rows_of(
    value: Mapping[str, Any], plan: ShardingPlan, tables: Tables, topology: Topology
) -> NDArray[np.int64] | None:
    if "placement" in value:
        rows = value.get(HBM_ROWS)
        if rows is None:
            return None
        if not isinstance(rows, dict) or not all(map(is_integer, rows.values())):
            raise InvalidPlanError(
                f"Its {HBM_ROWS!r} must be an object with a number of rows of each table, not {short_repr(rows)}."
            )
        return check_hbm_rows(in_order(rows, tables), plan, tables, topology)
    if isinstance(value["plan"], dict):
        shares = hbm_shares_of_json(value, tables)
        shards = plan.shard_arrays()
        return None if (shares == 1).all() else np.rint(shares[shards[:, 0]] * shards[:, 3]).astype(np.int64)
    return hbm_rows_from_json(in_order(_by_name(value["plan"]), tables), plan, tables, topology)


def _plan_of_devices(devices: Any, tables: Tables, topology: Topology) -> ShardingPlan:
    if not isinstance(devices, dict):
        raise InvalidPlanError(
            f"Its 'placement' must be an object with a device for each table, not {short_repr(devices)}."
        )
    for name, device in devices.items():
        if not is_integer(device) or not 0 <= device < topology.num_devices:
            raise InvalidPlanError(
                f"Table {short_repr(name)} is on device {short_repr(device)}; the devices are 0 to "
                f"{topology.num_devices - 1}."
            )
    return check_plan(plan_of_placement(in_order(devices, tables), tables), tables, topology)


def _by_name(entries: Any) -> dict[str, Any]:
    if not isinstance(entries, list):
        raise InvalidPlanError(f"Its 'plan' must be a list of tables or an object, not {short_repr(entries)}.")
    found: dict[str, Any] = {}
    for entry in entries:
        name = entry.get("table") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise InvalidPlanError(f"An entry of its 'plan' has no name of a table as 'table': {short_repr(entry)}.")
        if name in found:
            raise InvalidPlanError(f"It has table {short_repr(name)} twice.")
        found[name] = entry
    return found
