"""The prepared tasks of N environments, and which task each environment solves."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from shard_gym.common.arrays import IntArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.envs.core.problem import TableOrder, empty_problem, empty_tables, prepare
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.tasks.task import has_host_memory, num_groups_of


class PreparedTasks:
    """The tasks of a suite, each prepared once, when it is first used; and one task from elsewhere per environment.

    Attributes:
        problem: the tasks of the N environments; `begin` changes it in place.
        host_memory: whether tasks may have host memory.
        suite_index: (N,) int64, the number of each environment's task in the suite; -1 for one from elsewhere.
    """

    def __init__(
        self,
        source: TaskSource,
        model: AdditiveCostModel,
        max_tables: int,
        max_devices: int,
        num_envs: int,
        order_of: TableOrder | None = None,
        rules: SplitRules | None = None,
        like: PreparedTasks | None = None,
    ) -> None:
        """With `like`, there is room for host memory and for as many groups as there."""
        self._suite = source.tasks if isinstance(source, TaskSuite) else ()
        self._row_of = {task.name: row for row, task in enumerate(self._suite)}
        self._prepared = np.zeros(len(self._suite), np.bool_)
        self._model, self._order_of = model, order_of
        places = len(self._suite) + num_envs
        self.host_memory, self._num_groups = has_host_memory(source), num_groups_of(source)
        if like is not None:
            self.host_memory, self._num_groups = like.host_memory, like._num_groups
        num_loads = model.num_loads_with(self.host_memory, self._num_groups)
        num_variants = 1 if rules is None else rules.num_variants
        tables = empty_tables(places, max_tables, num_loads, num_variants, self.host_memory)
        self._all = empty_problem(places, max_devices, tables, rules)
        self.problem = empty_problem(num_envs, max_devices, tables, rules)
        self.suite_index = np.full(num_envs, -1, np.int64)

    def of_source(self, source: TaskSource) -> PreparedTasks:
        """The tasks of another source, for as many environments, none of which has begun.

        Raises:
            InvalidOptionError: the tasks have more groups of tables than these, or host memory and these have none.
        """
        if has_host_memory(source) and not self.host_memory:
            raise InvalidOptionError(
                "These tasks have host memory, but this environment was made for tasks without. Make one for them, "
                "which plays both."
            )
        if num_groups_of(source) > self._num_groups:
            raise InvalidOptionError(
                f"The tables of these tasks have up to {num_groups_of(source)} workloads, but this environment was "
                f"made for {self._num_groups}. Make one for them, which plays both."
            )
        sizes = self.problem.max_tables, self.problem.max_devices, len(self.suite_index)
        return PreparedTasks(source, self._model, *sizes, self._order_of, self.problem.rules, self)

    def begin(self, envs: IntArray, tasks: Sequence[Task]) -> None:
        """Give environment `envs[i]` the task `tasks[i]`."""
        rows = np.array([self._row(int(env), task) for env, task in zip(envs, tasks, strict=True)], np.int64)
        # All are prepared before any replaces a task that an environment plays: preparing one may raise.
        padding = self.problem.max_tables, self.problem.max_devices
        new = {
            row: prepare(
                task,
                self._model,
                *padding,
                self.host_memory,
                self._order_of,
                self.problem.rules,
                self._num_groups,
            )
            for row, task in dict(zip(rows.tolist(), tasks, strict=True)).items()
            if row >= len(self._suite) or not self._prepared[row]
        }
        for row, prepared in new.items():
            self._all.put(row, prepared)
        self._prepared[[row for row in new if row < len(self._suite)]] = True
        self.problem.take(envs, self._all, rows)
        self.suite_index[envs] = np.where(rows < len(self._suite), rows, -1)

    def copy(self) -> PreparedTasks:
        """A copy that shares no memory with this one."""
        clone = copy.copy(self)
        clone._prepared, clone.suite_index = self._prepared.copy(), self.suite_index.copy()
        clone._all, clone.problem = copy.deepcopy((self._all, self.problem))  # together: they share their tables
        return clone

    def _row(self, env: int, task: Task) -> int:
        row = self._row_of.get(task.name, -1)
        return len(self._suite) + env if row < 0 or self._suite[row] is not task else row
