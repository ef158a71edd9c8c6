"""Episodes in which tables may be split: their configuration, their rules and their plans."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import IntArray
from shard_gym.common.checks import checked_count
from shard_gym.cost_models import CostEstimate, CostModel, make_cost_model
from shard_gym.cost_models.base import PHASES, AdditiveCostModel
from shard_gym.envs.core.config import padding
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episode_state import PlacementState, ShardingState
from shard_gym.envs.core.episodes import Observation
from shard_gym.envs.core.hbm_curves import NUM_CURVE, bounded
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.core.problem import MAX_MS, EnvProblem
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.splits import columns_begun, receivers
from shard_gym.envs.placement.episodes import PlacementConfig, PlacementEpisodes
from shard_gym.envs.placement.observation import (
    ASSIGNMENT,
    CompactObservation,
    FeaturesObservation,
    FullObservation,
    box,
    make_observation,
)
from shard_gym.envs.placement.rendering.view import MAX_SPLITS, PlanView
from shard_gym.hardware import MAX_DEVICES
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.tables import AMOUNT_NAMES
from shard_gym.tasks import Task, TaskSource, TaskSuite
from shard_gym.tasks.task import cost_model_for, has_host_memory


class CompactShardingObservation(CompactObservation):
    """The current part and the devices; the size does not depend on the number of tables."""

    def __init__(self, rules: SplitRules, host_memory: bool = False) -> None:
        super().__init__(host_memory)
        self._rules = rules

    @override
    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        rules, base = self._rules, super().space(max_tables, max_devices)
        curves = {"variant_curves": box(0.0, 1.0, rules.num_variants * NUM_CURVE)} if self.host_memory else {}
        return spaces.Dict(
            {
                **base.spaces,
                "action_mask": spaces.MultiBinary(rules.num_actions),
                "parts_waiting": box(0.0, rules.max_shards, rules.max_halvings + 1),
                "variant_costs": box(0.0, MAX_MS, rules.num_variants * len(PHASES)),
                **curves,
            }
        )

    @override
    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        assert isinstance(state, ShardingState)
        waiting = state.waiting.astype(np.float32)
        waiting[state.step == problem.num_tables] = 0.0
        return {
            **super().__call__(problem, state),
            "parts_waiting": waiting,
            "variant_costs": self._of_variants(problem, state, problem.tables.costs),
            **(self._variant_curves(problem, state) if self.host_memory else {}),
        }

    def _variant_curves(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        curves = problem.tables.hbm_curves
        if not curves.size:
            return {"variant_curves": np.zeros((problem.num_envs, self._rules.num_variants * NUM_CURVE), np.float32)}
        return {"variant_curves": bounded(self._of_variants(problem, state, curves))}

    def _of_variants(self, problem: EnvProblem, state: PlacementState, rows: NDArray[Any]) -> NDArray[np.float32]:
        """(N, V * n) of (S, R, n) rows: those of the variants of the current tables; 0 after the last."""
        of_tables = rows.reshape(-1, self._rules.num_variants * rows.shape[-1])
        found: NDArray[np.float32] = of_tables.take(problem.current(state.step), axis=0).astype(np.float32, copy=False)
        found[state.step == problem.num_tables] = 0.0
        return found


class FullShardingObservation(FullObservation, CompactShardingObservation):
    """`CompactShardingObservation`, and all tables of the task with the actions of their shards."""

    @override
    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        size, last = max_tables * self._rules.max_shards, self._rules.num_actions - 1
        keys = super().space(max_tables, max_devices).spaces
        return spaces.Dict({**keys, "assignment": spaces.Box(-1, last, (size,), ASSIGNMENT)})

    @override
    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        observation = super().__call__(problem, state)
        observation["assignment"] = observation["assignment"].reshape(problem.num_envs, -1)
        return observation


class FeaturesShardingObservation(FeaturesObservation, CompactShardingObservation):
    """`CompactShardingObservation` without costs: in their place sums of the amounts of the parts on each device."""

    def __init__(self, rules: SplitRules, host_memory: bool = False) -> None:
        super().__init__(rules, host_memory)
        self.most = float(rules.max_shards)  # every column shard of a table has all of its lookups

    @override
    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        keys = dict(super().space(max_tables, max_devices).spaces)
        del keys["variant_costs"]
        return spaces.Dict({**keys, "variant_shares": box(0.0, 1.0, self._rules.num_variants * len(AMOUNT_NAMES))})

    @override
    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        observation = super().__call__(problem, state)
        del observation["variant_costs"]
        return {**observation, "variant_shares": self._of_variants(problem, state, problem.tables.shares)}

    def _on_devices(self, problem: EnvProblem, state: PlacementState) -> tuple[IntArray, IntArray, IntArray]:
        """A shard ends where the next one begins, or where its table does."""
        assert isinstance(state, ShardingState)
        rules = self._rules
        env, table, begin = np.nonzero(state.assignment >= 0)
        action = state.assignment[env, table, begin].astype(np.int64)
        begun = columns_begun(state, rules, np.arange(problem.num_envs))
        end = np.where(table < state.step[env], rules.max_shards, begun[env])
        followed = np.flatnonzero((env[1:] == env[:-1]) & (table[1:] == table[:-1]))
        end[followed] = begin[followed + 1]
        halvings = rules.max_halvings - np.log2(np.maximum(end - begin, 1)).astype(np.int64)
        one = action < rules.max_devices
        variant = np.where(one, halvings, rules.variants_and_hosts[0][action])
        rows = (problem.row[env] * problem.max_tables + table) * rules.num_variants + variant
        single, several = np.flatnonzero(one), np.flatnonzero(~one)
        position, device = receivers(problem, env[several], action[several])
        chosen = np.concatenate([single, several[position]])
        return env[chosen], np.concatenate([action[single], device]), rows[chosen]


class SetShardingObservation(FeaturesShardingObservation, FullShardingObservation):
    """`FeaturesShardingObservation`, and all tables of the task with the actions of their shards."""


OBSERVATIONS: dict[str, Callable[[SplitRules, bool], Observation]] = {
    "full": FullShardingObservation,
    "compact": CompactShardingObservation,
    "features": FeaturesShardingObservation,
    "set": SetShardingObservation,
}


@dataclass(frozen=True, eq=False)
class ShardingConfig(PlacementConfig):
    """The arguments of `EmbeddingShardingEnv`."""

    suite: str | TaskSource = "shard-4"
    cost_model: str | Path | AdditiveCostModel = "analytical"
    sharding_types: Collection[str] = SHARDING_TYPES
    max_shards: int = 8
    max_hosts: int | None = None

    @override
    def model_of(self, source: TaskSource) -> AdditiveCostModel:
        return make_cost_model(cost_model_for(source, self.cost_model), additive=True, splits=True)

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
        return model.penalty_ms(task.tables, task.topology, splits=True)

    @override
    def _final_cost_of(self, env: int, model: CostModel) -> CostEstimate:
        task = self.task(env)
        return model.estimate(self.plan(env), task.tables, task.topology)

    @override
    def view(self, env: int) -> PlanView:
        plan = self.plan(env)
        first = np.array([sharding.devices[0] if sharding.shards else -1 for sharding in plan.tables], np.int64)
        return PlanView(placement=first, plan=plan, split_rows=MAX_SPLITS, **self._shown(env))


def _hosts_of(source: TaskSource) -> int:
    """The most hosts of a task of a suite; of another source, those of its largest task if hosts are as in a sample."""
    tasks: list[Task] = list(source) if isinstance(source, TaskSuite) else [source.sample(np.random.default_rng(0))]
    per_host = min(task.topology.devices_per_host for task in tasks)
    return max(-(-source.max_devices // per_host), 1)
