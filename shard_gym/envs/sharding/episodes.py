"""Episodes in which tables may be split: their rules, their plans, and why they fail."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.checks import checked_count
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.envs.core.episodes import Episodes, Observation, task_source
from shard_gym.envs.core.plans import shardings_of
from shard_gym.envs.core.problem import IntArray
from shard_gym.envs.core.reward import Reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import DEAD_END, ILLEGAL_ACTION, ShardingState, Status
from shard_gym.sharding import ShardingPlan, TableSharding
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.text import format_bytes


class ShardingEpisodes(Episodes):
    """N episodes of `EmbeddingSharding-v0`. Arguments are those of `EmbeddingShardingEnv`, and `num_envs`.

    `make_observation` makes the observation from the rules.
    """

    def __init__(
        self,
        num_envs: int,
        suite: str | TaskSource,
        split: str,
        cost_model: str | Path | ShardingCostModel,
        reward: str | Reward,
        make_observation: Callable[[SplitRules], Observation],
        max_tables: int | None,
        max_devices: int | None,
        max_hosts: int | None,
        sharding_types: Collection[str],
        max_shards: int,
    ) -> None:
        source, model = task_source(suite, split), make_sharding_cost_model(cost_model)
        devices = source.max_devices if max_devices is None else checked_count("max_devices", max_devices)
        hosts = _hosts_of(source) if max_hosts is None else checked_count("max_hosts", max_hosts)
        self._split_rules = SplitRules.of(sharding_types, devices, hosts, max_shards)
        observation = make_observation(self._split_rules)
        super().__init__(num_envs, source, split, model, reward, observation, max_tables, max_devices)

    def _rules(self) -> SplitRules:
        return self._split_rules

    def outcomes(self, envs: IntArray) -> dict[str, NDArray[Any]]:
        """The actions of complete episodes, (len(envs), M) int32, -1 after the last."""
        return {"actions": self.state.assignment[envs]}

    def placements(self, envs: IntArray) -> IntArray:
        """(len(envs), max_tables) int64, the device of each table's first shard; -1 if it has none."""
        found = np.full((len(envs), self.max_tables), -1, np.int64)
        for row, env in enumerate(envs.tolist()):
            for table, sharding in self.shardings(env).items():
                found[row, table] = sharding.shards[0].device
        return found

    def shardings(self, env: int) -> dict[int, TableSharding]:
        """The shardings of the tables of episode `env` so far; see `shardings_of`."""
        actions = self.state.assignment[env, : self.state.step[env]].tolist()
        order = self.problem.tables.order[self.problem.row[env]]
        return shardings_of(self.task(env), order, actions, self._split_rules)

    def plan(self, env: int) -> ShardingPlan:
        """The plan of episode `env` so far; tables that have no shard yet are table_wise without shards."""
        found, none = self.shardings(env), TableSharding("table_wise", ())
        return ShardingPlan(tuple(found.get(table, none) for table in range(self.task(env).num_tables)))

    def current_table(self, env: int) -> int:
        """The table of which a part comes next; -1 after the last."""
        state, problem = _sharding_state(self), self.problem
        position = int(state.table[env])
        return int(problem.tables.order[problem.row[env], position]) if position < problem.num_tables[env] else -1

    def failure(self, env: int) -> dict[str, Any] | None:
        """See `Episodes.failure`; the bytes needed are those of the current part."""
        task, problem, state = self.task(env), self.problem, _sharding_state(self)
        status = int(state.status[env])
        if status not in (ILLEGAL_ACTION, DEAD_END):
            return None
        name = task.tables.names[self.current_table(env)]
        row = int(state.table[env]) * self._split_rules.num_variants + int(state.level[env])
        needed = int(problem.tables.memory[problem.row[env], row])
        free = int((problem.memory_cap[env] - state.memory_used[env]).max())
        part = "The current shard of table" if state.level[env] else "Table"
        what = (
            "fits no device, and no split of it fits" if status == DEAD_END else "was given an action that is illegal"
        )
        return {
            "reason": Status(status).name.lower(),
            "table": name,
            "bytes_needed": needed,
            "bytes_free": free,
            "message": (
                f"{part} {name} {what}: it needs {needed} bytes ({format_bytes(needed)}), "
                f"and the emptiest of the {task.num_devices} devices has {free} bytes ({format_bytes(free)}) free."
            ),
        }


def _sharding_state(episodes: ShardingEpisodes) -> ShardingState:
    assert isinstance(episodes.state, ShardingState)
    return episodes.state


def _hosts_of(source: TaskSource) -> int:
    """The most hosts of a task of a suite; of another source, those of its largest task if hosts are as in a sample."""
    tasks: list[Task] = list(source) if isinstance(source, TaskSuite) else [source.sample(np.random.default_rng(0))]
    per_host = min(task.topology.devices_per_host for task in tasks)
    return max(-(-source.max_devices // per_host), 1)
