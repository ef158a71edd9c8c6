"""The state of N placements under way, and `advance`: the one step that all environments share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import PHASES, AdditiveCostModel, FloatArray, PlainCosts
from shard_gym.envs.core.problem import IntArray, Problem, by_device
from shard_gym.errors import InvalidOptionError

UNPLACED = -1


class Status(IntEnum):
    """The status of an episode."""

    RUNNING = 0
    COMPLETE = 1
    ILLEGAL_ACTION = 2
    """The chosen device does not exist, or the table does not fit it; nothing was placed."""
    DEAD_END = 3
    """The table was placed, and the next one fits no device."""


# As integers, because looking up a member of an enumeration takes longer than the comparison.
RUNNING, COMPLETE, ILLEGAL_ACTION, DEAD_END = (int(status) for status in Status)

MAX_PLAIN_DEVICES = 64
"""Up to this many devices, a single environment steps and observes on plain Python numbers instead of arrays.

A NumPy call takes half a microsecond or more however small its arrays are, and a step on arrays makes 80 of them. At 50
tables and 4 devices, a single environment makes 30.7 thousand steps a second on plain numbers and 9.3 thousand on
arrays; with 64 devices they are about equal, with 96 arrays are faster. Two functions use them, `_advance_one` here and
`CompactObservation._of_one`. Both give the same bits as arrays (tests/envs/core/test_state.py)."""


@dataclass
class PlacementState:
    """N placements under way, as arrays.

    Attributes:
        step: (N,) int64, tables placed so far.
        assignment: (N, T) int32, device of each table in placement order; UNPLACED if it has none.
        device_loads: (N, D, K) float64, loads of the cost model.
        memory_used: (N, D) int64, bytes.
        phases_ms: (N, D, 4) float64, ms of each phase with the tables placed so far.
        cost_ms: (N,) float64, their cost.
        fits: (N, D) bool, the devices where the current table fits; all False unless RUNNING.
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
        self._lay_by_device()  # pickling does not keep the memory layout of an array

    def _lay_by_device(self) -> None:
        """Give the (N, D, ...) arrays the memory layout of `by_device`, which `_flat` relies on."""
        for name in ("device_loads", "memory_used", "phases_ms", "fits"):
            array = getattr(self, name)
            setattr(self, name, np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1))

    @property
    def over(self) -> NDArray[np.bool_]:
        """(N,) bool, True if the episode has ended; a new array."""
        return self.status.astype(np.bool_)  # RUNNING is 0

    def put(self, env: int, state: PlacementState) -> None:
        """Set the state of environment `env` to `state` (N = 1)."""
        for f in fields(self):
            getattr(self, f.name)[env] = getattr(state, f.name)[0]

    def require_same_shapes(self, other: PlacementState) -> None:
        """Check that one environment of `other` can be put here.

        Raises:
            InvalidOptionError: it is of an environment with another padding or cost model.
        """
        for f in fields(self):
            own, given = getattr(self, f.name).shape[1:], getattr(other, f.name).shape[1:]
            if given != own:
                raise InvalidOptionError(
                    f"The snapshot's {f.name} has shape {given}, but this environment's has {own}: it was taken from "
                    "one with another padding or cost model. Make both with the same arguments."
                )

    def copy(self) -> PlacementState:
        """A copy that shares no memory with this one."""
        return PlacementState(**{f.name: getattr(self, f.name).copy(order="K") for f in fields(self)})


def initial_state(problem: Problem, model: AdditiveCostModel) -> PlacementState:
    """The state in which nothing is placed."""
    count, max_devices = problem.num_envs, problem.max_devices
    state = PlacementState(
        step=np.zeros(count, np.int64),
        assignment=np.zeros((count, problem.max_tables), np.int32),
        device_loads=by_device(count, max_devices, model.num_loads),
        memory_used=by_device(count, max_devices, dtype=np.int64),
        phases_ms=by_device(count, max_devices, len(PHASES)),
        cost_ms=np.zeros(count),
        fits=by_device(count, max_devices, dtype=np.bool_),
        status=np.zeros(count, np.int8),
    )
    begin(problem, state, np.arange(count))
    return state


