"""Placement problems: a task, a suite of tasks, and a sampler of new tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from typing_extensions import override

from shard_gym.common.checks import ReadOnlyArrays, is_integer, is_iterable, require_kinds, require_name
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidOptionError,
    InvalidTaskError,
    TableTooLargeError,
    TaskIndexError,
    short_repr,
    unknown_name,
)
from shard_gym.common.io.html import card
from shard_gym.common.text import counted, format_bytes, format_range, listed
from shard_gym.hardware import Topology
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.caps import rooms_of_kept, states_of_rows
from shard_gym.plans.column_levels import UNIT
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.needs import GROUPS, SPLITS, needs_of
from shard_gym.plans.placement import Placement, check_placement
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.plans.variants import some_split_fits, variants_of, whole_tables
from shard_gym.tables import Tables
from shard_gym.tables.tables import IN_HBM, IN_HOST

MIB = 2**20

ANALYTICAL = "analytical"
"""The cost model of training, by which all suites but those of serving are scored."""

MAX_DESCRIPTION = 1_000
"""The most characters of the description of a suite."""

MAX_SYNC = 10**9
"""The most iterations between two averagings of copies of tables."""

MAX_VERSION = 2**31
"""The largest version of a suite."""


@dataclass(frozen=True, eq=False)
class Task(ReadOnlyArrays):
    """One placement problem.

    Attributes:
        name: unique in its suite, for example "dlrm-50x4/test/3".
        tables: the T tables to place.
        topology: the D devices to place them on.
        known_placement: (T,) int64, a valid placement that proves the task solvable, of any cost; or None.
        splittable: whether an answer is a sharding plan, so that tables may be larger than a device. An agent's `plan`
            and `EmbeddingSharding-v0` may split the tables of any task.
        sync_every: iterations after which copies of tables are averaged, if a plan may have groups of devices
            (`shard_gym.tasks.groups`); 0 if it may not.
        constraints: what answers must keep to, table by table, and between tables; None if nothing.

    Raises:
        InvalidConstraintsError: the constraints are of other tables or devices, or no answer can meet them.
        TableTooLargeError: a table does not fit any empty device; if it may be split, nor does any split of it.
        InvalidTaskError: all tables need more memory than all devices have, the name is none, or an argument has the
            wrong type.
        InvalidPlacementError: `known_placement` is not valid.
    """

    name: str
    tables: Tables
    topology: Topology
    known_placement: Placement | None = None
    splittable: bool = False
    sync_every: int = 0
    constraints: Constraints | None = None

    def __post_init__(self) -> None:
        require_kinds(self, "a Task", InvalidTaskError, name=str, tables=Tables, topology=Topology, splittable=bool)
        require_name("The name of a task", self.name, InvalidTaskError)
        if not is_integer(self.sync_every) or not 0 <= self.sync_every <= MAX_SYNC:
            raise InvalidTaskError(
                f"sync_every of task {self.name!r} must be an integer from 0 to {MAX_SYNC:,}, "
                f"not {short_repr(self.sync_every)}."
            )
        if self.sync_every and not self.splittable:
            raise InvalidTaskError(
                f"Task {self.name!r} has sync_every {self.sync_every}, but only plans have groups; pass "
                "splittable=True, too."
            )
        if self.sync_every and not self.tables.workload.training:
            raise InvalidTaskError(
                f"Task {self.name!r} has sync_every {self.sync_every}, but its tables are served, and copies of these "
                "are never averaged; pass sync_every=0."
            )
        needed, caps = self.tables.memory_bytes, self.topology.memory_cap_bytes
        too_large = np.flatnonzero(needed > caps.max())
        if self.splittable and too_large.size:
            too_large = too_large[~some_split_fits(self.tables.select(too_large), self.topology)]
        if too_large.size:
            largest = too_large[needed[too_large].argmax()]
            raise TableTooLargeError(
                f"Table {largest} ({self.tables.names[largest]}) of task {self.name!r} needs {needed[largest]} bytes "
                f"({format_bytes(needed[largest])}), but the largest memory cap of a device is {caps.max()} bytes "
                f"({format_bytes(caps.max())}). Raise memory_cap_bytes"
                + (": no split of it fits." if self.splittable else ", or pass splittable=True if it may be split.")
            )
        total_needed, total_cap = sum(needed.tolist()), sum(caps.tolist())  # int64 overflows for caps like 2**62
        if total_needed > total_cap:
            raise InvalidTaskError(
                f"Task {self.name!r} needs {format_bytes(total_needed)} for {counted(self.num_tables, 'table')}, "
                f"but has {format_bytes(total_cap)} on {counted(self.num_devices, 'device')}. "
                "Add devices or raise the caps."
            )
        if self.constraints is not None:
            self._check_constraints(self.constraints)
            if self.topology.host is not None:
                object.__setattr__(self, "tables", self.constraints.placed(self.tables))
        if self.known_placement is not None:
            known = check_placement(self.known_placement, self.tables, self.topology)
            self.require_constraints(known)
            known.setflags(write=False)
            object.__setattr__(self, "known_placement", known)

    def _check_constraints(self, given: Constraints) -> None:
        """Raise InvalidConstraintsError if a table alone, or tables that stay together or apart, cannot meet them."""
        if not isinstance(given, Constraints):
            raise InvalidConstraintsError(
                f"constraints of task {self.name!r} must be Constraints, such as constraints_from_json makes, "
                f"not {short_repr(given)}."
            )
        topology, names = self.topology, self.tables.names
        if (len(given), given.num_devices) != (self.num_tables, self.num_devices):
            raise InvalidConstraintsError(
                f"Task {self.name!r} has {self.num_tables} tables and {self.num_devices} devices, but its constraints "
                f"are of {len(given)} and {given.num_devices}."
            )
        tables = given.placed(self.tables)
        if topology.host is None and given.needs_host:
            raise InvalidConstraintsError(
                f"Table {names[(*given.in_host, *given.cached)[0]]!r} of task {self.name!r} must have rows in host "
                "memory, and its devices have none. Give them host memory, or let it have all rows in HBM."
            )
        every = whole_tables(tables)
        if self.splittable:
            every = variants_of(tables, topology, max_halvings=16, empty_blocks=given.empty_blocks)
        variants = every.under(given)
        cut = self.splittable & given.may_be_cut & (given.devices.sum(axis=1) > 1)
        cut &= tables.embedding_dim >= 2 * np.maximum(given.min_columns, UNIT)
        fits = variants.fit_empty_devices(topology).any(axis=1) | cut
        if topology.host is not None:
            for where, rooms in rooms_of_kept(topology).items():
                kept = variants
                if where == IN_HOST:
                    states = np.stack([states_of_rows(parts) for parts in variants.tables], axis=1)
                    kept = replace(variants, memory=variants.memory - states)
                fits &= kept.fit_empty_devices(topology.with_caps(rooms)).any(axis=1) | cut | ~tables.are_in(where)
        for possible, problem in (
            (
                variants.legal.any(axis=1),
                "and has no such form. Blocks of rows take all devices, or all of a host, and a row for each; replicas "
                "take all; and tables that stay together or apart from others are not spread. Allow table_wise or more "
                "devices"
                if self.splittable
                else "but must be whole on one device. Allow table_wise, or let the tables of the task be split",
            ),
            (fits, ""),
        ):
            stuck = np.flatnonzero(~possible)
            if stuck.size:
                told = given.told(int(stuck[0]))
                problem = problem or self._no_room_for(given, int(stuck[0]))
                raise InvalidConstraintsError(f"Table {names[stuck[0]]!r} of task {self.name!r} {told}, {problem}.")
        if topology.host is not None:
            replicated = ~np.delete(given.sharding_types, SHARDING_TYPES.index(DATA_PARALLEL), axis=1).any(axis=1)
            copies = np.where(replicated, self.num_devices, 1)
            all_of_them = sum((tables.memory_bytes * copies)[tables.are_in(IN_HBM)].tolist())
            room = sum(rooms_of_kept(topology)[IN_HBM].tolist())
            if all_of_them > room:
                raise InvalidConstraintsError(
                    f"Tables of task {self.name!r} that must have all rows in HBM need {format_bytes(all_of_them)}, "
                    f"but tables may take {format_bytes(room)} of it on {counted(self.num_devices, 'device')}. "
                    "Let fewer tables have compute kernels of HBM alone, or give more devices or HBM."
                )
        needed, caps = tables.memory_bytes, topology.memory_cap_bytes
        for members in given.together:
            together = listed([repr(names[member]) for member in members])
            open_to = given.devices[list(members)].all(axis=0)
            wide = [names[member] for member in members if not given.may_be_whole[member]]
            if wide:
                raise InvalidConstraintsError(
                    f"Tables {together} must be whole on one device, but {wide[0]!r} may not be whole."
                )
            if not open_to.any():
                raise InvalidConstraintsError(
                    f"Tables {together} must be whole on one device, but there is none that all of them may be on."
                )
            if not (open_to & (needed[list(members)].sum() <= caps)).any():
                size = format_bytes(needed[list(members)].sum())
                raise InvalidConstraintsError(
                    f"Tables {together} must be whole on one device, and need {size}, but no device that all of them "
                    "may be on has as much memory."
                )
        if crowd := given.crowded():
            members, devices = crowd
            noun = "device" if len(devices) == 1 else "devices"
            mates = [(member, other) for member in members for other in given.companions.get(member, ())]
            tied = [
                f" Table {names[one]!r} stays together with {names[other]!r}." for one, other in mates if one != other
            ]
            raise InvalidConstraintsError(
                f"Tables {listed([repr(names[member]) for member in members])} must be apart, but there are too few "
                f"devices that they may be on: {noun} {short_repr(list(devices))[1:-1]}." + "".join(tied)
            )

    def _no_room_for(self, given: Constraints, table: int) -> str:
        """Which memory no device has for a table, and what would help, a clause and a sentence."""
        memory, kernel = "memory", ""
        if self.topology.host is not None and table in (*given.in_hbm, *given.in_host):
            memory, other = ("HBM", "host memory") if table in given.in_hbm else ("host memory", "HBM")
            kernel = f"compute kernels of {other}, "
        return f"which no device has {memory} for. Allow {kernel}other sharding types, more devices or narrower shards"

    def require_constraints(self, answer: Any) -> None:
        """Raise InvalidPlanError if a valid placement, or plan, does what the constraints forbid."""
        if self.constraints is not None:
            self.constraints.require(answer, self.tables)

    @property
    def problem(self) -> str:
        """Name of its problem: sharding if its tables may be split, else placement."""
        return "sharding" if self.splittable else "placement"

    @property
    def needs(self) -> frozenset[str]:
        """Names in `shard_gym.plans.needs.NEEDS` of what whoever costs, measures or learns it must support."""
        own = {SPLITS: self.splittable, GROUPS: bool(self.sync_every)}
        return needs_of(self.tables, self.topology) | {name for name, has in own.items() if has}

    @property
    def num_tables(self) -> int:
        """T, the number of tables."""
        return len(self.tables)

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return self.topology.num_devices

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.num_tables} tables, {self.num_devices} devices)"

    def _repr_html_(self) -> str:
        return f"<h4>{escape(self.name)}</h4>{self.topology._repr_html_()}{self.tables._repr_html_()}"


@runtime_checkable
class TaskSource(Protocol):
    """The source of an environment's tasks: a `TaskSuite`, a `TaskSampler`, or any object with these members."""

    @property
    def max_tables(self) -> int:
        """The largest T of a task."""

    @property
    def max_devices(self) -> int:
        """The largest D of a task."""

    def sample(self, rng: np.random.Generator) -> Task:
        """A task, chosen with `rng` alone."""


