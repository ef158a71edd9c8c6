"""Episodes in which tables may be split: their configuration, their rules and their plans."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from typing_extensions import override

from shard_gym.checks import checked_count
from shard_gym.cost_models import CostEstimate, CostModel, make_sharding_cost_model
from shard_gym.cost_models.sharding import PlanCosts, ShardingCostModel
from shard_gym.envs.core.config import padding
from shard_gym.envs.core.episode_state import ShardingState
from shard_gym.envs.core.episodes import Observation
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.splits import columns_begun
from shard_gym.envs.placement.episodes import PlacementConfig, PlacementEpisodes
from shard_gym.envs.placement.observation import make_observation
from shard_gym.envs.placement.rendering.view import MAX_SPLITS, PlanView
from shard_gym.envs.sharding.observation import OBSERVATIONS
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan
from shard_gym.tasks import Task, TaskSource, TaskSuite, cost_model_for, has_host_memory
from shard_gym.topology import MAX_DEVICES


@dataclass(frozen=True, eq=False)
class ShardingConfig(PlacementConfig):
    """The arguments of `EmbeddingShardingEnv`."""

    suite: str | TaskSource = "shard-4"
    cost_model: str | Path | ShardingCostModel = "analytical"
    sharding_types: Collection[str] = SHARDING_TYPES
    max_shards: int = 8
    max_hosts: int | None = None

    @override
    @cached_property
    def model(self) -> ShardingCostModel:
        return make_sharding_cost_model(cost_model_for(self.source, self.cost_model))

    @override
    @cached_property
    def rules(self) -> SplitRules:
        devices = padding("max_devices", self.max_devices, self.source.max_devices, MAX_DEVICES)
        if self.max_hosts is None:
            hosts = _hosts_of(self.source)
        else:
            hosts = checked_count("max_hosts", self.max_hosts, most=MAX_DEVICES)
        return SplitRules.of(self.sharding_types, devices, hosts, self.max_shards)

    @override
    @cached_property
    def observe(self) -> Observation:
        named = {name: partial(each, self.rules) for name, each in OBSERVATIONS.items()}
        return make_observation(self.observation, has_host_memory(self.source), named)

    @override
    def episodes(self, num_envs: int) -> ShardingEpisodes:
        return ShardingEpisodes(num_envs, self)


class ShardingEpisodes(PlacementEpisodes):
    """N episodes of `EmbeddingSharding-v0`; its `rules` say which action means what."""

    def __init__(self, num_envs: int, config: ShardingConfig) -> None:
        super().__init__(num_envs, config)
        self.rules = config.rules

    def plan(self, env: int) -> ShardingPlan:
        """The plan of episode `env` so far; tables that have no shard yet are table_wise without shards."""
        envs, state = np.array([env]), self.state
        assert isinstance(state, ShardingState)
        begun = int(columns_begun(state, self.rules, envs)[0])
        return plan_of(self.task(env), self.placements(envs)[0], self.rules, self.current_table(env), begun)

    @override
    def _final_penalty_ms(self, task: Task, model: CostModel) -> float:
        return _plan_costs(model).plan_penalty_ms(task.tables, task.topology)

    @override
    def _final_cost_of(self, env: int, model: CostModel) -> CostEstimate:
        task = self.task(env)
        return _plan_costs(model).estimate_plan(self.plan(env), task.tables, task.topology)

    @override
    def view(self, env: int) -> PlanView:
        plan = self.plan(env)
        first = np.array([sharding.devices[0] if sharding.shards else -1 for sharding in plan.tables], np.int64)
        return PlanView(placement=first, plan=plan, split_rows=MAX_SPLITS, **self._shown(env))


def _plan_costs(model: CostModel) -> PlanCosts:
    assert isinstance(model, PlanCosts)
    return model


def _hosts_of(source: TaskSource) -> int:
    """The most hosts of a task of a suite; of another source, those of its largest task if hosts are as in a sample."""
    tasks: list[Task] = list(source) if isinstance(source, TaskSuite) else [source.sample(np.random.default_rng(0))]
    per_host = min(task.topology.devices_per_host for task in tasks)
    return max(-(-source.max_devices // per_host), 1)
