"""Observations of `EmbeddingPlacement-v0`: dicts of 1-D arrays of fixed size, padded to max_tables and max_devices.

`array.reshape(max_devices, -1)` or `array.reshape(max_tables, -1)` gives the rows of devices or tables. The arrays are
1-D because Stable-Baselines3 warns about others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import truediv

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import IntArray
from shard_gym.common.errors import unknown_name, wrong_kind
from shard_gym.cost_models.base import PHASES
from shard_gym.envs.core.devices import merged
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episode_state import PlacementState
from shard_gym.envs.core.episodes import Observation
from shard_gym.envs.core.hbm_curves import NUM_CURVE, bounded
from shard_gym.envs.core.problem import MAX_MS, EnvProblem
from shard_gym.envs.core.state import MAX_PLAIN_DEVICES, action_mask, current_rows
from shard_gym.tables import AMOUNT_NAMES, FEATURE_NAMES, Tables
from shard_gym.tables.tables import FEATURE_BOUNDS

ASSIGNMENT = np.int16  # of actions, of which there are fewer; so that all keys fit in one array of float32
GIB = 2**30
MAX_GIB = 2.0**33  # bound of bytes that fit an int64


class CompactObservation:
    """The current table and the devices; the size does not depend on the number of tables.

    Args:
        host_memory: whether there are the keys of host memory; zeros for tasks without it. Of an observation given by
            name, whether the source of the tasks has host memory.
    """

    def __init__(self, host_memory: bool = False) -> None:
        self.host_memory = host_memory

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        """The keys of one environment; shapes and units are in the environment's documentation."""
        of_hbm = {
            "current_table_curve": box(0.0, 1.0, NUM_CURVE),
            "device_curves": box(0.0, 1.0, max_devices * NUM_CURVE),
            "device_hbm": box(0.0, 1.0, max_devices),
            "hbm_gib": box(0.0, MAX_GIB, 1),
        }
        return spaces.Dict(
            {
                "current_table": features_box(1),
                "current_table_costs": box(0.0, MAX_MS, len(PHASES)),
                "device_costs": box(0.0, MAX_MS, max_devices * len(PHASES)),
                "device_memory": box(0.0, 1.0, max_devices * 2),
                "device_mask": spaces.MultiBinary(max_devices),
                "action_mask": spaces.MultiBinary(max_devices),
                "progress": box(0.0, 1.0, 1),
                **(of_hbm if self.host_memory else {}),
            }
        )

    def constant(self, problem: EnvProblem, envs: IntArray | None = None) -> ObservationDict:
        """The keys that stay the same during an episode, of all environments or of `envs`; new arrays."""
        some = slice(None) if envs is None else envs
        mask = problem.cluster.device_mask[some]
        keys = {"device_mask": mask.astype(np.int8, order="C")}
        if not self.host_memory:
            return keys
        hbm, cap = problem.hbm_bytes[some, None], np.maximum(problem.memory_cap[some], 1)
        shares = np.minimum(hbm / cap, 1.0) * mask
        return {**keys, "device_hbm": shares.astype(np.float32, order="C"), "hbm_gib": (hbm / GIB).astype(np.float32)}

    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        """The other keys, leading shape (N,); new arrays."""
        plain = problem.num_envs == 1 and problem.max_devices <= MAX_PLAIN_DEVICES and problem.rules is None
        observation = self._of_one(problem, state) if plain else self._of_many(problem, state)
        return {**observation, **self._curves(problem, state)} if self.host_memory else observation

    @staticmethod
    def _curves(problem: EnvProblem, state: PlacementState) -> ObservationDict:
        """The curves of the current tables and of the devices."""
        count = problem.num_envs
        if not state.hbm_curves.size:
            zeros = [np.zeros((count, size), np.float32) for size in (NUM_CURVE, problem.max_devices * NUM_CURVE)]
            return {"current_table_curve": zeros[0], "device_curves": zeros[1]}
        current = bounded(merged(problem.tables.hbm_curves).take(current_rows(problem, state), axis=0))
        current[state.step == problem.num_tables] = 0.0
        return {"current_table_curve": current, "device_curves": bounded(state.hbm_curves).reshape(count, -1)}

    @staticmethod
    def _of_many(problem: EnvProblem, state: PlacementState) -> ObservationDict:
        tables, current = problem.tables, current_rows(problem, state)
        features = tables.features.reshape(-1, len(FEATURE_NAMES)).take(current, axis=0)
        costs = tables.costs.reshape(-1, len(PHASES)).take(current, axis=0)
        needed = tables.memory.reshape(-1).take(current)
        all_placed = state.step == problem.num_tables
        features[all_placed], costs[all_placed], needed[all_placed] = 0.0, 0.0, 0
        return {
            "current_table": features,
            "current_table_costs": costs,
            "device_costs": state.phases_ms.astype(np.float32, order="C").reshape(len(current), -1),
            "device_memory": CompactObservation._memory(problem, state, needed[:, None]),
            "action_mask": action_mask(problem, state).astype(np.int8, order="C"),
            "progress": (state.step / problem.num_tables).astype(np.float32)[:, None],
        }

    @staticmethod
    def _of_one(problem: EnvProblem, state: PlacementState) -> ObservationDict:
        """`_of_many` for a single environment (N = 1), with as few NumPy calls as possible; see `MAX_PLAIN_DEVICES`."""
        tables, num_tables = problem.tables, problem.num_tables.item()
        row, step = problem.row.item(), state.step.item()
        if step < num_tables:
            features, costs = tables.features[row, step, None].copy(), tables.costs[row, step, None].copy()
            needed = float(tables.memory.item(row, step))
        else:
            features, costs = np.zeros((1, len(FEATURE_NAMES)), np.float32), np.zeros((1, len(PHASES)), np.float32)
            needed = 0.0
        caps = [float(cap or math.inf) for cap in problem.memory_cap[0].tolist()]  # in padding the shares are 0
        memory = [0.0] * (2 * len(caps))
        memory[0::2] = map(truediv, state.memory_used[0].tolist(), caps)
        memory[1::2] = [min(needed / cap, 1.0) for cap in caps]
        return {
            "current_table": features,
            "current_table_costs": costs,
            "device_costs": state.phases_ms.reshape(1, -1).astype(np.float32),
            "device_memory": np.array([memory], np.float32),
            "action_mask": action_mask(problem, state).view(np.int8),
            "progress": np.array([[step / num_tables]], np.float32),
        }

    @staticmethod
    def _memory(problem: EnvProblem, state: PlacementState, needed: NDArray[np.int64]) -> NDArray[np.float32]:
        """(N, D * 2): of each device the share of its cap in use, and the share the current table needs (at most 1)."""
        cap = np.maximum(problem.memory_cap, 1)
        memory = np.empty((*cap.shape, 2), np.float32)
        memory[..., 0] = state.memory_used / cap
        memory[..., 1] = np.minimum(needed / cap, 1.0) * problem.cluster.device_mask
        return memory.reshape(len(cap), -1)


