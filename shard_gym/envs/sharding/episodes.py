"""Episodes in which tables may be split: their rules and their plans."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from shard_gym.checks import checked_count
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.envs.core.arguments import padding, task_source
from shard_gym.envs.core.episodes import Episodes, Observation
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.core.reward import Reward
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.splits import columns_begun
from shard_gym.envs.core.state import ShardingState
from shard_gym.envs.sharding.observation import make_sharding_observation
from shard_gym.sharding import ShardingPlan
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.topology import MAX_DEVICES


class ShardingEpisodes(Episodes):
    """N episodes of `EmbeddingSharding-v0`. Arguments are those of `EmbeddingShardingEnv`, and `num_envs`.

    Attributes:
        rules: which action means what.
    """

    def __init__(
        self,
        num_envs: int,
        suite: str | TaskSource,
        split: str,
        cost_model: str | Path | ShardingCostModel,
        reward: str | Reward,
        observation: str | Observation,
        sharding_types: Collection[str],
        max_shards: int,
        max_tables: int | None,
        max_devices: int | None,
        max_hosts: int | None,
        illegal: str,
    ) -> None:
        source, model = task_source(suite, split), make_sharding_cost_model(cost_model)
        devices = padding("max_devices", max_devices, source.max_devices)
        hosts = _hosts_of(source) if max_hosts is None else checked_count("max_hosts", max_hosts, most=MAX_DEVICES)
        self.rules = SplitRules.of(sharding_types, devices, hosts, max_shards)
        observe = make_sharding_observation(observation, self.rules)
        super().__init__(num_envs, source, split, model, reward, observe, max_tables, devices, illegal, self.rules)

    def plan(self, env: int) -> ShardingPlan:
        """The plan of episode `env` so far; tables that have no shard yet are table_wise without shards."""
        envs, state = np.array([env]), self.state
        assert isinstance(state, ShardingState)
        begun = int(columns_begun(state, self.rules, envs)[0])
        return plan_of(self.task(env), self.placements(envs)[0], self.rules, self.current_table(env), begun)

    def current_table(self, env: int) -> int | None:
        """The table of which a part comes next; None after the last."""
        task, problem, step = self.task(env), self.problem, int(self.state.step[env])
        return int(problem.tables.order[problem.row[env], step]) if step < task.num_tables else None


def _hosts_of(source: TaskSource) -> int:
    """The most hosts of a task of a suite; of another source, those of its largest task if hosts are as in a sample."""
    tasks: list[Task] = list(source) if isinstance(source, TaskSuite) else [source.sample(np.random.default_rng(0))]
    per_host = min(task.topology.devices_per_host for task in tasks)
    return max(-(-source.max_devices // per_host), 1)