def cost_model_for(source: object, named: Any) -> Any:
    """`named`, or where 'analytical' is named, the default everywhere, what scores a suite, or costs `Tables`."""
    if not isinstance(named, str) or named != ANALYTICAL:
        return named
    if isinstance(source, Tables):
        return ANALYTICAL if source.workload.training else "analytical-inference"
    return source.cost_model if isinstance(source, Suite) else named


def has_host_memory(source: TaskSource) -> bool:
    """Whether tasks of `source` may have host memory: its `host_memory`, which a source need not have."""
    return bool(getattr(source, "host_memory", False))


def num_groups_of(source: TaskSource) -> int:
    """The most workloads of the tables of a task of `source`: its `num_groups`, which a source need not have."""
    return int(getattr(source, "num_groups", 1))


class SuiteTask(Protocol):
    """What a suite needs of its tasks."""

    @property
    def name(self) -> str:
        """Unique in the suite."""

    @property
    def problem(self) -> str:
        """Name of the problem that it is a task of, in `shard_gym.tasks.problems.PROBLEMS`."""

    @property
    def num_tables(self) -> int:
        """T."""

    @property
    def num_devices(self) -> int:
        """D."""

    @property
    def topology(self) -> Topology:
        """The D devices."""


TaskT = TypeVar("TaskT", bound=SuiteTask)


