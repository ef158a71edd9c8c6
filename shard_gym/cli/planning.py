"""How `shard-gym place` plans: by the agent that suits the tables, and within the memory that training leaves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents import Agent
from shard_gym.cli.console import warn
from shard_gym.cli.misfit import misfit, missing_bytes
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidTaskError,
    MemoryExceededError,
    NoPlacementFoundError,
    StatesExceedHbmError,
    TableTooLargeError,
)
from shard_gym.common.text import counted, format_bytes
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.envs.real.tasks import as_measured
from shard_gym.hardware.profile_files import HardwareProfile
from shard_gym.hardware.topology import MAX_DEVICES, Topology
from shard_gym.planning.explanation import Explanation
from shard_gym.plans import ShardingPlan
from shard_gym.plans.hbm_split import packed_caps
from shard_gym.plans.memory import training_memory, whole_table_bytes
from shard_gym.plans.needs import HOST_MEMORY
from shard_gym.tables.tables import Tables
from shard_gym.tasks.groups import caps_in, task_of_plan
from shard_gym.tasks.problems import Answer, problem_of
from shard_gym.tasks.task import Task, TaskSuite

WHOLE, SPLITTING = "local-search", "plan-search"
"""The agents that answer where none is named: of whole tables, and of plans, which may split tables."""

OR_SPLIT = f"An agent that splits tables, such as {SPLITTING}, can do it: leave out --agent and --whole."

ATTEMPTS = 3  # plans that are made until one leaves room for its buffers


@dataclass(frozen=True)
class OwnModel:
    """The tables of a user's model, and the devices that they are for."""

    name: str  #: of its task
    source: str  #: where the tables are from, for messages
    tables: Tables
    hardware: HardwareProfile
    num_devices: int
    #: bytes that tables and buffers together may take of the HBM of each device: one number, or (D,) int64
    room: int | NDArray[np.int64]
    model: CostModel  #: what plans are costed by
    host_bytes: int = 0  #: that tables may take of each host's memory
    cross_host_ratio: float = 1.0  #: see `Topology`
    sync_every: int = 0  #: see `Task`
    devices_per_host: int | None = None  #: see `Topology`; that of the hardware for None
    devices_per_domain: int | None = None  #: see `Topology`; that of the hardware for None

    @cached_property
    def topology(self) -> Topology:
        """The devices, with the room for tables and buffers as their HBM, and their parts of the hosts' memory.

        Of a plan for fewer devices than there are caps, they are the first ones.
        """
        count, room = checked_count("--num-devices", self.num_devices, 1, MAX_DEVICES), self.room
        if isinstance(room, np.ndarray):
            if len(room) < count:
                raise InvalidOptionError(
                    f"--memory-cap-gib has {len(room):,} numbers, and a plan for {count:,} devices needs as many. Give "
                    "one number for all."
                )
            room = room[:count]
        made = self.hardware.topology(
            count,
            devices_per_host=self.devices_per_host,
            devices_per_domain=self.devices_per_domain,
            memory_cap_bytes=room,
            host_memory_bytes=self.host_bytes,
        )
        return replace(made, cross_host_ratio=self.cross_host_ratio)

    @cached_property
    def rooms(self) -> NDArray[np.int64]:
        """(D,) int64, the `room` of each device."""
        return self.in_hbm.topology.memory_cap_bytes

    @property
    def one_room(self) -> int:
        """The `room` of each device with host memory; they are equal."""
        return int(self.rooms[0])

    def rooms_of(self, explanation: Explanation) -> NDArray[np.int64]:
        """(D,) int64, the `room` of each device of an explained plan of the tables, for as many devices as it has."""
        groups = explanation.plan.groups
        return caps_in(groups, replace(self, num_devices=explanation.task.num_devices * groups.count).rooms)

    def rooms_in(self, answer: Answer) -> NDArray[np.int64]:
        """`rooms`; for a plan for groups of devices, those of one of them."""
        return caps_in(answer.groups, self.rooms) if isinstance(answer, ShardingPlan) else self.rooms

    @property
    def in_hbm(self) -> OwnModel:
        """The same without host memory."""
        return replace(self, host_bytes=0)

    def beside(self, buffers: int, *, packed: bool = False) -> Topology:
        """The devices with host memory, if buffers take so many bytes of the HBM of each; tables get the rest.

        Args:
            packed: whether a packing of whole tables says which part of its host's memory a device gets, if there is
                one; otherwise the parts are equal.
        """
        host = self.topology.host
        assert host is not None
        caps = self.topology.memory_cap_bytes - buffers
        found = replace(self.topology, memory_cap_bytes=caps, host=replace(host, hbm_bytes=self.one_room - buffers))
        allotted = packed_caps(self.tables, found) if packed else None
        return found if allotted is None else replace(found, memory_cap_bytes=allotted)

    @property
    def largest_room(self) -> int:
        """The most bytes that the tables and buffers of one device may take, of its HBM and of its host's memory."""
        most, host = int(self.topology.memory_cap_bytes.max()), self.topology.host
        return most if host is None or host.total_bytes is None else max(most, host.hbm_bytes + host.total_bytes)

    def with_caps(self, caps: NDArray[np.int64]) -> Topology:
        """The devices of which tables may take (D,) `caps` bytes."""
        return self.topology.with_caps(caps)

    def task(self, topology: Topology, splittable: bool) -> Task:
        """The task on these devices."""
        every = self.sync_every if splittable else 0
        task = Task(self.name, self.tables, topology, splittable=splittable, sync_every=every)
        return as_measured(TaskSuite("place", (task,)), self.model)[0]


