"""The prepared tasks of N environments, and which task each environment solves."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.envs.core.problem import (
    IntArray,
    Problem,
    empty_problem,
    empty_tables,
    prepare,
    prepare_splits,
)
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.tasks import Task, TaskSource, TaskSuite


class PreparedTasks:
    """The tasks of a suite, each prepared once, when it is first used; and one task from elsewhere per environment.

    With `rules` tables may be split, and `model` is a `ShardingCostModel`.

    Attributes:
        problem: the tasks of the N environments; `begin` changes it in place.
    """

    def __init__(
        self,
        source: TaskSource,
        model: AdditiveCostModel,
        max_tables: int,
        max_devices: int,
        num_envs: int,
        rules: SplitRules | None = None,
    ) -> None:
        self._suite = source.tasks if isinstance(source, TaskSuite) else ()
        self._row_of = {task.name: row for row, task in enumerate(self._suite)}
        self._prepared = np.zeros(len(self._suite), np.bool_)
        self._model = model
        places = len(self._suite) + num_envs
        variants = 1 if rules is None else rules.num_variants
        tables = empty_tables(places, max_tables, model.num_loads, variants)
        self._all = empty_problem(places, max_devices, tables, rules)
        self.problem = empty_problem(num_envs, max_devices, tables, rules)

    def begin(self, envs: IntArray, tasks: Sequence[Task]) -> None:
        """Give environment `envs[i]` the task `tasks[i]`.

        Raises:
            InvalidTaskError: a task has more tables or devices than the padding holds.
        """
        rows = np.array([self._row(int(env), task) for env, task in zip(envs, tasks, strict=True)], np.int64)
        self.problem.take(envs, self._all, rows)

    def copy(self) -> PreparedTasks:
        """A copy that shares no memory with this one."""
        clone = copy.copy(self)
        clone._prepared = self._prepared.copy()
        clone._all, clone.problem = copy.deepcopy((self._all, self.problem))  # together: they share their tables
        return clone

    def _row(self, env: int, task: Task) -> int:
        row = self._row_of.get(task.name, -1)
        if row < 0 or self._suite[row] is not task:
            row = len(self._suite) + env
        elif self._prepared[row]:
            return row
        self._all.put(row, self._prepare(task))
        if row < len(self._suite):
            self._prepared[row] = True
        return row

    def _prepare(self, task: Task) -> Problem:
        model, rules, size = self._model, self.problem.rules, (self.problem.max_tables, self.problem.max_devices)
        if rules is None:
            return prepare(task, model, *size)
        assert isinstance(model, ShardingCostModel)
        return prepare_splits(task, model, rules, *size)
