"""`DriftSuite`: drifting tasks, and what environments of replanning need of where their tasks come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError
from shard_gym.replanning.drift.tasks import DriftTask
from shard_gym.tasks import Suite


@runtime_checkable
class DriftSource(Protocol):
    """Where an environment of replanning takes its tasks from."""

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


@dataclass(frozen=True, eq=False, repr=False)
class DriftSuite(Suite[DriftTask]):
    """A suite of replanning."""

    task_class = DriftTask

    @property
    def max_parts(self) -> int:
        """The most parts that the tables of a task are split into, over all splits."""
        return max(*(task.max_parts for task in self.tasks), self.padding[0] if self.padding else 1)

    @property
    def grows(self) -> bool:
        """Whether tables of a task may need more memory from day to day."""
        return any(task.grows for task in self.tasks)

    def reseeded(self, times: int, most_tables: int = 2**31) -> DriftSuite:
        """A suite with the same tables and new drift, to train on: each task `times` times, with new seeds.

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
        most_tables = checked_count("most_tables", most_tables)
        some = [task for task in self.tasks if task.num_tables <= most_tables]
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


def _new_seed(seed: int, number: int) -> int:
    return int(np.random.default_rng([seed, 1 + number]).integers(2**31))