@dataclass(frozen=True)
class Planned:
    """A checked answer whose tables and buffers fit the devices."""

    name: str  #: of the agent that gave it
    agent: Agent
    task: Task  #: its caps are the room for tables and buffers
    answer: Answer
    lowered: bool  #: whether the agent was told lower caps; what it proved then holds for these alone
    own: OwnModel  #: the tables and devices, with host memory if they need it


def planned(own: OwnModel, name: str | None, make: Callable[[str], Agent], *, whole: bool = False) -> Planned:
    """The answer of the agent `name`; of None that of `SPLITTING`, or of `WHOLE` where only whole tables have a cost.

    Host memory is used only if no plan was found whose rows are all in HBM.

    Args:
        make: makes an agent from its name.
        whole: whether all tables stay whole; then `WHOLE` answers for None.

    Raises:
        InvalidOptionError: the named agent does not suit the tables.
        NoPlacementFoundError: the tables fit no plan, or none was found; the message has numbers.
    """
    knows, name = HOST_MEMORY in own.model.supports, WHOLE if whole and name is None else name
    try:
        return _planned(own.in_hbm, name, make, whole)
    except (NoPlacementFoundError, _TooLargeWholeError) as error:
        if not own.host_bytes:
            if own.hardware.host is None or not np.ptp(own.room):
                raise
            raise type(error)(
                f"{error} Host memory could hold rows of them, but with it all devices have one memory cap: give one "
                "number to --memory-cap-gib to use it."
            ) from error
        if not knows:
            raise type(error)(
                f"{error} Host memory could hold rows of them, but the cost model {own.model.name!r} does not know it; "
                "leave out --cost-model to use it."
            ) from error
    return _planned(own, name, make, whole)


class _TooLargeWholeError(InvalidOptionError):
    """A table fits no device whole, and the agent splits none."""