def begin(problem: Problem, state: PlacementState, envs: IntArray) -> None:
    """Reset the environments `envs` to nothing placed, in place. The first table of every valid task fits somewhere."""
    state.assignment[envs] = UNPLACED
    for array in (state.step, state.device_loads, state.memory_used, state.phases_ms, state.cost_ms, state.status):
        array[envs] = 0
    first = problem.tables.memory[problem.row[envs], 0]
    state.fits[envs] = first[:, None] <= problem.memory_cap[envs]


def advance(
    problem: Problem, state: PlacementState, actions: NDArray[np.integer[Any]], model: AdditiveCostModel
) -> None:
    """Place the current table of environment i on device `actions[i]`, in place.

    Environments that are not RUNNING do not change. An illegal action places nothing and ends the episode. A single
    environment steps on plain numbers if the model offers `plain_costs`; see `MAX_PLAIN_DEVICES`.

    Args:
        problem: what the N environments solve.
        state: their state; changed in place.
        actions: (N,) integers in [0, D).
        model: the cost model the problem was prepared with.
    """
    if len(actions) == 1 and problem.max_devices <= MAX_PLAIN_DEVICES:
        device, costs = actions.item(), model.plain_costs
        if costs is not None and state.fits.item(0, device):
            _advance_one(problem, state, device, model, costs)
            return
    # Rows of `_flat` arrays: environment i on device d is row d * N + i.
    chosen = actions * len(actions) + np.arange(len(actions))
    legal = _flat(state.fits).take(chosen)  # nothing fits after the end of an episode
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


def _advance_one(
    problem: Problem, state: PlacementState, device: int, model: AdditiveCostModel, costs: PlainCosts
) -> None:
    """`advance` for a single environment (N = 1) whose action is legal, with as few NumPy calls as possible."""
    row, step, tables = problem.row.item(), state.step.item(), problem.tables
    device_loads, phases_ms = state.device_loads[0], state.phases_ms[0].T  # views

    device_loads[device] = model.add(device_loads[device], tables.loads[row, step])
    phases, shared = phases_ms.tolist(), device_loads[:, model.shared_loads].T.tolist()
    state.cost_ms[0] = costs(device, device_loads[device].tolist(), phases, shared, problem.cluster)
    phases_ms[...] = phases
    state.assignment[0, step] = device
    state.memory_used[0, device] += tables.memory.item(row, step)
    state.step[0] = step = step + 1

    if step == problem.num_tables.item():
        state.fits[0] = False
        state.status[0] = COMPLETE
        return
    needed = tables.memory.item(row, step)
    np.less_equal(state.memory_used + needed, problem.memory_cap, out=state.fits)
    if not np.count_nonzero(state.fits):
        state.status[0] = DEAD_END


def _place(
    problem: Problem,
    state: PlacementState,
    actions: NDArray[np.integer[Any]],
    chosen: NDArray[np.integer[Any]],
    envs: IntArray,
    model: AdditiveCostModel,
) -> None:
    """Place the current tables of `envs`, whose actions are legal, and update the costs."""
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
    model.fill_communication(state.phases_ms, shared, problem.cluster)
    state.cost_ms[:] = model.iteration_cost(state.phases_ms, shared, problem.cluster)


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """An (N, D, ...) array made by `by_device` as (D * N, ...) rows; a view."""
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def action_mask(problem: Problem, state: PlacementState) -> NDArray[np.bool_]:
    """(N, D) bool: the devices where the current table fits, as `begin` and `advance` computed it. The only mask.

    It is never empty: after the end of an episode it is True for all devices of the task.
    """
    if problem.num_envs == 1:
        return (state.fits if state.status[0] == RUNNING else problem.cluster.device_mask).copy()
    return np.where(state.over[:, None], problem.cluster.device_mask, state.fits)
