"""A model on devices, from what a user has: tables, pools, models of TorchRec; hardware; and what a plan may take."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import checked_count, checked_flag, is_integer, is_iterable, is_number
from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidTablesError,
    short_repr,
    similar,
    wrong_kind,
)
from shard_gym.common.report import Note, Tell
from shard_gym.common.text import counted, format_bytes
from shard_gym.cost_models import CostModel, make_cost_model, with_communication_dtype, with_index_exchange
from shard_gym.hardware import MAX_DEVICES, DeviceSpec, HardwareProfile, Topology, hardware_profile
from shard_gym.hardware.profile_files import MAX_HOST_BYTES, RESERVE, usable_bytes
from shard_gym.interop.plan_files import GivenPlan
from shard_gym.interop.torchrec import json_of_torchrec, tables_of_lookups, tables_of_pooling_factors
from shard_gym.planning.model import ModelOnDevices
from shard_gym.plans import ShardingPlan, plan_of_placement, plan_to_json
from shard_gym.plans.constraints_json import as_constraints
from shard_gym.plans.files import GROUPS, groups_to_json
from shard_gym.plans.needs import TRAINING
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.tables import Pool, Tables, load_pool
from shard_gym.tables.pools import pool_source
from shard_gym.tables.pools.recorded_lookups import RecordedLookups, lookups_of_file, tables_with_lookups
from shard_gym.tasks import Task
from shard_gym.tasks.task import MAX_SYNC, cost_model_for

GIB = 2**30


class ModelOptions(TypedDict, total=False):
    """Which tables on which devices, and what they cost there: keyword arguments of `plan`, `compare`, `explain_plan`.

    Attributes:
        lookups: NPZ or Parquet files of recorded lookups, whose statistics the tables get (`lookups_of_file`); of a
            model of TorchRec also batches, `KeyedJaggedTensor`s.
        batch_size: samples of a batch of recorded lookups; those of the tables if not given.
        pooling_factors: of a model of TorchRec without lookups, mean lookups of a sample by feature, which then follow
            Zipf's law (`tables_of_pooling_factors`).
        embedding_dim: dim of every table of a pool; required if it has none, refused if it has its own.
        weight_dtype: fp32, fp16, bf16, int8 or fp8; that of the tables if not given.
        optimizer: sgd, rowwise_adagrad, adagrad, adam, partial_rowwise_adam or lamb; that of the tables if not given.
        index_dedup: whether a device asks for a row of a sequence table once in a batch, as with TorchRec's
            `EmbeddingCollectionSharder(use_index_dedup=True)`.
        devices_per_host: devices of a host, which have its local ranks and memory; that of the hardware if not given.
        devices_per_domain: devices joined by fast links, such as NVLink; those of a host if not given.
        memory_cap_gib: GiB that tables and their buffers may take on each device, instead of a reserve: one number, or
            one for each device.
        reserve: share of each device's memory that is kept for dense parameters, activations and the allocator; 0.15 if
            neither it nor a cap is given.
        host_memory: GiB of each host for rows that the HBM has no room for, 0 for none; what the reserve leaves of it
            if not given.
        cross_host_ratio: share of the bytes leaving a host that are sent, below 1 for models that compress them.
        sync_every: iterations after which copies of tables are averaged, if groups of devices may hold all of them (2D
            sparse parallelism); 0 for one group.
        cost_model: the cost model, or its name (`make_cost_model`); of tables that are served, "analytical", the
            default, is "analytical-inference".
        communication_dtype: of outputs and their gradients on the links: fp32, fp16, bf16, fp8, int8 or mx4; that of
            the cost model if not given.
        index_exchange: "exposed" if every iteration waits for the exchange of the indices, because no pipeline hides
            it, else "hidden"; that of the cost model if not given.
    """

    lookups: Any
    batch_size: int | None
    pooling_factors: Mapping[str, float] | None
    embedding_dim: int | None
    weight_dtype: str | None
    optimizer: str | None
    index_dedup: bool
    devices_per_host: int | None
    devices_per_domain: int | None
    memory_cap_gib: float | Sequence[float] | None
    reserve: float | None
    host_memory: float | None
    cross_host_ratio: float
    sync_every: int
    constraints: Any
    cost_model: str | CostModel
    communication_dtype: str | None
    index_exchange: str | None


def require_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise TypeError, as Python does, if a `function` with `ModelOptions` gets an argument that it has not."""
    own = inspect.signature(function).parameters.values()
    known = {*(each.name for each in own if each.kind != each.VAR_KEYWORD), *ModelOptions.__annotations__}
    for name in options:
        if name not in ModelOptions.__annotations__:
            hint = similar(name, known)
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}.{hint}")


