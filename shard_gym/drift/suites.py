"""The named suites of drifting tasks: data with checksums, shipped in the package; and suites of your own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shard_gym.checks import checked_count, is_integer, require_name
from shard_gym.drift.levels import DriftLevel
from shard_gym.drift.tasks import DriftTask
from shard_gym.errors import (
    DamagedFileError,
    InvalidOptionError,
    InvalidTaskError,
    short_repr,
    unknown_name,
    wrong_kind,
)
from shard_gym.io.files import read_index, read_shipped, sha256_of
from shard_gym.io.parsing import parse_json
from shard_gym.pools import load_pool
from shard_gym.row_popularity import RowPopularity
from shard_gym.suites import load_suite
from shard_gym.tables import Tables
from shard_gym.tasks import Task

DATA = Path(__file__).parent / "data"
SCHEMA = 1
MAX_SHARDS = 8
"""Parts of a table that may be split."""

_KEYS = {"schema", "name", "version", "description", "level", "pauses_s", "pool", "suites", "splits"}


@runtime_checkable
class DriftSource(Protocol):
    """Where an environment takes its tasks from."""

    @property
    def max_parts(self) -> int:
        """The most parts that the tables of a task are split into."""

    @property
    def max_devices(self) -> int:
        """The largest D."""

    @property
    def grows(self) -> bool:
        """Whether tables of a task may need more memory from day to day."""

    def sample(self, rng: np.random.Generator) -> DriftTask:
        """A task drawn at random."""


@dataclass(frozen=True, eq=False)
class DriftSuite:
    """A fixed, ordered list of drifting tasks: one split of a named suite, or tasks of your own.

    Attributes:
        name: name of the suite.
        split: "train" or "test" for the named suites.
        tasks: the tasks, at least one.
        version: raised when the suite's data change.
        sha256: SHA-256 of the suite's file, 64 hexadecimal digits; empty for a suite that is not from a file.
        description: one sentence.
        padding: largest numbers of parts and devices over all splits, or None.

    Raises:
        InvalidTaskError: there are no tasks, two tasks share a name, or an element is not a DriftTask.
    """

    name: str
    tasks: tuple[DriftTask, ...]
    split: str = "custom"
    version: int = 1
    sha256: str = ""
    description: str = ""
    padding: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require_name("The name of a suite", self.name, InvalidTaskError)
        given: Any = self.tasks
        if not isinstance(given, (list, tuple)) or not all(isinstance(each, DriftTask) for each in given) or not given:
            raise InvalidTaskError(
                f"tasks of suite {self.name!r} must be a list of DriftTasks with at least one, not {short_repr(given)}."
            )
        object.__setattr__(self, "tasks", tuple(given))
        if len({task.name for task in self.tasks}) < len(self.tasks):
            raise InvalidTaskError(f"Suite {self.name!r} has two tasks of the same name; rename one.")

    @property
    def max_parts(self) -> int:
        """The most parts that the tables of a task are split into, over all splits."""
        return max(*(most_parts(task.task) for task in self.tasks), self.padding[0] if self.padding else 1)

    @property
    def max_devices(self) -> int:
        """The largest D of a task, over all splits."""
        return max(*(task.task.num_devices for task in self.tasks), self.padding[1] if self.padding else 1)

    @property
    def grows(self) -> bool:
        """Whether tables of a task may need more memory from day to day."""
        return any(task.grows for task in self.tasks)

    def sample(self, rng: np.random.Generator) -> DriftTask:
        """One of the tasks, with equal probability."""
        return self.tasks[int(rng.integers(len(self.tasks)))]

    def task(self, key: int | str) -> DriftTask:
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

    def reseeded(self, times: int, most_tables: int = 2**31) -> DriftSuite:
        """A suite with the same tables and new drift, to train on: each task `times` times, with seeds of its own.

        Args:
            times: how many new tasks there are for each.
            most_tables: tasks with more tables are left out.

        Raises:
            InvalidOptionError: tables grow, or all tasks have more tables.
        """
        if self.grows:
            raise InvalidOptionError(
                f"Tables of suite {self.name!r} grow, and its memory caps have room for the growth of its own seeds "
                "only. Make DriftTasks with other seeds and with caps that fit."
            )
        some = [task for task in self.tasks if task.task.num_tables <= most_tables]
        if not some:
            raise InvalidOptionError(
                f"No task of suite {self.name!r} has at most {most_tables} tables. Raise most_tables."
            )
        tasks = tuple(
            replace(task, name=f"{task.name}/{number}", seed=_new_seed(task.seed, number))
            for number in range(checked_count("times", times))
            for task in some
        )
        return replace(self, name=f"{self.name}-reseeded", tasks=tasks, sha256="")

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[DriftTask]:
        return iter(self.tasks)

    def __getitem__(self, key: int | str) -> DriftTask:
        """See `task`."""
        return self.task(key)

    def __repr__(self) -> str:
        return f"DriftSuite({self.name!r}, {self.split!r}, {len(self)} tasks)"


def _new_seed(seed: int, number: int) -> int:
    return int(np.random.default_rng([seed, 1 + number]).integers(2**31))


def most_parts(task: Task) -> int:
    """The most parts that the tables of a task are split into."""
    return task.num_tables * (MAX_SHARDS if task.splittable else 1)


def drift_suite_names() -> list[str]:
    """The names of the suites, such as "drift-strong-600": a file, and the seconds of a pause."""
    return [f"{file}-{pause:g}" for file in sorted(read_index(DATA)) for pause in _record(file)[0]["pauses_s"]]


def load_drift_suite(name: str, split: str = "test") -> DriftSuite:
    """One split of the suite named `name`, such as "drift-strong-600".

    Raises:
        UnknownNameError: no suite has that name.
        InvalidOptionError: the suite has no such split.
        DamagedFileError: the file of the suite, or of one that its tables are from, was changed.
    """
    if not isinstance(name, str) or name not in drift_suite_names():
        raise unknown_name("suite of drifting tasks", name, drift_suite_names())
    if not isinstance(split, str):  # lru_cache needs a hashable one
        raise wrong_kind("split", split, "the name of a split, 'train' or 'test'")
    file, pause = name.rsplit("-", 1)
    return _load(file, float(pause), split)


def drift_source(suite: Any, split: str) -> DriftSource:
    """The suite of this name and split; a source of tasks is returned as it is.

    Raises:
        UnknownNameError, InvalidOptionError, DamagedFileError: see `load_drift_suite`.
    """
    if isinstance(suite, str):
        return load_drift_suite(suite, split)
    if isinstance(suite, type) or not isinstance(suite, DriftSource):
        hint = "Wrap tasks of your own in one: DriftSuite('mine', [task])."
        raise wrong_kind("suite", suite, "the name of a suite or a DriftSuite", hint)
    return suite


@lru_cache(maxsize=64)
def _load(file: str, pause_s: float, split: str) -> DriftSuite:
    record, sha256 = _record(file)
    name, splits = f"{file}-{pause_s:g}", record["splits"]
    if split not in splits:
        raise InvalidOptionError(f"Suite {name!r} has the splits {sorted(splits)}, not {short_repr(split)}.")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in record["level"].items()}
    level = DriftLevel(**values)
    made = {
        each: [_task_and_law(entry["task"], entry["memory_cap_bytes"], record["pool"]["name"]) for entry in entries]
        for each, entries in splits.items()
    }
    tasks = tuple(
        DriftTask(f"{name}/{split}/{number}", task, law, level, entry["seed"], pause_s)
        for number, ((task, law), entry) in enumerate(zip(made[split], splits[split], strict=True))
    )
    every = [task for entries in made.values() for task, _ in entries]
    padding = max(map(most_parts, every)), max(task.num_devices for task in every)
    return DriftSuite(name, tasks, split, record["version"], sha256, record["description"], padding)


@lru_cache(maxsize=2048)
def _task_and_law(name: str, memory_cap_bytes: int | None, pool: str) -> tuple[Task, RowPopularity]:
    """A placement task of another suite, perhaps with other memory caps; the popularity of the rows of its tables.

    It is the same object whatever a pause takes, so that environments share what they compute of it.
    """
    suite, split, _ = name.split("/")
    task = load_suite(suite, split)[name]
    if memory_cap_bytes is not None:
        caps = np.full(task.num_devices, memory_cap_bytes)
        task = replace(task, topology=replace(task.topology, memory_cap_bytes=caps), known_placement=None)
    return task, law_of(task.tables, pool)


def law_of(tables: Tables, pool_name: str) -> RowPopularity:
    """The popularity of the rows of tables of a pool, which has one."""
    pool = load_pool(pool_name)
    assert pool.popularity is not None
    position = {name: index for index, name in enumerate(pool.tables.names)}
    chosen = np.array([position[name] for name in tables.names])
    return RowPopularity(pool.popularity.q[chosen], pool.popularity.s[chosen])


@lru_cache(maxsize=64)
def _record(file: str) -> tuple[dict[str, Any], str]:
    """The record in a suite's file, and its SHA-256."""
    data = read_shipped(DATA, file, "suite of drifting tasks")
    record = parse_json(data, f"Suite {file!r}")
    if not isinstance(record, dict) or set(record) != _KEYS or record["schema"] != SCHEMA:
        raise DamagedFileError(f"The file of suite {file!r} must be an object of schema {SCHEMA} with {sorted(_KEYS)}.")
    pool = load_pool(record["pool"]["name"])
    if pool.sha256 != record["pool"]["sha256"]:
        raise DamagedFileError(
            f"Suite {file!r} was made for pool {record['pool']['name']!r} with SHA-256 {record['pool']['sha256']}, but "
            f"the installed pool has {pool.sha256}. Reinstall shard-gym."
        )
    for suite, sha256 in record["suites"].items():
        if load_suite(suite).sha256 != sha256:
            raise DamagedFileError(
                f"Suite {file!r} was made for suite {suite!r} with SHA-256 {sha256}, but the installed one has "
                f"{load_suite(suite).sha256}. Reinstall shard-gym."
            )
    return record, sha256_of(data)
