"""The tables of a model, the devices that they are for, and what plans cost and hold there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.report import Note
from shard_gym.common.text import counted, format_bytes, format_percent
from shard_gym.cost_models import CostModel
from shard_gym.envs.real.tasks import as_measured
from shard_gym.hardware import Topology
from shard_gym.planning.explanation import Explanation, explain
from shard_gym.planning.index_dedup import deduplicated
from shard_gym.planning.memory import memory_of, rooms
from shard_gym.planning.misfit import missing_bytes
from shard_gym.plans import ShardingPlan, plan_memory_used
from shard_gym.plans.caps import allotted_caps, packed_caps
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.memory import training_memory
from shard_gym.plans.needs import HOST_MEMORY
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.tables import Tables
from shard_gym.tables.tables import CACHED, IN_HOST
from shard_gym.tasks import Answer, Task, TaskSuite, problem_of
from shard_gym.tasks.groups import caps_in


@dataclass(frozen=True)
class ModelOnDevices:
    """The tables of a model, and the devices that they are for."""

    name: str  #: of its task
    source: str  #: where the tables are from, for messages
    tables: Tables
    #: The devices. Their memory caps are what tables and buffers together may take: of the HBM of each device and, with
    #: host memory, of its host's memory.
    topology: Topology
    model: CostModel  #: what plans are costed by
    sync_every: int = 0  #: see `Task`
    without_dedup: Tables | None = None  #: the tables before ids are deduplicated; None if they are not
    reserve: int = 0  #: bytes of each device that are kept besides
    base: Task | None = None  #: a task that is planned, whose other options its tasks have
    caps_hinder_host: bool = False  #: whether the hosts could hold rows, were the memory caps of the devices one
    constraints: Constraints | None = None  #: what its plans must keep to; of a `base` its own

    @property
    def num_devices(self) -> int:
        """D, of all groups."""
        return self.topology.num_devices

    @property
    def limits(self) -> Constraints | None:
        """What plans must keep to."""
        return self.constraints if self.base is None else self.base.constraints

    @property
    def has_host(self) -> bool:
        """Whether tables may take host memory."""
        return self.topology.host is not None

    @cached_property
    def in_hbm(self) -> ModelOnDevices:
        """The same without host memory."""
        host = self.topology.host
        if host is None:
            return self
        caps = np.full(self.num_devices, host.hbm_bytes)
        return replace(self, topology=replace(self.topology, host=None, memory_cap_bytes=caps))

    @property
    def rooms(self) -> NDArray[np.int64]:
        """(D,) int64, what tables and buffers may take of the HBM of each device."""
        return self.in_hbm.topology.memory_cap_bytes

    @property
    def one_room(self) -> int:
        """The same of each device with host memory; they are equal."""
        return int(self.rooms[0])

    def on(self, num_devices: int) -> ModelOnDevices:
        """The same on another number of devices; where they have different memory caps, on the first ones.

        Raises:
            InvalidOptionError: there are fewer caps.
        """
        if num_devices == self.num_devices:
            return self
        caps, host, topology = self.rooms, self.topology.host, self.in_hbm.topology
        if np.ptp(caps) and num_devices > len(caps):
            raise InvalidOptionError(
                f"`memory_cap_gib` has {len(caps):,} numbers, and a plan for {num_devices:,} devices needs as many. "
                "Give one number for all."
            )
        caps = caps[:num_devices] if np.ptp(caps) else np.full(num_devices, caps[0])
        topology = replace(topology, num_devices=num_devices, memory_cap_bytes=caps)
        if host is not None:
            parts = self.topology.memory_cap_bytes[:1] - host.hbm_bytes
            if host.total_bytes is not None:
                parts = host.total_bytes // np.bincount(topology.hosts)[topology.hosts]
            topology = replace(topology, memory_cap_bytes=caps + parts, host=host)
        tables = self.tables if self.without_dedup is None else deduplicated(self.without_dedup, num_devices)
        limits = None if self.constraints is None else self.constraints.on(num_devices)
        return replace(self, topology=topology, tables=tables, constraints=limits)

    def deduplicated(self) -> ModelOnDevices:
        """The same where a device asks for a row of a sequence table once in a batch."""
        return replace(self, tables=deduplicated(self.tables, self.num_devices), without_dedup=self.tables)

    def rooms_of(self, explanation: Explanation) -> NDArray[np.int64]:
        """(D,) int64, the `rooms` of the devices of an explained plan of the tables, for as many devices as it has."""
        groups = explanation.plan.groups
        return caps_in(groups, self.on(explanation.task.num_devices * groups.count).rooms)

    def rooms_in(self, answer: Answer) -> NDArray[np.int64]:
        """`rooms`; for a plan for groups of devices, those of one of them."""
        return caps_in(answer.groups, self.rooms) if isinstance(answer, ShardingPlan) else self.rooms

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

    def task(self, topology: Topology, splittable: bool) -> Task:
        """The task on these devices."""
        every = self.sync_every if splittable else 0
        if self.base is None:
            task = Task(self.name, self.tables, topology, None, splittable, every, self.constraints)
        else:
            changed: dict[str, Any] = {"tables": self.tables, "topology": topology, "known_placement": None}
            task = replace(self.base, splittable=splittable, sync_every=every, **changed)
        return as_measured(TaskSuite("place", (task,)), self.model)[0]

    def require_sync_every(self, plan: ShardingPlan) -> None:
        """Raise InvalidOptionError for a plan for groups if it is not said how often their copies are averaged."""
        if plan.groups != ONE_GROUP and not self.sync_every:
            raise InvalidOptionError(
                f"The plan is for {plan.groups.count} groups of devices with a copy of all tables each. Say with "
                "`sync_every` after how many iterations the copies are averaged."
            )

    def needs_host(self, plan: ShardingPlan, hbm_rows: NDArray[np.int64] | None) -> bool:
        """Whether a plan has rows in host memory, of which there is some: as it says, or as the tables need it.

        Args:
            hbm_rows: (S,) int64, rows of each shard in HBM, as the plan says; None if it does not.
        """
        if not self.has_host or HOST_MEMORY not in self.model.supports:
            return False
        away = hbm_rows is not None and bool((hbm_rows < plan.shard_arrays()[:, 3]).any())
        away |= bool(self.tables.are_in(IN_HOST, CACHED).any())
        return away or missing_bytes(self.tables, self.in_hbm.topology) > 0

    def explained(self, plan: ShardingPlan) -> Explanation:
        """A plan of the tables explained, valid but for memory; one of whole tables as a placement.

        Raises:
            InvalidOptionError: it splits tables, and the cost model does not cost parts of tables; or it is for groups,
                and `sync_every` does not say how often their copies are averaged.
        """
        topology, placement = self.topology, plan.placement if plan.groups == ONE_GROUP else None
        self.require_sync_every(plan)
        if topology.host is not None:
            buffers = int(training_memory(plan, self.tables, self.num_devices).buffers.max())
            topology = self.beside(min(buffers, self.one_room - 1))
        caps = topology.memory_cap_bytes
        needed = plan_memory_used(plan, self.tables, self.num_devices)
        one = plan.groups == ONE_GROUP
        if (needed > caps).any() and one and (allotted := allotted_caps(needed, topology)) is not None:
            caps = allotted
        enough = np.maximum(caps, needed if one else needed.max())  # of devices of all groups
        fits = np.array_equal(enough, caps)
        roomy = replace(topology, memory_cap_bytes=caps) if fits else topology.with_caps(enough)
        permissive = replace(self, constraints=None)  # a plan may break them, and is explained
        if self.base is not None:
            permissive = replace(permissive, base=replace(self.base, constraints=None))
        task = permissive.task(roomy, splittable=placement is None)
        answer = plan if placement is None else placement
        try:
            model = problem_of(task).model(self.model)
        except InvalidOptionError as error:
            raise InvalidOptionError(
                f"The plan splits tables, and the cost model {self.model.name!r} does not cost parts of tables. Give a "
                "plan of whole tables, or leave out `cost_model`."
            ) from error
        return replace(explain(task, answer, model), own_caps=caps_in(plan.groups, caps))


def other_split_notes(explanation: Explanation, name: str, hbm_rows: NDArray[np.int64] | None) -> list[Note]:
    """A warning if the plan `name` keeps another part of the rows in HBM than the split that is costed."""
    if hbm_rows is None or np.array_equal(hbm_rows, explanation.split.hbm_rows):
        return []
    columns, has = explanation.shards[:, 5], explanation.shards[:, 3]
    whole = int((has * columns).sum())
    given, best = (int((rows * columns).sum()) / whole for rows in (hbm_rows, explanation.split.hbm_rows))
    text = (
        f"{name} keeps {format_percent(given)} of the rows' bytes in HBM. What follows is of the best split of the "
        f"same plan, which keeps {format_percent(best)} there."
    )
    return [Note(text)]


def broken_notes(own: ModelOnDevices, plan: ShardingPlan, name: str) -> list[Note]:
    """A warning if the plan `name` does what the constraints forbid."""
    if own.limits is None or plan.groups != ONE_GROUP:
        return []
    problem = own.limits.problem_of(plan, own.tables)
    return [Note(f"{name} breaks the constraints: {problem[0].lower()}{problem[1:]}")] if problem else []


def over_notes(explanation: Explanation, name: str, room: NDArray[np.int64]) -> list[Note]:
    """A warning if tables and buffers of the plan `name` exceed (D,) `room` bytes on a device."""
    memory, has = memory_of(explanation), rooms(explanation, room)
    device = int(memory.buffers.argmax())
    buffers = memory.buffers[device]
    if explanation.task.topology.host is not None and buffers >= room[device]:
        text = (
            f"{name} exceeds the memory: the buffers of a training step need {format_bytes(buffers)} of the HBM of "
            f"device {device}, which has {format_bytes(room[device])} for them and for rows. Its cost is "
            "that of all rows in host memory."
        )
        return [Note(text)]
    over = memory.total - has
    device = int(over.argmax())
    if over[device] <= 0:
        return []
    others = int((over > 0).sum()) - 1
    more = f" So {'does' if others == 1 else 'do'} {counted(others, 'other device')}." * (others > 0)
    text = (
        f"{name} exceeds the memory: device {device} would hold {format_bytes(memory.tables[device])} of tables and "
        f"{format_bytes(memory.buffers[device])} of buffers, {format_bytes(over[device])} more than the "
        f"{format_bytes(has[device])} for both.{more}"
    )
    return [Note(text)]