def model_on_devices(
    model_or_tables: Any,
    hardware: str | Path | HardwareProfile | Topology | None,
    num_devices: int | None,
    tell: Tell,
    *,
    say_statistics: bool = True,
    lookups: Any = (),
    batch_size: int | None = None,
    pooling_factors: Mapping[str, float] | None = None,
    embedding_dim: int | None = None,
    weight_dtype: str | None = None,
    optimizer: str | None = None,
    index_dedup: bool = False,
    devices_per_host: int | None = None,
    devices_per_domain: int | None = None,
    memory_cap_gib: float | Sequence[float] | None = None,
    reserve: float | None = None,
    host_memory: float | None = None,
    cross_host_ratio: float = 1.0,
    sync_every: int = 0,
    constraints: Any = None,
    cost_model: str | CostModel = "analytical",
    communication_dtype: str | None = None,
    index_exchange: str | None = None,
) -> ModelOnDevices:
    """A model on devices, from what a user has; see `ModelOptions` for the keyword arguments.

    Args:
        model_or_tables: `Tables`; a pool, its name, or the path of its file; or a model with collections of TorchRec.
        hardware: the name of a hardware profile, or the folder of a calibration; a profile; or the devices themselves,
            whose memory caps are then what tables and buffers may take.
        num_devices: how many devices; not with a `Topology`.
        say_statistics: whether to tell where the statistics of the lookups are from.

    Raises:
        InvalidOptionError, InvalidTablesError: an argument is impossible, or two do not go together.
        UnknownNameError: there is no such pool, hardware or cost model.
        DamagedFileError: a file cannot be read.
    """
    if isinstance(model_or_tables, Task):
        named = NamedTables(model_or_tables.name, model_or_tables.name, model_or_tables.tables)
    else:
        named = _tables_of(model_or_tables, embedding_dim, lookups, batch_size, pooling_factors)
    model = with_index_exchange(make_cost_model(cost_model_for(named.tables, cost_model)), index_exchange)
    model = with_communication_dtype(model, communication_dtype)
    index_dedup = checked_flag("`index_dedup`", index_dedup)
    sync_every = checked_count("`sync_every`", sync_every, 0, MAX_SYNC)
    ratio = None if is_number(cross_host_ratio) and cross_host_ratio == 1 else cross_host_ratio
    links = {
        "devices_per_host": devices_per_host,
        "devices_per_domain": devices_per_domain,
        "memory_cap_gib": memory_cap_gib,
        "reserve": reserve,
        "host_memory": host_memory,
        "cross_host_ratio": ratio,
    }
    training = None if TRAINING in model.supports else False  # the tables of a cost model of serving are served
    if isinstance(model_or_tables, Task):
        of_tables = {
            "lookups": None if isinstance(lookups, (list, tuple)) and not lookups else lookups,
            "batch_size": batch_size,
            "pooling_factors": pooling_factors,
            "embedding_dim": embedding_dim,
            "weight_dtype": weight_dtype,
            "optimizer": optimizer,
            "index_dedup": index_dedup or None,
            "sync_every": sync_every or None,
            "constraints": constraints,
        }
        return _of_task(model_or_tables, hardware, num_devices, model, of_tables | links)
    named = _with_lookups(
        named, tell, batch_size, weight_dtype, optimizer, training=training, say_statistics=say_statistics
    )
    tables = named.tables
    if index_dedup:
        if tables.pooled.all():
            raise InvalidOptionError(f"`index_dedup` is for sequence tables, and {named.source} has none.")
        if sync_every:
            raise InvalidOptionError(
                "Give `index_dedup` or `sync_every`, not both: the devices of a group ask for rows by themselves."
            )
    if isinstance(hardware, Topology):
        topology = _given_topology(hardware, num_devices, links)
        hinders = False
    else:
        profile = hardware if isinstance(hardware, HardwareProfile) else hardware_profile(_required(hardware))
        given: Any = num_devices  # checked here
        count = checked_count("`num_devices`", given, 1, MAX_DEVICES)
        room = _room_bytes(memory_cap_gib, reserve, profile.device, count)
        host = _host_room_bytes(host_memory, reserve, profile, room)
        topology = profile.topology(
            count,
            devices_per_host=devices_per_host,
            devices_per_domain=devices_per_domain,
            memory_cap_bytes=room,
            host_memory_bytes=host,
        )
        topology = replace(topology, cross_host_ratio=cross_host_ratio)
        hinders = profile.host is not None and bool(np.ptp(room))
    gives_caps = memory_cap_gib is not None or isinstance(hardware, Topology)
    hbm = topology.memory_cap_bytes if topology.host is None else np.array([topology.host.hbm_bytes])
    kept = 0 if gives_caps else topology.device.memory_bytes - int(hbm[0])
    found = ModelOnDevices(
        *(named.name, named.source, tables, topology, model, sync_every),
        reserve=kept,
        caps_hinder_host=hinders,
    )
    if constraints is not None:
        limits = as_constraints(constraints, tables, topology.num_devices, host_memory=topology.host is not None)
        placed = tables if topology.host is None else limits.placed(tables)
        found = replace(found, tables=placed, constraints=limits)
    return found.deduplicated() if index_dedup else found


