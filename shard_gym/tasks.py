"""Placement problems: a task, a suite of tasks, and a sampler of new tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shard_gym.checks import is_integer, is_positive, require_kinds, require_name
from shard_gym.errors import (
    InvalidOptionError,
    InvalidTaskError,
    TableTooLargeError,
    TaskIndexError,
    short_repr,
    unknown_name,
    wrong_kind,
)
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.io.html import card
from shard_gym.placement import Placement, check_placement, memory_used, pack_by_memory
from shard_gym.pools import Pool
from shard_gym.sharding.variants import some_split_fits
from shard_gym.tables import MAX_DIM, Tables
from shard_gym.text import counted, format_bytes, format_range
from shard_gym.topology import Topology

MIB = 2**20

MAX_DESCRIPTION = 1_000
"""The most characters of the description of a suite."""

MAX_VERSION = 2**31
"""The largest version of a suite."""


@dataclass(frozen=True, eq=False)
class Task:
    """One placement problem.

    Attributes:
        name: unique in its suite, for example "dlrm-50x4/test/3".
        tables: the T tables to place.
        topology: the D devices to place them on.
        known_placement: (T,) int64, a valid placement that proves the task solvable, of any cost; or None.
        splittable: whether an answer is a sharding plan, so that tables may be larger than a device. An agent's `plan`
            and `EmbeddingSharding-v0` may split the tables of any task.

    Raises:
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

    def __post_init__(self) -> None:
        require_kinds(self, "a Task", InvalidTaskError, name=str, tables=Tables, topology=Topology, splittable=bool)
        require_name("The name of a task", self.name, InvalidTaskError)
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
        if self.known_placement is not None:
            known = check_placement(self.known_placement, self.tables, self.topology)
            known.setflags(write=False)
            object.__setattr__(self, "known_placement", known)

    @property
    def problem(self) -> str:
        """Name of its problem: sharding if its tables may be split, else placement."""
        return "sharding" if self.splittable else "placement"

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


def has_host_memory(source: TaskSource) -> bool:
    """Whether tasks of `source` may have host memory: its `host_memory`, which a source need not have."""
    return bool(getattr(source, "host_memory", False))


class SuiteTask(Protocol):
    """What a suite needs of its tasks."""

    @property
    def name(self) -> str:
        """Unique in the suite."""

    @property
    def problem(self) -> str:
        """Name of the problem that it is a task of, in `shard_gym.problems.PROBLEMS`."""

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
        tasks = tuple(given) if isinstance(given, Iterable) else ()
        invalid = [task for task in tasks if not isinstance(task, self.task_class)]
        if invalid or not isinstance(given, Iterable):
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

    @property
    def max_tables(self) -> int:
        """The largest T of a task, over all splits."""
        return max(*(task.num_tables for task in self.tasks), self.padding[0] if self.padding else 1)

    @property
    def host_memory(self) -> bool:
        """Whether a task has host memory."""
        return any(task.topology.host is not None for task in self.tasks)


