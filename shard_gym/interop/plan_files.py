"""Files with a plan from elsewhere: ShardGym's JSON of plans and placements, or TorchRec's, told apart by content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import InvalidPlanError, ShardGymError, short_repr
from shard_gym.common.io.files import read_json
from shard_gym.common.text import counted
from shard_gym.hardware import Topology
from shard_gym.interop.torchrec_json import from_torchrec_json, hbm_shares_of_json, whole_in_host
from shard_gym.plans import ShardingPlan, check_plan, plan_from_json, plan_of_placement
from shard_gym.plans.files import GROUPS, HBM_ROWS, groups_from_json, hbm_rows_from_json, in_order, plan_of_record
from shard_gym.plans.hbm_rows import check_hbm_rows
from shard_gym.plans.plan import DATA_PARALLEL, ONE_GROUP, ROW_WISE, TABLE_WISE, Groups
from shard_gym.tables import Tables
from shard_gym.tables.pools.pool import SCHEMA as POOL
from shard_gym.tasks.groups import topology_of_group

NO_CAP = 2**62  # bytes, more than any plan needs

KNOWN = (
    "Known are the JSON that shard-gym place writes, with 'placement' or 'plan', and that of TorchRec's ShardingPlan."
)


class Made(NamedTuple):
    """How a plan in a file was made, as far as the file says."""

    cost_model: str  #: the fingerprint of the cost model; empty if it does not say
    index_dedup: bool  #: whether for deduplicated ids (`place --index-dedup`)


class DevicesOfPlan(NamedTuple):
    """How many devices a plan is for."""

    number: int
    is_known: bool  #: whether it says so; else these are those up to the last one that has a shard


class FoundPlan(NamedTuple):
    """A plan of some tables on some devices, checked but for memory."""

    plan: ShardingPlan
    hbm_rows: NDArray[np.int64] | None  #: (S,) int64, the rows of each shard in HBM; None if it does not say
    whole_in_host: NDArray[np.bool_]  #: (T,) bool, the tables of which TorchRec keeps all rows in host memory


@dataclass(frozen=True)
class GivenPlan:
    """A plan as somebody has it, in the JSON of ShardGym or TorchRec; it is read once, and nothing is unpickled.

    The JSON is an object with one of these.

    - 'placement': an object with the device of each table by its name (`shard-gym place --out`).
    - 'plan', a list with an object for each table, in any order (the same; `plan_to_json`, `write_plan`).
    - 'plan', an object with one for each module: TorchRec's (`torchrec_json`, or its own `_serialize`).
    """

    name: str  #: of the file, for messages
    value: Any  #: the JSON

    @classmethod
    def of_file(cls, path: str | Path) -> GivenPlan:
        """The plan in a file; raises DamagedFileError if it cannot be read, or is no JSON."""
        return cls(str(path), read_json(Path(path)))

    @property
    def _about(self) -> Mapping[str, Any]:
        return self.value if isinstance(self.value, dict) else {}

    @property
    def made(self) -> Made:
        """How the plan was made, as far as it says."""
        about = self._about
        return Made(str(about.get("cost_model", "")), about.get("index_dedup") is True)

    @property
    def devices(self) -> DevicesOfPlan:
        """How many devices it is for; none where there is no plan.

        ShardGym's files list the host of each device. Without such a list, a table that is row_wise or data_parallel is
        on all devices.
        """
        groups, hosts = self._about.get(GROUPS), self._about.get("hosts")
        copies = groups[0] if isinstance(groups, list) and groups and is_integer(groups[0]) else 1
        if isinstance(hosts, list) and hosts:  # those of one group
            return DevicesOfPlan(len(hosts) * copies, True)
        found = [(kind, device) for kind, devices in _ranks(self._about) for device in devices if is_integer(device)]
        on_all = [device for kind, device in found if kind in (ROW_WISE, DATA_PARALLEL)]
        last = max(on_all or [device for _, device in found], default=-1)
        return DevicesOfPlan((last + 1) * copies, bool(on_all))

    def of(self, tables: Tables, topology: Topology) -> FoundPlan:
        """The plan of `tables`, valid but for memory: it may exceed the caps of `topology`.

        Rows in host memory need a topology that has some. A plan for groups of devices is for one of the groups of all
        devices of `topology`.

        Raises:
            DamagedFileError: the file is not what its checksum says.
            InvalidPlanError: there is no plan, or none of these tables on so many devices; the message names the file.
        """
        plan, hbm_rows = _read(self, tables, topology)
        value = self.value["plan"] if isinstance(self._about.get("plan"), dict) else None
        none = np.zeros(len(tables), np.bool_)
        return FoundPlan(plan, hbm_rows, none if value is None else whole_in_host({"plan": value}, tables))


def plan_of_file(path: str | Path, tables: Tables, topology: Topology) -> ShardingPlan:
    """The plan of `tables` in the file at `path`, valid but for memory: see `GivenPlan.of` for the errors."""
    return GivenPlan.of_file(path).of(tables, topology).plan


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


def _read(given: GivenPlan, tables: Tables, topology: Topology) -> tuple[ShardingPlan, NDArray[np.int64] | None]:
    path, value = given.name, given.value
    if not isinstance(value, dict) or not ("placement" in value or "plan" in value):
        of_tables = isinstance(value, dict) and value.get("schema") == POOL
        raise InvalidPlanError(f"{path} has {'tables, but ' * of_tables}no plan. {KNOWN}")
    if "placement" in value and "plan" in value:
        raise InvalidPlanError(f"{path} has both 'placement' and 'plan', which may differ. Remove one of them.")
    roomy = topology.with_caps(NO_CAP)
    if roomy.host is not None:
        roomy = replace(roomy, host=replace(roomy.host, hbm_bytes=NO_CAP // 2))  # as much in each memory
    groups, roomy = _of_group(value, roomy, path) if GROUPS in value else (ONE_GROUP, roomy)
    if "schema" in value or "sha256" in value:  # of a file with a checksum, which damage to either would hide
        plan = plan_of_record(value, path, tables, roomy)
        return plan, hbm_rows_from_json(value["plan"], plan, tables, roomy)
    try:
        plan = replace(_plan_of(value, tables, roomy), groups=groups)
        return plan, _hbm_rows_of(value, plan, tables, roomy)
    except ShardGymError as error:
        raise InvalidPlanError(
            f"{path} is no plan of these tables on {counted(roomy.num_devices, 'device')}. {error}"
        ) from error


def _of_group(value: Mapping[str, Any], topology: Topology, path: str) -> tuple[Groups, Topology]:
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