def _planned(own: OwnModel, name: str | None, make: Callable[[str], Agent], whole: bool) -> Planned:
    agent = None if name is None else make(name)
    if whole and not getattr(agent, "places", True):
        raise InvalidOptionError(
            f"--whole asks for whole tables, and {name} has plan(task) alone: give it place(task), or leave it out."
        )
    splits = not whole and (agent is None or getattr(agent, "splits", False))
    if own.sync_every and (own.host_bytes or not splits):
        raise InvalidOptionError(
            "--sync-every averages copies of tables in groups of devices, which "
            + ("host memory does not allow: give --host-memory 0." if splits else f"{name!r} does not plan. {OR_SPLIT}")
        )
    if own.num_devices > len(own.tables) and not splits:
        count = len(own.tables)
        raise InvalidOptionError(
            f"--num-devices is {own.num_devices:,}, but {own.source} has {counted(count, 'table')}: the other devices "
            f"would stay empty. Give at most {count:,}. {OR_SPLIT}"
        )
    if missing_bytes(own.tables, own.topology):
        raise NoPlacementFoundError(misfit(own.source, own.tables, own.topology))
    if agent is None or name is None:
        return _by_default(own, make)
    too_large = _too_large(own, own.largest_room)
    if too_large and not splits:
        raise _TooLargeWholeError(f"Agent {name!r} places whole tables, but {too_large}. {OR_SPLIT}")
    if splits:
        _require_costs_of_parts(own.model, f"agent {name!r} splits tables")
    return _within(own, name, agent, splits)


def _by_default(own: OwnModel, make: Callable[[str], Agent]) -> Planned:
    """The plan of `SPLITTING`; of `WHOLE` where the cost model costs no parts of tables, or no plan was found."""
    why_split = (
        _too_large(own, int(own.rooms.max())) or _too_few(own) or "--sync-every asks for plans" * bool(own.sync_every)
    )
    try:
        _require_costs_of_parts(own.model, f"tables have to be split: {why_split}")
    except InvalidOptionError as unknown:
        if why_split:
            raise
        warn(f"Whole tables, by {WHOLE}: the cost model {own.model.name!r} does not cost parts of tables.", "dim")
        try:
            return _within(own, WHOLE, make(WHOLE), splits=False)
        except NoPlacementFoundError as error:
            raise NoPlacementFoundError(f"{error} {unknown}") from error
    try:
        return _within(own, SPLITTING, make(SPLITTING), splits=True)
    except NoPlacementFoundError as error:
        if not why_split:  # parts have more buffers than whole tables
            with suppress(NoPlacementFoundError):
                return _within(own, WHOLE, make(WHOLE), splits=False)
        raise NoPlacementFoundError(misfit(own.source, own.tables, own.topology)) from error


def _within(own: OwnModel, name: str, agent: Agent, splits: bool) -> Planned:
    if not own.host_bytes:
        return _within_room(own, name, agent, splits)
    try:
        return _within_host_memory(own, name, agent, splits)
    except NoPlacementFoundError as error:
        if packed_caps(own.tables, own.topology) is None:
            raise
        with suppress(NoPlacementFoundError):
            return _within_host_memory(own, name, agent, splits, packed=True)
        raise error


def _require_costs_of_parts(model: CostModel, why: str) -> None:
    try:
        make_cost_model(model, splits=True)
    except InvalidOptionError as error:
        raise InvalidOptionError(
            f"The cost model {model.name!r} does not cost parts of tables, and {why}. Leave out --cost-model."
        ) from error


def _too_large(own: OwnModel, room: int) -> str:
    """Which table does not fit into `room` bytes of a device whole, a clause; empty if all do."""
    needed = whole_table_bytes(own.tables)
    largest = int(needed.argmax())
    if needed[largest] <= room:
        return ""
    has = "the largest device" if np.ptp(own.rooms) else "a device"
    return (
        f"table {own.tables.names[largest]} needs {format_bytes(needed[largest])} with its buffers, and {has} has "
        f"{format_bytes(room)}{' of HBM' * bool(own.host_bytes and room == own.one_room)} for it"
    )


def _too_few(own: OwnModel) -> str:
    """That whole tables would leave devices empty, a clause; empty if they need not."""
    count = len(own.tables)
    return "" if own.num_devices <= count else f"{counted(count, 'table')} whole would leave devices empty"