class FullObservation(CompactObservation):
    """`CompactObservation`, and all tables of the task with their devices."""

    @override
    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        compact = super().space(max_tables, max_devices)
        tables = {
            "table_features": features_box(max_tables),
            "table_mask": spaces.MultiBinary(max_tables),
            "assignment": spaces.Box(-1, max_devices - 1, (max_tables,), ASSIGNMENT),
        }
        return spaces.Dict({**compact.spaces, **tables})

    @override
    def constant(self, problem: EnvProblem, envs: IntArray | None = None) -> ObservationDict:
        rows, counts = (
            (problem.row, problem.num_tables) if envs is None else (problem.row[envs], problem.num_tables[envs])
        )
        mask = np.arange(problem.max_tables) < counts[:, None]
        variants = 1 if problem.rules is None else problem.rules.num_variants
        whole = problem.tables.features[:, ::variants]
        return {
            **super().constant(problem, envs),
            "table_features": whole[rows].reshape(len(rows), -1),
            "table_mask": mask.astype(np.int8),
        }

    @override
    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        return {**super().__call__(problem, state), "assignment": state.assignment.astype(ASSIGNMENT)}


class FeaturesObservation(CompactObservation):
    """`CompactObservation` without costs: in their place the sums of the tables' amounts on each device.

    Tables come by descending values read (`Tables.amounts`), the order of the heuristic `lookup-greedy`.
    """

    most: float = 1.0  # what a device holds of an amount at most, as a share of that of all tables

    def order(self, tables: Tables) -> IntArray:
        """(T,) int64, the order in which the tables are placed."""
        return np.argsort(-tables.embedding_dim * tables.pooling_factor, kind="stable")

    @override
    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        keys = dict(super().space(max_tables, max_devices).spaces)
        del keys["current_table_costs"], keys["device_costs"]
        return spaces.Dict(
            {
                **keys,
                "current_table_shares": box(0.0, 1.0, len(AMOUNT_NAMES)),
                "device_shares": box(0.0, self.most, max_devices * len(AMOUNT_NAMES)),
                "device_width": box(0.0, 1.0, max_devices),
            }
        )

    @override
    def __call__(self, problem: EnvProblem, state: PlacementState) -> ObservationDict:
        observation = super().__call__(problem, state)
        del observation["current_table_costs"], observation["device_costs"]
        shares, widths = self._held(problem, state)
        current = problem.tables.shares.reshape(-1, len(AMOUNT_NAMES)).take(current_rows(problem, state), axis=0)
        current[state.step == problem.num_tables] = 0.0
        return {
            **observation,
            "current_table_shares": current.astype(np.float32),
            "device_shares": shares,
            "device_width": widths,
        }

    def _held(self, problem: EnvProblem, state: PlacementState) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(N, D * 5) shares of the amounts that the devices hold, and (N, D) widths of their widest tables.

        A bin of `bincount` is summed in the order of the rows, whatever N is, so that one environment and N give the
        same bits.
        """
        size = problem.num_envs * problem.max_devices
        env, device, rows = self._on_devices(problem, state)
        bins, held = env * problem.max_devices + device, problem.tables.shares.reshape(-1, len(AMOUNT_NAMES))[rows]
        shares = np.empty((size, len(AMOUNT_NAMES)), np.float32)
        for number in range(len(AMOUNT_NAMES)):
            shares[:, number] = np.bincount(bins, held[:, number], minlength=size)
        widths = np.zeros(size, np.float32)
        np.maximum.at(widths, bins, problem.tables.widths.reshape(-1)[rows])
        np.minimum(shares, self.most, out=shares)  # a sum of all shares may exceed it by a rounding error
        return shares.reshape(problem.num_envs, -1), widths.reshape(problem.num_envs, -1)

    def _on_devices(self, problem: EnvProblem, state: PlacementState) -> tuple[IntArray, IntArray, IntArray]:
        """What the devices hold: environments, devices, and rows in table arrays with axes S and R merged."""
        env, step = np.nonzero(state.assignment >= 0)
        return env, state.assignment[env, step].astype(np.int64), problem.row[env] * problem.max_tables + step


class SetObservation(FeaturesObservation, FullObservation):
    """`FeaturesObservation`, and all tables of the task with their devices: the set that a pointer network sees."""


def box(low: float, high: float, size: int) -> spaces.Box:
    """The space of `size` float32 numbers between two bounds."""
    return spaces.Box(low, high, (size,), np.float32)


def features_box(tables: int) -> spaces.Box:
    """The space of the features of so many tables, which are 0 where there is no table."""
    low, high = np.minimum(FEATURE_BOUNDS[0], 0.0), np.maximum(FEATURE_BOUNDS[1], 0.0)
    return spaces.Box(np.tile(low, tables), np.tile(high, tables), dtype=np.float32)


OBSERVATIONS: Mapping[str, Callable[[bool], Observation]] = {
    "full": FullObservation,
    "compact": CompactObservation,
    "features": FeaturesObservation,
    "set": SetObservation,
}

COST_FREE = ("features", "set")
"""Names of observations without costs."""


def make_observation(
    observation: str | Observation,
    host_memory: bool = False,
    named: Mapping[str, Callable[[bool], Observation]] = OBSERVATIONS,
) -> Observation:
    """The observation that `observation` names among those `named`; an object is returned as it is.

    `host_memory` is the argument of those named.
    """
    if not isinstance(observation, str):
        if isinstance(observation, type) or not isinstance(observation, Observation):
            wanted = f"the name of one, {sorted(named)}, or an object of the shape of Observation"
            raise wrong_kind("observation", observation, wanted)
        return observation
    if observation not in named:
        raise unknown_name("observation", observation, named)
    return named[observation](host_memory)
