"""A plan that a user has, of the tables of their model, as `shard-gym show` explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.checks import checked_count
from shard_gym.cli.compared import explained_plan, needs_host_memory, warn_if_other_split, warn_if_over
from shard_gym.cli.console import warn
from shard_gym.cli.memory import host_room_bytes, room_bytes
from shard_gym.cli.options import (
    CostModelOptions,
    OptionalFloat,
    OptionalFloats,
    OptionalInt,
    OptionalPath,
    OptionalStr,
)
from shard_gym.cli.place import load_tables
from shard_gym.cli.planning import OwnModel
from shard_gym.cost_models import InferenceCostModel, with_index_exchange
from shard_gym.cost_models.index_exchange import HIDDEN
from shard_gym.errors import InvalidOptionError
from shard_gym.explain import Explanation
from shard_gym.hardware import hardware_profile
from shard_gym.hbm_split import split_bytes
from shard_gym.index_dedup import deduplicated
from shard_gym.interop.plan_files import (
    devices_of_file,
    hbm_rows_of_file,
    how_made,
    plan_of_file,
    whole_in_host_of_file,
)
from shard_gym.sharding.plan import ONE_GROUP
from shard_gym.text import counted
from shard_gym.topology import Topology

EITHER = (
    "show explains an answer to a task, with --suite and --agent, or a plan of your own tables, with --tables, --plan, "
    "--hardware and --num-devices."
)


@dataclass(frozen=True)
class OwnPlanOptions:
    """A plan that you have, of the tables of your model, instead of a suite and an agent.

    Attributes:
        tables: pool file (.json) with the model's tables, or name of a pool that ships with ShardGym.
        plan: file with the plan, as `shard-gym place` or TorchRec writes it in JSON.
        hardware: name of the hardware profile, such as a100-dgx, or a folder of shard-gym calibrate.
        num_devices: number of devices that the plan is for.
        devices_per_host: devices of a host, which have its local ranks and memory; that of the hardware if not given.
        devices_per_domain: devices joined by fast links, such as NVLink; those of a host if not given.
        memory_cap_gib: GiB that tables and their buffers may take on each device, instead of a reserve: one number, or
            one for each device, such as 40,40,20,20.
        reserve: share of each device's memory that is kept for the rest of the model; 0.15 if neither it nor a cap is
            given.
        host_memory: GiB of each host for rows that the HBM has no room for, 0 for none; what the reserve leaves of it
            if not given.
        embedding_dim: dim of every table; required if the file has none, refused if it has its own.
        weight_dtype: bf16, fp16 or fp32; that of the file if not given.
        optimizer: adam, rowwise_adagrad or sgd; that of the file if not given.
        sync_every: of a plan for groups of devices, iterations after which their copies of tables are averaged.
    """

    tables: OptionalStr = None
    plan: OptionalPath = None
    hardware: OptionalStr = None
    num_devices: OptionalInt = None
    devices_per_host: OptionalInt = None
    devices_per_domain: OptionalInt = None
    memory_cap_gib: OptionalFloats = None
    reserve: OptionalFloat = None
    host_memory: OptionalFloat = None
    embedding_dim: OptionalInt = None
    weight_dtype: OptionalStr = None
    optimizer: OptionalStr = None
    sync_every: OptionalInt = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def require_alone(self, others: Mapping[str, bool]) -> None:
        """Raise InvalidOptionError if one of the `others`, options of a suite by name, is given, too."""
        for name, given in others.items():
            if given:
                raise InvalidOptionError(f"--{name} is an option of a task of a suite. {EITHER}")


@dataclass(frozen=True)
class OwnPlan:
    """A plan that is explained, and the memory that it has."""

    name: str  #: of its file
    explanation: Explanation
    room: NDArray[np.int64]  #: (D,) int64, bytes for tables and buffers on each device, or on those of a group
    reserve: int  #: bytes of each device that are kept besides
    over: bool  #: whether it exceeds the room; a warning has said so
    topology: Topology  #: the devices, with host memory if the hardware has some
    whole_in_host: NDArray[np.int64]  #: (D,) int64, bytes of tables of which TorchRec keeps all rows in host memory


def own_plan(options: OwnPlanOptions, cost: CostModelOptions, index_exchange: str = HIDDEN) -> OwnPlan:
    """The plan that the options name; warns where it exceeds the memory.

    Raises:
        InvalidOptionError: an option is missing; also the errors of `plan_of_file`.
    """
    missing = [name for name in ("tables", "plan", "hardware", "num_devices") if getattr(options, name) is None]
    if missing:
        raise InvalidOptionError(f"--{missing[0].replace('_', '-')} is missing. {EITHER}")
    given: Any = options  # without None
    model = with_index_exchange(cost.make(), index_exchange)
    tables = load_tables(given.tables, options.embedding_dim)
    tables = tables.with_training(
        weight_dtype=options.weight_dtype, optimizer=options.optimizer, training=cost.training
    )
    made = how_made(given.plan)
    if made.cost_model.startswith(InferenceCostModel.name) and model.knows_training:
        warn(f"{given.plan} is a plan for serving; --cost-model {InferenceCostModel.name} costs it so.")
    num_devices = _num_devices(given.plan, given.num_devices)
    if made.index_dedup:
        tables = deduplicated(tables, num_devices)
    profile = hardware_profile(given.hardware)
    room = room_bytes(options.memory_cap_gib, options.reserve, profile.device, given.num_devices)
    host = host_room_bytes(options.host_memory, options.reserve, profile, room)
    every = 0 if options.sync_every is None else checked_count("--sync-every", options.sync_every)
    own = OwnModel(
        *(Path(given.tables).stem, given.tables, tables, profile, num_devices, room, model, host),
        sync_every=every,
        devices_per_host=options.devices_per_host,
        devices_per_domain=options.devices_per_domain,
    )
    with_host = own.topology
    plan, hbm_rows = plan_of_file(given.plan, tables, own.topology), hbm_rows_of_file(given.plan, tables, own.topology)
    if not needs_host_memory(own, plan, hbm_rows):
        own = own.in_hbm
    explanation = explained_plan(own if plan.groups == ONE_GROUP else own.in_hbm, plan)
    warn_if_other_split(explanation, str(given.plan), hbm_rows)
    has = own.rooms_of(explanation)
    over = warn_if_over(explanation, str(given.plan), has)
    reserve = 0 if options.memory_cap_gib is not None else profile.device.memory_bytes - own.one_room
    shards, away = plan.shard_arrays(), whole_in_host_of_file(given.plan, tables)
    in_host = np.zeros(explanation.task.num_devices, np.int64)
    np.add.at(in_host, shards[:, 1], away[shards[:, 0]] * shards[:, 3] * shards[:, 5] * split_bytes(tables.workload))
    if in_host.any() and not model.knows_host_memory:
        warn(
            f"{given.plan} keeps rows in host memory, which the cost model {model.name!r} does not know; what follows "
            "is of all rows in HBM."
        )
    return OwnPlan(given.plan.name, explanation, has, reserve, over, with_host, in_host)


def _num_devices(path: Path, asked: int) -> int:
    """How many devices the plan in a file is costed on: those that it says it is for, or else as many as are `asked`
    for; warns where they differ."""
    told, devices = devices_of_file(path), counted(asked, "device")
    if told.is_known and told.number != asked:
        warn(f"{path} is a plan for {counted(told.number, 'device')}, not for {asked}. What follows is of these.")
        return told.number
    if 0 < told.number < asked:
        warn(f"{path} names no device above {told.number - 1}; the others of {devices} hold nothing.", "dim")
    return asked