def _required(hardware: Any) -> str | Path:
    if hardware is None:
        raise InvalidOptionError(
            "`hardware` is missing: the name of a hardware profile, the folder of a calibration, or a Topology."
        )
    name: str | Path = hardware
    return name


def _of_task(
    task: Task, hardware: Any, num_devices: int | None, model: CostModel, options: Mapping[str, Any]
) -> ModelOnDevices:
    if hardware is not None or num_devices is not None:
        raise InvalidOptionError("A task has devices of its own; leave out `hardware` and `num_devices`.")
    for name, value in options.items():
        if value is not None:
            raise InvalidOptionError(
                f"A task has tables and devices of its own; leave out `{name}`, or change the task."
            )
    return ModelOnDevices(task.name, task.name, task.tables, task.topology, model, task.sync_every, base=task)


def _given_topology(topology: Topology, num_devices: int | None, options: Mapping[str, Any]) -> Topology:
    given = dict(options)
    if num_devices is not None:
        given["num_devices"] = None if num_devices == topology.num_devices else num_devices
    for name, value in given.items():
        if value is not None:
            raise InvalidOptionError(
                f"`{name}` is {short_repr(value)}, but `hardware` is a Topology, which says it; leave `{name}` out."
            )
    return topology


class NamedTables(NamedTuple):
    """The tables of a model, and how messages name them."""

    name: str  #: of the task
    source: str  #: of the tables, for messages
    tables: Tables
    statistics: str = ""  #: where those of the lookups are from, a sentence that is still to be told
    log: Sequence[str | Path] = ()  #: files of lookups that are still to be counted
    has_batch: bool = False  #: whether the tables were made for the batch size that is given


def read_tables(
    model_or_tables: Any,
    tell: Tell,
    *,
    lookups: Any = (),
    batch_size: int | None = None,
    pooling_factors: Mapping[str, float] | None = None,
    embedding_dim: int | None = None,
    weight_dtype: str | None = None,
    optimizer: str | None = None,
) -> NamedTables:
    """The tables of a model, which `model_on_devices` takes in its place, for several devices; see there."""
    named = _tables_of(model_or_tables, embedding_dim, lookups, batch_size, pooling_factors)
    return _with_lookups(named, tell, batch_size, weight_dtype, optimizer)


