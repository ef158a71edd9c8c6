"""The state of N placements under way, and the one step that advances them. Every environment goes through here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.envs.placement.problem import Problem

UNPLACED = -1


class Status(IntEnum):
    """Where an episode stands."""

    RUNNING = 0
    COMPLETE = 1
    ILLEGAL_ACTION = 2
    """The chosen device does not exist, or the table does not fit it; nothing was placed."""
    DEAD_END = 3
    """The table was placed, and the next one fits no device."""


@dataclass
class PlacementState:
    """N placements under way; a plain record of arrays, so that it copies, pickles and compares.

    Attributes:
        step: (N,) int64, tables placed so far.
        assignment: (N, T) int64, device of each table in placement order; UNPLACED where there is none yet.
        device_loads: (N, D, K) float64, loads of the cost model.
        memory_used: (N, D) int64, bytes.
        phases_ms: (N, D, 4) float64, ms of each phase with the tables placed so far.
        cost_ms: (N,) float64, their cost.
        fits: (N, D) bool, where the current table fits; all False unless RUNNING.
        status: (N,) int8, a `Status`.
    """

    step: NDArray[np.int64]
    assignment: NDArray[np.int64]
    device_loads: FloatArray
    memory_used: NDArray[np.int64]
    phases_ms: FloatArray
    cost_ms: FloatArray
    fits: NDArray[np.bool_]
    status: NDArray[np.int8]

    def copy(self) -> PlacementState:
        """A state that shares no memory with this one."""
        return PlacementState(**{f.name: getattr(self, f.name).copy() for f in fields(self)})


def initial_state(problem: Problem, model: AdditiveCostModel) -> PlacementState:
    """Nothing placed yet. Every task is checked to fit, so its first table fits somewhere."""
    count, max_tables = problem.order.shape
    max_devices = problem.memory_cap.shape[1]
    return PlacementState(
        step=np.zeros(count, np.int64),
        assignment=np.full((count, max_tables), UNPLACED, np.int64),
        device_loads=np.zeros((count, max_devices, model.num_loads)),
        memory_used=np.zeros((count, max_devices), np.int64),
        phases_ms=np.zeros((count, max_devices, 4)),
        cost_ms=np.zeros(count),
        fits=problem.table_memory[:, :1] <= problem.memory_cap,
        status=np.zeros(count, np.int8),
    )


def step(
    problem: Problem, state: PlacementState, actions: NDArray[np.integer], model: AdditiveCostModel
) -> PlacementState:
    """The state after device `actions[i]` receives the current table of row i; pure, `state` is left alone.

    Rows that are not RUNNING stay as they are. An illegal action places nothing and ends the row.

    Args:
        problem: the N problems.
        state: the N states.
        actions: (N,) integers in [0, D).
        model: the cost model the problem was prepared with.
    """
    new = state.copy()
    running = state.status == Status.RUNNING
    legal = running & state.fits[np.arange(len(actions)), actions]
    rows = np.flatnonzero(legal)
    devices, tables = actions[rows], state.step[rows]
    new.assignment[rows, tables] = devices
    new.memory_used[rows, devices] += problem.table_memory[rows, tables]
    new.device_loads[rows, devices] = model.add(state.device_loads[rows, devices], problem.table_loads[rows, tables])
    new.step[rows] += 1
    new.phases_ms = model.device_costs(new.device_loads, problem.cluster)
    new.cost_ms = model.iteration_cost(new.phases_ms, new.device_loads, problem.cluster)

    complete = legal & (new.step == problem.num_tables)
    current = np.minimum(new.step, problem.order.shape[1] - 1)
    needed = problem.table_memory[np.arange(len(actions)), current]
    new.fits = (new.memory_used + needed[:, None] <= problem.memory_cap) & (legal & ~complete)[:, None]
    new.status[complete] = Status.COMPLETE
    new.status[running & ~legal] = Status.ILLEGAL_ACTION
    new.status[legal & ~complete & ~new.fits.any(axis=1)] = Status.DEAD_END
    return new


def action_mask(problem: Problem, state: PlacementState) -> NDArray[np.bool_]:
    """(N, D) bool: the devices where the current table fits. The one mask; all others are made from it.

    It is never empty: once an episode is over there is nothing to choose, and every real device is shown as free.
    """
    running = state.status == Status.RUNNING
    return np.where(running[:, None], state.fits, problem.cluster.device_mask)
