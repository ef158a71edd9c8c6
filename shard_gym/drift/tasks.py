"""Re-placement problems: a placement task whose tables drift over days, and what a new plan costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shard_gym.checks import checked_positive, checked_seed, require_name
from shard_gym.drift.levels import DriftLevel
from shard_gym.drift.processes import Drift, draw_drift
from shard_gym.errors import InvalidTaskError
from shard_gym.row_popularity import RowPopularity
from shard_gym.tasks import Task

HISTORY_DAYS, DAYS = 3, 14
"""Days that are known when an episode begins, and days of the episode."""

ITERATIONS_PER_DAY = 100_000
"""Of training: a day is so much work, however long it takes. Assumed."""


@dataclass(frozen=True, eq=False)
class DriftTask:
    """One re-placement problem.

    Attributes:
        name: unique in its suite.
        task: the tables at the beginning of the history, and the devices.
        popularity: of the rows of the tables then.
        level: how strongly they drift.
        seed: of the drift.
        pause_s: seconds without training for each new plan.

    Raises:
        InvalidTaskError: the popularity is of other tables, or the name is none.
        InvalidOptionError: the seed or the pause is out of range.
    """

    name: str
    task: Task
    popularity: RowPopularity
    level: DriftLevel
    seed: int
    pause_s: float

    def __post_init__(self) -> None:
        require_name("The name of a task", self.name, InvalidTaskError)
        if len(self.popularity) != self.task.num_tables:
            raise InvalidTaskError(
                f"Task {self.name!r} has {self.task.num_tables} tables, but row popularities of "
                f"{len(self.popularity)}. Give one for each table."
            )
        checked_seed(self.seed)
        checked_positive("pause_s", self.pause_s)

    @cached_property
    def drift(self) -> Drift:
        """That of the history and of the episode, always the same."""
        return draw_drift(self.level, self.task.num_tables, HISTORY_DAYS + DAYS, np.random.default_rng(self.seed))
