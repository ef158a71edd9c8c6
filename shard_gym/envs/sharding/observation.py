"""Observations of `EmbeddingSharding-v0`: as in `EmbeddingPlacement-v0`, of the current part; and what splits offer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from shard_gym.cost_models.base import PHASES
from shard_gym.envs.core.episodes import Observation, ObservationDict
from shard_gym.envs.core.problem import IntArray, Problem
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import PlacementState, ShardingState, action_mask
from shard_gym.envs.placement.observation import MAX_FEATURE, MAX_MS, CompactObservation
from shard_gym.errors import unknown_name, wrong_kind
from shard_gym.tables import FEATURE_NAMES


class CompactShardingObservation(CompactObservation):
    """The current part and the devices; the size does not depend on the number of tables."""

    def __init__(self, rules: SplitRules) -> None:
        self._rules = rules

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        """The keys of one environment; shapes and units are in the environment's documentation."""
        rules, base = self._rules, super().space(max_tables, max_devices)
        return spaces.Dict(
            {
                **base.spaces,
                "action_mask": spaces.MultiBinary(rules.num_actions),
                "parts_waiting": spaces.Box(0.0, float(2**rules.max_halvings), (rules.max_halvings + 1,), np.float32),
                "variant_costs": spaces.Box(0.0, MAX_MS, (rules.num_variants * len(PHASES),), np.float32),
            }
        )

    def __call__(self, problem: Problem, state: PlacementState) -> ObservationDict:
        """See `Observation`."""
        assert isinstance(state, ShardingState)
        tables, rules, count = problem.tables, self._rules, len(state.table)
        whole = problem.current(state.table) * rules.num_variants
        row = whole + state.level
        features = tables.features.reshape(-1, len(FEATURE_NAMES)).take(row, axis=0)
        needed = tables.memory.reshape(-1).take(row)
        variants = (whole[:, None] + np.arange(rules.num_variants)).reshape(-1)
        costs = tables.costs.reshape(-1, len(PHASES)).take(variants, axis=0).reshape(count, rules.num_variants, -1)
        current = costs[np.arange(count), state.level]
        costs *= tables.legal.reshape(-1).take(variants).reshape(count, -1, 1)
        done = state.table == problem.num_tables
        for array in (features, current, costs, needed):
            array[done] = 0
        waiting = state.waiting.astype(np.float32)
        waiting[done] = 0.0
        return {
            "current_table": features,
            "current_table_costs": current,
            "device_costs": state.phases_ms.astype(np.float32, order="C").reshape(count, -1),
            "device_memory": self._memory(problem, state, needed[:, None]),
            "action_mask": action_mask(problem, state).astype(np.int8, order="C"),
            "progress": (state.table / problem.num_tables).astype(np.float32)[:, None],
            "parts_waiting": waiting,
            "variant_costs": costs.reshape(count, -1),
        }


class FullShardingObservation(CompactShardingObservation):
    """`CompactShardingObservation`, and all tables of the task, those already on devices marked."""

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        """The keys of one environment; shapes and units are in the environment's documentation."""
        features = spaces.Box(-MAX_FEATURE, MAX_FEATURE, (max_tables * len(FEATURE_NAMES),), np.float32)
        mask = spaces.MultiBinary(max_tables)
        compact = super().space(max_tables, max_devices)
        return spaces.Dict({**compact.spaces, "table_features": features, "table_mask": mask, "table_done": mask})

    def constant(self, problem: Problem, envs: IntArray | None = None) -> ObservationDict:
        """See `Observation`."""
        rows, counts = (
            (problem.row, problem.num_tables) if envs is None else (problem.row[envs], problem.num_tables[envs])
        )
        whole = problem.tables.features[:, :: self._rules.num_variants]
        mask = np.arange(problem.max_tables) < counts[:, None]
        return {
            **super().constant(problem, envs),
            "table_features": whole[rows].reshape(len(rows), -1),
            "table_mask": mask.astype(np.int8),
        }

    def __call__(self, problem: Problem, state: PlacementState) -> ObservationDict:
        """See `Observation`."""
        assert isinstance(state, ShardingState)
        done = np.arange(problem.max_tables) < state.table[:, None]
        return {**super().__call__(problem, state), "table_done": done.astype(np.int8)}


OBSERVATIONS: dict[str, Callable[[SplitRules], Observation]] = {
    "full": FullShardingObservation,
    "compact": CompactShardingObservation,
}


def sharding_observation(observation: str | Observation) -> Callable[[SplitRules], Observation]:
    """What makes the observation named `observation` from the rules; an object is made as it is.

    Raises:
        UnknownNameError: there is no observation of that name.
        InvalidOptionError: `observation` is neither a name nor an object of the shape of `Observation`.
    """
    if not isinstance(observation, str):
        if isinstance(observation, type) or not isinstance(observation, Observation):
            wanted = f"the name of one, {sorted(OBSERVATIONS)}, or an object of the shape of Observation"
            raise wrong_kind("observation", observation, wanted)
        given: Observation = observation
        return lambda rules: given
    if observation not in OBSERVATIONS:
        raise unknown_name("observation", observation, OBSERVATIONS)
    return OBSERVATIONS[observation]
