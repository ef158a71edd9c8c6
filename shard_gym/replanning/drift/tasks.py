"""`DriftTask`: a placement task whose tables drift over days, and what a new plan costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import checked_positive, checked_seed, require_kinds, require_name
from shard_gym.common.errors import InvalidOptionError, InvalidTaskError, short_repr
from shard_gym.hardware import Topology
from shard_gym.plans.needs import HOST_MEMORY, MIXED, NEEDS, unsupported
from shard_gym.replanning.drift.levels import DriftLevel
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY, Drift, draw_available, draw_drift
from shard_gym.tables import RowPopularity
from shard_gym.tables.tables import MAX_BYTES
from shard_gym.tasks import Task

SUPPORTS = frozenset(NEEDS) - {HOST_MEMORY, MIXED}
"""What its tasks may need."""

HISTORY_DAYS, DAYS = 3, 14
"""Days that are known when an episode begins, and days of the episode."""

HEADROOM_DAYS = 10
"""The days of growth for which a plan with headroom has room."""

MAX_PAUSE_S = 1e9
"""The longest pause."""

ITERATIONS_PER_DAY = 100_000
"""Iterations of training in a day; a day is so much work, however long it takes. Assumed."""

MAX_SHARDS = 8
"""The most parts of a table that may be sharded."""

NOISE = 0.02
"""Deviation of a measured cost from the cost of its interval. Assumed."""


@dataclass(frozen=True, eq=False)
class DriftTask:
    """One replanning problem.

    Raises:
        InvalidTaskError: the popularity is of other tables, the name is none, a value is of another class, or the
            tables may grow beyond what tables may need.
        InvalidOptionError: the seed or the pause is out of range.
    """

    name: str  #: unique in its suite
    task: Task  #: the tables at the beginning of the history, and the devices
    popularity: RowPopularity  #: of the rows of the tables then
    level: DriftLevel
    seed: int
    pause_s: float  #: seconds without training for each new plan

    def __post_init__(self) -> None:
        require_name("The name of a task", self.name, InvalidTaskError)
        called = f"task {self.name!r}"
        require_kinds(self, called, InvalidTaskError, task=Task, popularity=RowPopularity, level=DriftLevel)
        if len(self.popularity) != self.task.num_tables:
            raise InvalidTaskError(
                f"Task {self.name!r} has {self.task.num_tables} tables, but row popularities of "
                f"{len(self.popularity)}. Give one for each table."
            )
        if lacking := unsupported(self.task.needs, SUPPORTS):
            raise InvalidTaskError(
                f"Replanning, of which {self.name!r} is a task, does not support {lacking.what}; {lacking.instead}."
            )
        if self.task.constraints is not None:
            raise InvalidTaskError(
                f"Replanning, of which {self.name!r} is a task, keeps to no constraints; leave them out: "
                "dataclasses.replace(task, constraints=None)."
            )
        if self.level.departures and self.task.topology.num_domains > 1:
            raise InvalidTaskError(
                f"Devices of task {self.name!r} leave and return, so they must have fast links between all of them, "
                f"but its {self.task.num_devices} devices are on hosts of {self.task.topology.domain_size}. Set the "
                "departures of its level to 0, or use fewer devices."
            )
        object.__setattr__(self, "seed", int(checked_seed(self.seed)))
        if checked_positive("pause_s", self.pause_s) > MAX_PAUSE_S:
            raise InvalidOptionError(
                f"pause_s of task {self.name!r} must be at most {MAX_PAUSE_S:g} s, not {short_repr(self.pause_s)}."
            )
        grown = float(self.task.tables.memory_bytes.sum()) * self.level.most_growth(HISTORY_DAYS + DAYS + HEADROOM_DAYS)
        if grown > MAX_BYTES:
            raise InvalidTaskError(
                f"The tables of task {self.name!r} may grow to {grown:.3g} bytes; the limit is {MAX_BYTES:.3g}. Lower "
                "the growth of its level, raise its age_days, or give smaller tables."
            )

    problem: ClassVar[str] = "replanning"

    def __repr__(self) -> str:
        sizes = f"{self.num_tables} tables, {self.num_devices} devices"
        return f"DriftTask({self.name!r}, {sizes}, {self.pause_s:g} s for a plan)"

    @property
    def num_tables(self) -> int:
        """T."""
        return self.task.num_tables

    @property
    def num_devices(self) -> int:
        """D."""
        return self.task.num_devices

    @property
    def topology(self) -> Topology:
        """The D devices."""
        return self.task.topology

    @property
    def max_parts(self) -> int:
        """The most parts that its tables are split into."""
        return most_parts(self.task)

    @property
    def grows(self) -> bool:
        """Whether tables may need more memory from day to day."""
        return self.level.growth > 0

    @cached_property
    def drift(self) -> Drift:
        """That of the history and of the episode, always the same."""
        return draw_drift(self.level, self.task.num_tables, HISTORY_DAYS + DAYS, np.random.default_rng(self.seed))

    @cached_property
    def available(self) -> NDArray[np.bool_]:
        """(24 * DAYS, D) bool, which devices are there in each hour of the episode; in the history all are."""
        rng = np.random.default_rng([self.seed, 1])
        return draw_available(self.level, self.task.num_devices, 24 * DAYS, rng)

    @cached_property
    def noise(self) -> NDArray[np.float64]:
        """Relative errors of the measured costs of all intervals from the day before the episode on."""
        rng = np.random.default_rng([self.seed, 2])
        return rng.normal(0.0, NOISE, (DAYS + 1) * INTERVALS_PER_DAY)


def most_parts(task: Task) -> int:
    """The most parts that the tables of a task are split into."""
    return task.num_tables * (MAX_SHARDS if task.splittable else 1)
