"""The state of N placements under way, and the one step that advances them. Every environment goes through here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.envs.placement.problem import IntArray, Problem, by_device

UNPLACED = -1


class Status(IntEnum):
    """Where an episode stands."""

    RUNNING = 0
    COMPLETE = 1
    ILLEGAL_ACTION = 2
    """The chosen device does not exist, or the table does not fit it; nothing was placed."""
    DEAD_END = 3
    """The table was placed, and the next one fits no device."""


# As plain numbers: looking up a member of an enumeration costs more than the comparison.
RUNNING, COMPLETE, ILLEGAL_ACTION, DEAD_END = (int(status) for status in Status)


@dataclass
class PlacementState:
    """N placements under way; a plain record of arrays, so that it copies, pickles and compares.

    Attributes:
        step: (N,) int64, tables placed so far.
        assignment: (N, T) int32, device of each table in placement order; UNPLACED where there is none yet.
        device_loads: (N, D, K) float64, loads of the cost model.
        memory_used: (N, D) int64, bytes.
        phases_ms: (N, D, 4) float64, ms of each phase with the tables placed so far.
        cost_ms: (N,) float64, their cost.
        fits: (N, D) bool, where the current table fits; all False unless RUNNING.
        status: (N,) int8, a `Status`.
    """

    step: IntArray
    assignment: NDArray[np.int32]
    device_loads: FloatArray
    memory_used: IntArray
    phases_ms: FloatArray
    cost_ms: FloatArray
    fits: NDArray[np.bool_]
    status: NDArray[np.int8]

    def __post_init__(self) -> None:
        self._lay_by_device()

    def __setstate__(self, arrays: dict[str, Any]) -> None:
        self.__dict__.update(arrays)
        self._lay_by_device()  # pickling forgets how an array lies in memory

    def _lay_by_device(self) -> None:
        """Bring the (N, D, ...) arrays into the layout of `by_device`, which `_flat` relies on."""
        for name in ("device_loads", "memory_used", "phases_ms", "fits"):
            array = getattr(self, name)
            setattr(self, name, np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1))

    def row(self, env: int) -> PlacementState:
        """A copy of one environment's state (N = 1)."""
        return PlacementState(**{f.name: getattr(self, f.name)[env : env + 1].copy(order="K") for f in fields(self)})

    def put(self, env: int, state: PlacementState) -> None:
        """Take over `state` (N = 1) as the state of environment `env`."""
        for f in fields(self):
            getattr(self, f.name)[env] = getattr(state, f.name)[0]

    def copy(self) -> PlacementState:
        """A state that shares no memory with this one; the layout in memory stays."""
        return PlacementState(**{f.name: getattr(self, f.name).copy(order="K") for f in fields(self)})


def initial_state(problem: Problem, model: AdditiveCostModel) -> PlacementState:
    """Nothing placed yet."""
    count, max_devices = problem.num_envs, problem.max_devices
    state = PlacementState(
        step=np.zeros(count, np.int64),
        assignment=np.zeros((count, problem.max_tables), np.int32),
        device_loads=by_device(count, max_devices, model.num_loads),
        memory_used=by_device(count, max_devices, dtype=np.int64),
        phases_ms=by_device(count, max_devices, 4),
        cost_ms=np.zeros(count),
        fits=by_device(count, max_devices, dtype=np.bool_),
        status=np.zeros(count, np.int8),
    )
    begin(problem, state, np.arange(count))
    return state


def begin(problem: Problem, state: PlacementState, envs: IntArray) -> None:
    """Put the environments `envs` back to nothing placed, in place.

    Every task is checked when it is made, so its first table fits somewhere.
    """
    state.assignment[envs] = UNPLACED
    for array in (state.step, state.device_loads, state.memory_used, state.phases_ms, state.cost_ms, state.status):
        array[envs] = 0
    first = problem.tables.memory[problem.row[envs], 0]
    state.fits[envs] = first[:, None] <= problem.memory_cap[envs]


def step(
    problem: Problem, state: PlacementState, actions: NDArray[np.integer[Any]], model: AdditiveCostModel
) -> PlacementState:
    """The state after one step; see `advance`. `state` is left alone."""
    after = state.copy()
    advance(problem, after, actions, model)
    return after


def advance(
    problem: Problem, state: PlacementState, actions: NDArray[np.integer[Any]], model: AdditiveCostModel
) -> None:
    """Let device `actions[i]` receive the current table of environment i, in place.

    Environments that are not RUNNING stay as they are. An illegal action places nothing and ends the episode.

    Args:
        problem: what the N environments solve.
        state: where they stand.
        actions: (N,) integers in [0, D).
        model: the cost model the problem was prepared with.
    """
    # Rows of an array that lies device after device: environment i on device d is row d * N + i.
    chosen = actions * len(actions) + np.arange(len(actions))
    legal = _flat(state.fits).take(chosen)  # nothing fits where an episode is over
    if not legal.all():
        state.status[(state.status == RUNNING) & ~legal] = ILLEGAL_ACTION
    _place(problem, state, actions, chosen, np.flatnonzero(legal), model)

    current = problem.current(state.step)
    needed = problem.tables.memory.reshape(-1).take(current)
    complete = state.step == problem.num_tables
    open_ended = legal & ~complete
    np.logical_and(state.memory_used + needed[:, None] <= problem.memory_cap, open_ended[:, None], out=state.fits)
    state.status[legal & complete] = COMPLETE
    state.status[open_ended & ~state.fits.any(axis=1)] = DEAD_END


def _place(
    problem: Problem,
    state: PlacementState,
    actions: NDArray[np.integer[Any]],
    chosen: NDArray[np.integer[Any]],
    envs: IntArray,
    model: AdditiveCostModel,
) -> None:
    """Place the current tables of `envs`, whose actions are legal, and cost the devices that changed."""
    current = problem.current(state.step)
    if len(envs) < len(actions):
        chosen, current = chosen[envs], current[envs]
    tables = problem.tables
    state.assignment[envs, state.step[envs]] = actions[envs]
    state.step[envs] += 1
    _flat(state.memory_used)[chosen] += tables.memory.reshape(-1).take(current)
    loads = model.add(
        _flat(state.device_loads).take(chosen, axis=0),
        tables.loads.reshape(-1, model.num_loads).take(current, axis=0),
    )
    _flat(state.device_loads)[chosen] = loads
    _flat(state.phases_ms)[chosen] = model.device_phases(loads)
    shared = state.device_loads[..., model.shared_loads]
    model.couple(state.phases_ms, shared, problem.cluster)
    state.cost_ms[:] = model.iteration_cost(state.phases_ms, shared, problem.cluster)


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """An (N, D, ...) array made by `by_device` as (D * N, ...) rows; a view."""
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def action_mask(problem: Problem, state: PlacementState) -> NDArray[np.bool_]:
    """(N, D) bool: the devices where the current table fits. The one mask; all others are made from it.

    It is never empty: once an episode is over there is nothing to choose, and every real device is shown as free.
    """
    over = state.status != RUNNING
    return np.where(over[:, None], problem.cluster.device_mask, state.fits)