def _within_host_memory(own: OwnModel, name: str, agent: Agent, splits: bool, *, packed: bool = False) -> Planned:
    """The answer of an agent with host memory; it plans again where buffers take more HBM than it was told of."""
    of_buffers = int((whole_table_bytes(own.tables) - own.tables.memory_bytes).sum())
    told = -(-of_buffers // own.num_devices)  # the least that those of the fullest device take
    for _ in range(ATTEMPTS):
        if told >= own.one_room:
            raise NoPlacementFoundError(
                f"The buffers of a training step need {format_bytes(told)} of the HBM of a device, which has "
                f"{format_bytes(own.one_room)} for them and for rows; host memory is for rows alone. Give more "
                "devices, more HBM, or smaller batches."
            )
        try:
            task = own.task(own.beside(told, packed=packed), splits)
            problem = problem_of(task)
            problem.require_agent(agent)
            answer = problem.checked(problem.asker(agent)(task), task)
        except InvalidTaskError as error:
            raise NoPlacementFoundError(misfit(own.source, own.tables, own.topology)) from error
        except StatesExceedHbmError as error:
            raise _too_many_states(name, error) from error
        buffers = int(training_memory(answer, task.tables, task.num_devices).buffers.max())
        if buffers <= told:
            break
        told = buffers
    try:
        final = own.task(own.beside(min(buffers, own.one_room - 1), packed=packed), splits)
        answered_by = getattr(agent, "answered_by", name)
        checked = problem.checked(answer, final)
    except StatesExceedHbmError as error:
        raise _too_many_states(name, error) from error
    except MemoryExceededError as error:
        raise NoPlacementFoundError(
            f"{name} found no plan that leaves room for the buffers of a training step, {format_bytes(buffers)} of the "
            f"{format_bytes(own.one_room)} of HBM of a device. Another agent may find one; or give more devices, "
            "memory, or smaller batches."
        ) from error
    return Planned(answered_by, agent, final, checked, buffers < told or packed, own)


def _too_many_states(name: str, error: StatesExceedHbmError) -> NoPlacementFoundError:
    return NoPlacementFoundError(f"{name} found no plan whose HBM holds the states of all rows. {error}")


def _within_room(own: OwnModel, name: str, agent: Agent, splits: bool) -> Planned:
    """The answer of an agent, which plans again with lower caps where tables leave too little for their buffers."""
    caps, failure = own.rooms, ""
    for attempt in range(ATTEMPTS):
        try:
            task = own.task(own.with_caps(caps), splits)
            problem = problem_of(task)
            problem.require_agent(agent)
            answer = problem.checked(problem.asker(agent)(task), task)
        except (InvalidTaskError, MemoryExceededError, NoPlacementFoundError) as error:
            if failure:  # with lower caps, of which the user knows nothing
                break
            if isinstance(error, TableTooLargeError):
                raise NoPlacementFoundError(misfit(own.source, own.tables, own.topology)) from error
            raise
        in_group = task_of_plan(answer, task) if isinstance(answer, ShardingPlan) else task
        memory = training_memory(answer, in_group.tables, in_group.num_devices)
        has = own.rooms_in(answer)
        device = int((memory.total - has).argmax())
        over = int(memory.total[device] - has[device])
        if over <= 0:
            whole_room = replace(task.topology, memory_cap_bytes=own.topology.memory_cap_bytes)
            answered_by = getattr(agent, "answered_by", name)  # agents may leave a task to another
            return Planned(answered_by, agent, replace(task, topology=whole_room), answer, attempt > 0, own)
        failure = failure or (
            f"{name} found no plan that leaves room for the buffers of a training step: device {device} would hold "
            f"{format_bytes(memory.tables[device])} of tables and {format_bytes(memory.buffers[device])} of buffers, "
            f"and has {format_bytes(has[device])} for both."
        )
        caps = np.minimum(caps - over, caps if attempt == 0 else own.rooms - int(memory.buffers.max()))
        if caps.max() < 1:
            break
        caps = np.maximum(caps, 1)  # less than any table needs: a device that stays empty
    raise NoPlacementFoundError(
        f"{failure} Another agent may find one; or give more devices, memory, or smaller batches."
    )