@dataclass(frozen=True, eq=False)
class TaskSampler:
    """Samples new tasks from a pool of tables; every task has a known placement.

    Raises:
        InvalidTaskError: a range, a dim or the slack is invalid, or `pool` is neither Tables nor a Pool.
        InvalidOptionError: the profile is neither a HardwareProfile nor a name.
        UnknownNameError: no profile has that name.
    """

    pool: Tables | Pool  #: the tables to sample from, without replacement within a task
    num_tables: tuple[int, int]  #: smallest and largest T, both included; uniform
    num_devices: tuple[int, int]  #: smallest and largest D, both included; uniform, but at most T
    profile: HardwareProfile | str = "a100-dgx"  #: the hardware, a profile or its name
    embedding_dims: Sequence[int] = ()  #: dims from which each table's is sampled; empty keeps those of the pool
    #: Memory cap of a device, in multiples of the fullest device when the tables are packed by memory (rounded up to
    #: whole MiB, at most the device's memory), so that memory matters at every size.
    memory_slack: float = 1.5
    #: Smallest and largest HBM of a device, as a share of an even part of the tables; drawn evenly in its logarithm.
    #: The devices then have as much host memory as the tables need; by default all rows are in HBM.
    hbm_share: tuple[float, float] | None = None
    name: str = "sampled"  #: prefix of the tasks' names

    def __post_init__(self) -> None:
        if not isinstance(self.pool, (Tables, Pool)):
            raise InvalidTaskError(
                f"pool of a TaskSampler must be Tables or a Pool, such as load_pool('dlrm-2021'), "
                f"not {short_repr(self.pool)}."
            )
        self._check_range("num_tables", len(self.tables))
        self._check_range("num_devices", None)
        _hardware(self.profile)
        _check_dims(self.embedding_dims)
        if not is_positive(self.memory_slack) or self.memory_slack <= 1.0:
            raise InvalidTaskError(f"memory_slack must be a number above 1, not {short_repr(self.memory_slack)}.")
        if self.hbm_share is not None:
            shares = self.hbm_share if isinstance(self.hbm_share, (tuple, list)) else ()
            if len(shares) != 2 or not all(map(is_positive, shares)) or not shares[0] <= shares[1]:
                raise InvalidTaskError(
                    "hbm_share of a TaskSampler must be (smallest, largest) shares above 0, such as (0.05, 0.5), "
                    f"not {short_repr(self.hbm_share)}."
                )
            _hardware(self.profile).topology(1, host_memory_bytes=1)  # raises where the hardware has none

    def _check_range(self, field: str, most: int | None) -> None:
        given = getattr(self, field)
        pair = given if isinstance(given, (tuple, list)) and len(given) == 2 else ()
        if not pair or not all(map(is_integer, pair)):
            raise InvalidTaskError(
                f"{field} of a TaskSampler must be two integers, (smallest, largest), not {short_repr(given)}. "
                "For one size only give it twice, such as (8, 8)."
            )
        low, high = int(pair[0]), int(pair[1])
        if not 1 <= low <= high or (most is not None and high > most):
            raise InvalidTaskError(
                f"{field} of a TaskSampler must be (smallest, largest) with 1 <= smallest <= largest"
                f"{'' if most is None else f' <= {most}, the tables of the pool'}; got {(low, high)}."
            )

    @property
    def host_memory(self) -> bool:
        """Whether its tasks have host memory."""
        return self.hbm_share is not None

    @property
    def tables(self) -> Tables:
        """The tables to sample from."""
        return self.pool.tables if isinstance(self.pool, Pool) else self.pool

    @property
    def max_tables(self) -> int:
        """The largest T."""
        return self.num_tables[1]

    @property
    def max_devices(self) -> int:
        """The largest D."""
        return self.num_devices[1]

    def sample(self, rng: np.random.Generator) -> Task:
        """A new task; its name ends with a random number, so that names differ."""
        count = int(rng.integers(self.num_tables[0], self.num_tables[1] + 1))
        devices = min(count, int(rng.integers(self.num_devices[0], self.num_devices[1] + 1)))
        chosen: NDArray[np.int64] = rng.choice(len(self.tables), size=count, replace=False)
        tables = self.tables.select(chosen)
        if len(self.embedding_dims):
            tables = tables.with_dims(rng.choice(np.asarray(self.embedding_dims, np.int64), size=count))
        share = None if self.hbm_share is None else float(np.exp(rng.uniform(*np.log(self.hbm_share))))
        name = f"{self.name}-{int(rng.integers(2**32)):08x}"
        return capped_task(name, tables, devices, self.profile, self.memory_slack, share)


def capped_task(
    name: str,
    tables: Tables,
    num_devices: int,
    profile: HardwareProfile | str,
    memory_slack: float,
    hbm_share: float | None = None,
) -> Task:
    """A task with a known placement and memory caps that depend on its tables (see `TaskSampler.memory_slack`).

    With `hbm_share`, the HBM has that share of an even part of the tables, and the hosts have the rest of the caps.
    """
    hardware = _hardware(profile)
    known = pack_by_memory(tables, num_devices)
    packed = int(memory_used(known, tables, num_devices).max())
    if hbm_share is not None:
        cap = -(-int(memory_slack * packed) // MIB) * MIB
        part = int(hbm_share * int(tables.memory_bytes.sum()) / num_devices)
        hbm = min(-(-part // MIB) * MIB, hardware.device.memory_bytes)
        topology = hardware.topology(num_devices, memory_cap_bytes=max(cap, hbm))
        return Task(name, tables, replace(topology, host=hardware.host_memory(hbm)), known)
    if packed > hardware.device.memory_bytes:
        raise InvalidTaskError(
            f"No placement was found for task {name!r}: {len(tables)} tables with "
            f"{format_bytes(tables.memory_bytes.sum())} on {num_devices} x {hardware.device.name} with "
            f"{format_bytes(hardware.device.memory_bytes)} each. Add devices or sample fewer tables."
        )
    cap = min(-(-int(memory_slack * packed) // MIB) * MIB, hardware.device.memory_bytes)
    return Task(name, tables, hardware.topology(num_devices, memory_cap_bytes=cap), known)


def _hardware(profile: Any) -> HardwareProfile:
    if isinstance(profile, HardwareProfile):
        return profile
    if isinstance(profile, str):
        return hardware_profile(profile)
    raise wrong_kind("profile", profile, "a HardwareProfile or the name of one, such as 'a100-dgx'")


def _check_dims(dims: Any) -> None:
    given = dims.tolist() if isinstance(dims, np.ndarray) else dims
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or not all(is_integer(dim) and 4 <= dim <= MAX_DIM and dim % 4 == 0 for dim in given):
        raise InvalidTaskError(
            f"embedding_dims of a TaskSampler must be a list of multiples of 4 from 4 to {MAX_DIM}, such as (16, 32), "
            f"not {short_repr(dims)}."
        )
