"""Tasks: what to place where. One task, a set of them, and a sampler of fresh ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import (
    InvalidOptionError,
    InvalidTaskError,
    TableTooLargeError,
    short_repr,
    unknown_name,
    wrong_kind,
)
from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.placement import Placement, check_placement, memory_used
from shard_gym.pools import Pool
from shard_gym.tables import MAX_DIM, Tables
from shard_gym.text import format_bytes
from shard_gym.topology import Topology

MIB = 2**20


@dataclass(frozen=True, eq=False)
class Task:
    """One placement problem.

    Attributes:
        name: unique in its suite, for example "dlrm-50x4/test/3".
        tables: the T tables to place.
        topology: the D devices to place them on.
        known_placement: (T,) int64, a valid placement (proof that there is one; not meant to be good), or None.

    Raises:
        TableTooLargeError: a table does not fit any empty device.
        InvalidTaskError: all tables together need more memory than all devices have, or an argument is not of its kind.
        InvalidPlacementError: `known_placement` is not valid.
    """

    name: str
    tables: Tables
    topology: Topology
    known_placement: Placement | None = None

    def __post_init__(self) -> None:
        for field, kind in (("name", str), ("tables", Tables), ("topology", Topology)):
            if not isinstance(getattr(self, field), kind):
                raise InvalidTaskError(
                    f"{field} of a Task must be a {kind.__name__}, not {short_repr(getattr(self, field))}."
                )
        needed, caps = self.tables.memory_bytes, self.topology.memory_cap_bytes
        largest = int(needed.argmax())
        if needed[largest] > caps.max():
            raise TableTooLargeError(
                f"Table {largest} ({self.tables.names[largest]}) of task {self.name!r} needs {needed[largest]} bytes "
                f"({format_bytes(needed[largest])}), but the largest memory cap of a device is {caps.max()} bytes "
                f"({format_bytes(caps.max())}). Raise memory_cap_bytes or split the table by columns."
            )
        needed_in_all, there_in_all = sum(needed.tolist()), sum(caps.tolist())  # int64 wraps with caps like 2**62
        if needed_in_all > there_in_all:
            raise InvalidTaskError(
                f"The {self.num_tables} tables of task {self.name!r} need {format_bytes(needed_in_all)}, "
                f"but the {self.num_devices} devices have {format_bytes(there_in_all)}. Add devices or raise the caps."
            )
        if self.known_placement is not None:
            known = check_placement(self.known_placement, self.tables, self.topology)
            known.setflags(write=False)
            object.__setattr__(self, "known_placement", known)

    @property
    def num_tables(self) -> int:
        """T."""
        return len(self.tables)

    @property
    def num_devices(self) -> int:
        """D."""
        return self.topology.num_devices

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.num_tables} tables, {self.num_devices} devices)"


@runtime_checkable
class TaskSource(Protocol):
    """Where an environment takes its tasks from: a `TaskSuite`, a `TaskSampler`, or anything of this shape."""

    @property
    def max_tables(self) -> int:
        """No task has more tables."""

    @property
    def max_devices(self) -> int:
        """No task has more devices."""

    def sample(self, rng: np.random.Generator) -> Task:
        """One task, all randomness from `rng`."""


@dataclass(frozen=True, eq=False)
class TaskSuite:
    """A fixed, ordered list of tasks: one split of a named suite, or any tasks of your own.

    Attributes:
        name: name of the suite.
        split: "train" or "test" for the named suites.
        tasks: the tasks, at least one.
        version: raised when the suite's data change.
        sha256: of the suite's file, 64 hexadecimal digits; empty for a suite that is not from a file.
        description: one sentence.
        padding: T and D of the largest tasks of all splits together, where there are more splits than this one; so an
            agent trained on one split can place every other.

    Raises:
        InvalidTaskError: there are no tasks, two of them share a name, or one is not a Task.
    """

    name: str
    tasks: tuple[Task, ...]
    split: str = "custom"
    version: int = 1
    sha256: str = ""
    description: str = ""
    padding: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        given: Any = self.tasks
        object.__setattr__(self, "tasks", tuple(given) if isinstance(given, Iterable) else (given,))
        strange = [task for task in self.tasks if not isinstance(task, Task)]
        if strange or not isinstance(given, Iterable):
            raise InvalidTaskError(
                f"tasks of suite {self.name!r} must be a list of Tasks, such as [task]; "
                f"got {short_repr(strange[0] if strange else given)}."
            )
        if not self.tasks:
            raise InvalidTaskError(f"Suite {self.name!r} has no tasks; give it at least one.")
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise InvalidTaskError(f"Suite {self.name!r} has two tasks of the same name; rename one.")

    @property
    def max_tables(self) -> int:
        """Tables of the largest task, of all splits."""
        return max(*(task.num_tables for task in self.tasks), self.padding[0] if self.padding else 1)

    @property
    def max_devices(self) -> int:
        """Devices of the widest task, of all splits."""
        return max(*(task.num_devices for task in self.tasks), self.padding[1] if self.padding else 1)

    def sample(self, rng: np.random.Generator) -> Task:
        """One of the tasks, all equally likely."""
        return self.tasks[int(rng.integers(len(self.tasks)))]

    def task(self, key: int | str) -> Task:
        """The task at index `key`, or of that name.

        Raises:
            UnknownNameError: no task has that name.
            InvalidOptionError: the index is out of range.
        """
        if isinstance(key, str):
            by_name = {task.name: task for task in self.tasks}
            if key not in by_name:
                raise unknown_name(f"task in {self.name!r} ({self.split})", key, by_name, self._listing())
            return by_name[key]
        if not _is_whole(key) or not 0 <= key < len(self.tasks):
            raise InvalidOptionError(
                f"{self.name!r} ({self.split}) has tasks 0 to {len(self.tasks) - 1}; "
                f"there is no task {short_repr(key)}."
            )
        return self.tasks[int(key)]

    def _listing(self) -> str:
        """The tasks there are, shorter than all their names."""
        return f"tasks 0 to {len(self.tasks) - 1}, or names like {self.tasks[0].name!r}"

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]

    def __repr__(self) -> str:
        return f"TaskSuite({self.name!r}, {self.split!r}, {len(self)} tasks)"


def pack_by_memory(tables: Tables, num_devices: int) -> Placement:
    """(T,) int64, largest table first, each to the device with the fewest bytes so far.

    It looks at memory alone (equal caps): a proof that a task can be solved, not a good placement.
    """
    used = np.zeros(num_devices, np.int64)
    placement = np.empty(len(tables), np.int64)
    for table in np.argsort(-tables.memory_bytes, kind="stable"):
        placement[table] = used.argmin()
        used[placement[table]] += tables.memory_bytes[table]
    return placement


@dataclass(frozen=True, eq=False)
class TaskSampler:
    """Draws fresh tasks from a pool of tables. Every task it returns carries a known valid placement.

    Attributes:
        pool: the tables to draw from, without replacement within a task; a pool stands for its tables.
        num_tables: smallest and largest T, both included; equally likely.
        num_devices: smallest and largest D, both included; D never exceeds T.
        profile: the hardware, a profile or its name.
        embedding_dims: widths to draw each table's from; empty keeps the pool's.
        memory_slack: every device may hold this many times what the fullest one holds when the tables are packed evenly
            by bytes (rounded up to whole MiB, at most the device's memory), so that memory matters at every size.
        name: prefix of the tasks' names.

    Raises:
        InvalidTaskError: a range, a width or the slack means nothing, or the pool is none.
        InvalidOptionError: the profile is neither a HardwareProfile nor a name.
        UnknownNameError: no profile has that name.
    """

    pool: Tables | Pool
    num_tables: tuple[int, int]
    num_devices: tuple[int, int]
    profile: HardwareProfile | str = "a100-dgx"
    embedding_dims: Sequence[int] = ()
    memory_slack: float = 1.5
    name: str = "sampled"

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
        slack: Any = self.memory_slack
        number = isinstance(slack, (int, float, np.number)) and not isinstance(slack, bool)
        if not number or not 1.0 < slack < np.inf:
            raise InvalidTaskError(f"memory_slack must be a number above 1, not {short_repr(slack)}.")

    def _check_range(self, field: str, most: int | None) -> None:
        given = getattr(self, field)
        pair = given if isinstance(given, (tuple, list)) and len(given) == 2 else ()
        if not pair or not all(map(_is_whole, pair)):
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
    def tables(self) -> Tables:
        """The tables to draw from."""
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
        """One fresh task; its name holds a random number, so that two differ."""
        count = int(rng.integers(self.num_tables[0], self.num_tables[1] + 1))
        devices = min(count, int(rng.integers(self.num_devices[0], self.num_devices[1] + 1)))
        chosen: NDArray[np.int64] = rng.choice(len(self.tables), size=count, replace=False)
        tables = self.tables.select(chosen)
        if len(self.embedding_dims):
            tables = tables.with_dims(rng.choice(np.asarray(self.embedding_dims, np.int64), size=count))
        return capped_task(
            f"{self.name}-{int(rng.integers(2**32)):08x}", tables, devices, self.profile, self.memory_slack
        )


def capped_task(
    name: str, tables: Tables, num_devices: int, profile: HardwareProfile | str, memory_slack: float
) -> Task:
    """A task whose memory caps follow the tables (see `TaskSampler.memory_slack`), with a known placement.

    Raises:
        InvalidTaskError: the devices' memory is too small for the tables.
    """
    hardware = _hardware(profile)
    known = pack_by_memory(tables, num_devices)
    packed = int(memory_used(known, tables, num_devices).max())
    if packed > hardware.device.memory_bytes:
        raise InvalidTaskError(
            f"No placement was found for task {name!r}: {len(tables)} tables with "
            f"{format_bytes(tables.memory_bytes.sum())} on {num_devices} x {hardware.device.name} with "
            f"{format_bytes(hardware.device.memory_bytes)} each. Add devices or draw fewer tables."
        )
    cap = min(-(-int(memory_slack * packed) // MIB) * MIB, hardware.device.memory_bytes)
    return Task(name, tables, hardware.topology(num_devices, memory_cap_bytes=cap), known)


def _hardware(profile: Any) -> HardwareProfile:
    """`profile` itself, or the one it names."""
    if isinstance(profile, HardwareProfile):
        return profile
    if isinstance(profile, str):
        return hardware_profile(profile)
    raise wrong_kind("profile", profile, "a HardwareProfile or the name of one, such as 'a100-dgx'")


def _check_dims(dims: Any) -> None:
    """Refuse widths that no table can have."""
    given = dims.tolist() if isinstance(dims, np.ndarray) else dims
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or not all(_is_whole(dim) and 4 <= dim <= MAX_DIM and dim % 4 == 0 for dim in given):
        raise InvalidTaskError(
            f"embedding_dims of a TaskSampler must be a list of multiples of 4 from 4 to {MAX_DIM}, such as (16, 32), "
            f"not {short_repr(dims)}."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