def _with_lookups(
    named: NamedTables,
    tell: Tell,
    batch_size: int | None,
    weight_dtype: str | None,
    optimizer: str | None,
    *,
    training: bool | None = None,
    say_statistics: bool = True,
) -> NamedTables:
    """The tables with the statistics of recorded lookups, and told where they are from."""
    doubled = sorted({each for each in named.tables.names if named.tables.names.count(each) > 1})
    if doubled:
        raise InvalidTablesError(f"Two tables of {named.source} are named {doubled[0]!r}; give each its own name.")
    tables = named.tables.with_training(weight_dtype=weight_dtype, optimizer=optimizer, training=training)
    if named.log:
        size = tables.workload.batch_size if batch_size is None else batch_size
        tables = tables_with_lookups(tables, _read(named.log, tables, size, tell), size)
    elif batch_size is not None and not named.has_batch:
        raise InvalidOptionError("`batch_size` is that of recorded lookups; give `lookups`, too, or leave it out.")
    if named.statistics and say_statistics:
        tell(Note(named.statistics, is_warning=False))
    return named._replace(tables=tables, statistics="", log=())


def is_module(model: Any) -> bool:
    """Whether `model` is a module of torch."""
    return hasattr(model, "named_modules")


def _tables_of(
    model: Any, embedding_dim: int | None, lookups: Any, batch_size: int | None, pooling_factors: Any
) -> NamedTables:
    if isinstance(model, NamedTables):
        return model
    log = _files(lookups)
    if is_module(model):
        _require_no_dim(embedding_dim, "the model", known=True)
        tables = _tables_of_module(model, log, lookups, batch_size, pooling_factors)
        return NamedTables("model", "the model", tables, has_batch=True)
    if lookups and not log:
        raise wrong_kind("`lookups`", lookups, "paths of NPZ or Parquet files")
    if pooling_factors is not None:
        raise InvalidOptionError(
            "`pooling_factors` are of a model of TorchRec, and tables have their own; leave `pooling_factors` out."
        )
    if isinstance(model, Tables):
        _require_no_dim(embedding_dim, "the model", known=True)
        return NamedTables("model", "the model", model, log=log)
    if isinstance(model, Pool):
        pool, name, source = model, model.name, model.name
    elif isinstance(model, (str, Path)):
        pool, name, source = load_pool(pool_source(str(model))), Path(model).stem, str(model)
    else:
        raise wrong_kind("`model_or_tables`", model, "Tables, a pool, its name or file, a model of TorchRec, or a task")
    _require_no_dim(embedding_dim, source, known=pool.dims_known)
    tables = pool.tables if embedding_dim is None else pool.tables.with_dims(embedding_dim)
    return NamedTables(name, source, tables, "" if log else _statistics_note(source, pool), log)


def _require_no_dim(embedding_dim: int | None, source: str, *, known: bool) -> None:
    """Raise InvalidOptionError if a dim is given for tables whose dims are known, or none where they are not."""
    if known == (embedding_dim is not None):
        raise InvalidOptionError(
            f"The tables of {source} have embedding dims of their own; leave out `embedding_dim`."
            if known
            else f"The tables of {source} have no embedding dims; choose one for all with `embedding_dim`."
        )


def _tables_of_module(model: Any, log: Sequence[Any], lookups: Any, batch_size: int | None, factors: Any) -> Tables:
    has_lookups = not (isinstance(lookups, (list, tuple)) and not lookups)
    if factors is not None and has_lookups:
        raise InvalidOptionError("Give `lookups` or `pooling_factors`, not both: each says the lookups of the model.")
    if factors is None and not has_lookups:
        raise InvalidOptionError(
            "A model of TorchRec does not say its lookups. Give `lookups`, recorded ones, or `pooling_factors` with "
            "`batch_size`, the mean lookups of a sample by feature."
        )
    if factors is None and not log:
        if batch_size is not None:
            raise InvalidOptionError("`lookups` are batches, which say their size; leave out `batch_size`.")
        return tables_of_lookups(model, lookups)
    if batch_size is None:
        raise InvalidOptionError("`batch_size` is missing: the samples of a batch, on all devices together.")
    if factors is not None:
        return tables_of_pooling_factors(model, factors, batch_size)
    return tables_of_lookups(model, (batch for path in log for batch in lookups_of_file(path).batches(batch_size)))