@dataclass(frozen=True, eq=False, repr=False)
class Suite(Generic[TaskT]):
    """A fixed, ordered list of tasks: one split of a named suite, or custom tasks. Each problem has a subclass.

    Raises:
        InvalidTaskError: there are no tasks, two tasks share a name, or an element is no task of the problem; or a
            name, the version or the description is impossible.
    """

    task_class: ClassVar[type[Any]]

    name: str
    tasks: tuple[TaskT, ...]  #: the tasks, at least one
    split: str = "custom"  #: "train" or "test" for the named suites
    version: int = 1  #: raised when the suite's data change
    sha256: str = ""  #: SHA-256 of the suite's file, 64 hexadecimal digits; empty for a suite that is not from a file
    description: str = ""
    #: The largest tasks over all splits, so that an agent trained on one split can answer the others: of `TaskSuite` T
    #: and D, of `DriftSuite` parts and D; or None.
    padding: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for what, name in (("suite", self.name), ("split", self.split)):
            require_name(f"The name of a {what}", name, InvalidTaskError)
        if not is_integer(self.version) or not 0 <= self.version <= MAX_VERSION:
            raise InvalidTaskError(
                f"version of suite {self.name!r} must be an integer from 0 to {MAX_VERSION:,}, "
                f"not {short_repr(self.version)}."
            )
        about: Any = self.description
        if not isinstance(about, str) or len(about) > MAX_DESCRIPTION or not about.isprintable():
            raise InvalidTaskError(
                f"description of suite {self.name!r} must be printable text on one line, of at most "
                f"{MAX_DESCRIPTION:,} characters, not {short_repr(about)}."
            )
        given: Any = self.tasks
        tasks = tuple(given) if is_iterable(given) else ()
        invalid = [task for task in tasks if not isinstance(task, self.task_class)]
        if invalid or not is_iterable(given):
            raise InvalidTaskError(
                f"tasks of suite {self.name!r} must be a list of {self.task_class.__name__}s, such as [task]; "
                f"got {short_repr(invalid[0] if invalid else given)}."
            )
        object.__setattr__(self, "tasks", tasks)
        if not self.tasks:
            raise InvalidTaskError(f"Suite {self.name!r} has no tasks; give it at least one.")
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise InvalidTaskError(f"Suite {self.name!r} has two tasks of the same name; rename one.")

    @property
    def cost_model(self) -> str:
        """Name of the cost model that scores answers, so that 'analytical' stands for it where tasks are of a suite."""
        return ANALYTICAL

    @property
    def max_devices(self) -> int:
        """The largest D of a task, over all splits."""
        return max(*(task.num_devices for task in self.tasks), self.padding[1] if self.padding else 1)

    def sample(self, rng: np.random.Generator) -> TaskT:
        """One of the tasks, with equal probability."""
        return self.tasks[int(rng.integers(len(self.tasks)))]

    def task(self, key: int | str) -> TaskT:
        """The task with index or name `key`.

        Raises:
            UnknownNameError: no task has that name.
            InvalidOptionError: the index is out of range.
        """
        if isinstance(key, str):
            by_name = {task.name: task for task in self.tasks}
            if key not in by_name:
                listing = f"tasks 0 to {len(self.tasks) - 1}, or names like {self.tasks[0].name!r}"
                raise unknown_name(f"task in {self.name!r} ({self.split})", key, by_name, listing)
            return by_name[key]
        if not is_integer(key) or not 0 <= key < len(self.tasks):
            raise InvalidOptionError(
                f"{self.name!r} ({self.split}) has tasks 0 to {len(self.tasks) - 1}; "
                f"there is no task {short_repr(key)}."
            )
        return self.tasks[int(key)]

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[TaskT]:
        return iter(self.tasks)

    def __getitem__(self, index: int | str) -> TaskT:
        """The task with that index, which may count from the end, or name.

        Raises:
            UnknownNameError: no task has that name.
            TaskIndexError: the index is out of range; an IndexError, too.
        """
        if isinstance(index, (slice, str)) or not is_integer(index):
            return self.tasks[index] if isinstance(index, slice) else self.task(index)
        if not -len(self.tasks) <= index < len(self.tasks):
            raise TaskIndexError(
                f"{self.name!r} ({self.split}) has tasks 0 to {len(self.tasks) - 1}; there is no task {index}."
            )
        return self.tasks[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.split!r}, {len(self)} tasks)"

    def _repr_html_(self) -> str:
        tables = sorted({task.num_tables for task in self})
        devices = sorted({task.num_devices for task in self})
        facts = {
            "tasks": f"{len(self):,} ({self.split})",
            "tables in a task": format_range(tables[0], tables[-1]),
            "devices": format_range(devices[0], devices[-1]),
            "device": ", ".join(sorted({task.topology.device.name for task in self})),
        }
        return card(self.name, {"about": self.description, **facts} if self.description else facts)


@dataclass(frozen=True, eq=False, repr=False)
class TaskSuite(Suite[Task]):
    """A suite of placement or sharding."""

    task_class = Task

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({task.tables.workload.training for task in self.tasks}) > 1:
            raise InvalidTaskError(
                f"Suite {self.name!r} has tasks that train their tables and tasks that serve them, which have cost "
                "models of their own. Make a suite of each."
            )

    @property
    def max_tables(self) -> int:
        """The largest T of a task, over all splits."""
        return max(*(task.num_tables for task in self.tasks), self.padding[0] if self.padding else 1)

    @property
    @override
    def cost_model(self) -> str:
        """That of serving if the tables of the first task are served, else that of training."""
        return str(cost_model_for(self.tasks[0].tables, ANALYTICAL))

    @property
    def host_memory(self) -> bool:
        """Whether a task has host memory."""
        return any(task.topology.host is not None for task in self.tasks)

    @property
    def num_groups(self) -> int:
        """The most workloads of the tables of a task."""
        return max(len(task.tables.workloads) for task in self.tasks)