def _files(lookups: Any) -> list[str | Path]:
    """The paths among what is given as lookups."""
    given = [lookups] if isinstance(lookups, (str, Path)) else lookups
    if isinstance(given, (list, tuple)) and all(isinstance(each, (str, Path)) for each in given):
        return list(given)
    return []


def _read(files: Sequence[str | Path], tables: Tables, size: int, tell: Tell) -> Iterator[RecordedLookups]:
    """The lookups of each file; a note names the columns and the samples that are not counted."""
    for path in files:
        lookups = lookups_of_file(path, tables.names)
        if lookups.left_out:
            columns = counted(len(lookups.left_out), "column")
            tell(Note(f"{path}: no table reads {columns}: {', '.join(lookups.left_out)}.", is_warning=False))
        yield lookups
        rest = lookups.num_samples % size
        if rest:
            text = f"{path}: {counted(rest, 'sample')} at the end fill no batch of {size:,} and are not counted."
            tell(Note(text, is_warning=False))


def _statistics_note(source: str, pool: Pool) -> str:
    """Where the lookup statistics of a pool are from: the law that is assumed, or what its card says."""
    law = pool.popularity
    if law is None:
        return f"Lookup statistics are those of {source}, whose card says: {pool.card.how_made}"
    shape = f"(k + q)^-s with q {_range(law.q)} and" if law.q.any() else "k^-s with"
    return (
        f"Lookup statistics are assumed, not recorded: row k of a table is read with probability ~ {shape} s "
        f"{_range(law.s)}. `lookups` counts recorded ones."
    )


def _range(values: NDArray[np.float64]) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def _room_bytes(
    caps_gib: float | Sequence[float] | None, reserve: float | None, device: DeviceSpec, num_devices: int
) -> int | NDArray[np.int64]:
    """Bytes that tables and their buffers may take, by a memory cap or a reserve: of each device, or (D,) int64.

    Args:
        caps_gib: GiB, one number for all devices, or one for each of D.
    """
    if caps_gib is None:
        return usable_bytes(device.memory_bytes, RESERVE if reserve is None else reserve, "`reserve`")
    if reserve is not None:
        raise InvalidOptionError(
            "`memory_cap_gib` and `reserve` both say how much memory tables and buffers may take. Give one of them."
        )
    given: list[Any] = [caps_gib] if isinstance(caps_gib, str) or not isinstance(caps_gib, Iterable) else list(caps_gib)
    text = ",".join(f"{each:g}" if isinstance(each, (int, float, np.number)) else short_repr(each) for each in given)
    caps = [_cap_bytes(each, text, device) for each in given]
    if len(caps) == 1:
        return caps[0]
    if len(caps) != checked_count("`num_devices`", num_devices, 1, MAX_DEVICES):
        raise InvalidOptionError(
            f"`memory_cap_gib` has {len(caps):,} numbers, {short_repr(text)}, for "
            f"{counted(num_devices, 'device')}. Give one number for all devices, or one for each."
        )
    return np.array(caps, np.int64)


def _cap_bytes(cap: float, given: str, device: DeviceSpec) -> int:
    """Bytes of one of the GiB that are `given`."""
    if not is_number(cap) or not 1 <= cap * GIB < math.inf:
        own = short_repr(f"{cap:g}" if isinstance(cap, (int, float, np.number)) else cap)
        one = f"{own} in {short_repr(given)}" if "," in given and own != given else own
        raise InvalidOptionError(f"`memory_cap_gib` must be a positive number, or one for each device, not {one}.")
    if device.device_type == "cpu":  # its memory is an assumed share of the machine's
        if cap * GIB > MAX_HOST_BYTES:
            raise InvalidOptionError(
                f"`memory_cap_gib` must be at most {MAX_HOST_BYTES // GIB:,} of a process of a CPU, not {cap:,g}."
            )
    elif cap * GIB > device.memory_bytes:
        raise InvalidOptionError(
            f"`memory_cap_gib` is {cap:,g}, but a device ({device.name}) has {format_bytes(device.memory_bytes)} "
            "of memory. Give at most that, or leave `memory_cap_gib` out."
        )
    return int(cap * GIB)


def _host_room_bytes(
    host_memory_gib: float | None, reserve: float | None, profile: HardwareProfile, room: int | NDArray[np.int64]
) -> int:
    """Bytes that tables may take of each host's memory: by `host_memory_gib`, or what the reserve leaves; 0 for none,
    as where devices have different `room` in HBM (`_room_bytes`)."""
    if np.ptp(room):
        if host_memory_gib:
            raise InvalidOptionError(
                f"`host_memory` is {host_memory_gib:,g}, but with host memory all devices have one memory cap, that of "
                "their HBM. Give one number to `memory_cap_gib`, or `host_memory=0`."
            )
        return 0
    if host_memory_gib is None:
        share = RESERVE if reserve is None else reserve
        return 0 if profile.host is None else usable_bytes(profile.host.memory_bytes, share, "`reserve`")
    if not is_number(host_memory_gib) or not 0 <= host_memory_gib * GIB <= MAX_HOST_BYTES:
        raise InvalidOptionError(
            f"`host_memory` must be a number of GiB from 0 to {MAX_HOST_BYTES // GIB:,}, not {host_memory_gib!r}."
        )
    if profile.host is None and host_memory_gib:
        raise InvalidOptionError(
            f"`host_memory` is {host_memory_gib:,g}, but of the hosts of {profile.name} it is not known how fast "
            "devices read and update rows there. Leave `host_memory` out, or name other hardware."
        )
    if profile.host is not None and host_memory_gib * GIB > profile.host.memory_bytes:
        raise InvalidOptionError(
            f"`host_memory` is {host_memory_gib:,g}, but a host of {profile.name} has "
            f"{format_bytes(profile.host.memory_bytes)}. Give at most that, or leave `host_memory` out."
        )
    return int(host_memory_gib * GIB)


GIVEN = "the plan"
"""What messages call a plan that is in no file."""


def given_plan(plan: Any, model: ModelOnDevices, argument: str, name: str = GIVEN) -> GivenPlan:
    """A plan that a user has: the path of a file, a plan, a placement, a result that has a plan, a plan of TorchRec, or
    the JSON of one.

    Args:
        argument: that it is, for messages.
        name: of a plan that is in no file, for messages.

    Raises:
        InvalidOptionError: it is none of these.
        InvalidPlanError: it is a placement of another number of tables.
        DamagedFileError: the file cannot be read.
    """
    if isinstance(getattr(plan, "plan", None), ShardingPlan):  # a PlannedModel, for one
        plan = plan.plan
    if isinstance(plan, (str, Path)):
        return GivenPlan.of_file(plan)
    if isinstance(plan, ShardingPlan):
        content: dict[str, Any] = {"plan": plan_to_json(plan, model.tables)}
        if plan.groups != ONE_GROUP:
            content[GROUPS] = groups_to_json(plan.groups)
        return GivenPlan(name, content)
    if isinstance(plan, Mapping):
        return GivenPlan(name, dict(plan))
    if isinstance(getattr(plan, "plan", None), dict):
        return GivenPlan(name, json_of_torchrec(plan))
    devices = list(plan) if isinstance(plan, (list, tuple, np.ndarray)) and is_iterable(plan) else []
    if not devices or not all(map(is_integer, devices)):
        raise wrong_kind(
            f"`{argument}`",
            plan,
            "a plan, what `plan` returns, a placement, the path of a file, a plan of TorchRec, or the JSON of a plan",
        )
    if len(devices) != len(model.tables):
        raise InvalidPlanError(
            f"{name} has {counted(len(devices), 'device')}, and {model.source} has "
            f"{counted(len(model.tables), 'table')}; a placement has a device for each."
        )
    return GivenPlan(name, {"plan": plan_to_json(plan_of_placement(devices, model.tables), model.tables)})
