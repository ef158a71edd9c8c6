"""The state of N placements under way, and `advance`: the one step that all environments share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import IntArray
from shard_gym.cost_models.base import PHASES, AdditiveCostModel, PlainCosts
from shard_gym.envs.core.devices import add, flat, update_costs
from shard_gym.envs.core.episode_state import (
    COMPLETE,
    DEAD_END,
    ILLEGAL_ACTION,
    RUNNING,
    UNPLACED,
    PlacementState,
    ShardingState,
)
from shard_gym.envs.core.limits import narrow
from shard_gym.envs.core.problem import EnvProblem, by_device
from shard_gym.envs.core.splits import act, begin_table, legal_actions

MAX_PLAIN_DEVICES = 64
"""Up to this many devices, a single environment steps and observes on plain Python numbers instead of arrays.

A NumPy call takes half a microsecond or more however small its arrays are, and a step on arrays makes 80 of them. At 50
tables and 4 devices, a single environment makes 30.7 thousand steps a second on plain numbers and 9.3 thousand on
arrays; with 64 devices they are about equal, with 96 arrays are faster. Two functions use them, `_advance_one` here and
`CompactObservation._of_one`. Both give the same bits as arrays (tests/envs/core/test_state.py)."""


def initial_state(problem: EnvProblem, model: AdditiveCostModel) -> PlacementState:
    """The state in which nothing is placed; a `ShardingState` if tables may be split."""
    count, max_devices, rules = problem.num_envs, problem.max_devices, problem.rules
    shards = () if rules is None else (rules.max_shards,)
    arrays: dict[str, NDArray[Any]] = {
        "step": np.zeros(count, np.int64),
        "assignment": np.zeros((count, problem.max_tables, *shards), np.int32),
        "device_loads": by_device(count, max_devices, problem.tables.loads.shape[-1]),
        "memory_used": by_device(count, max_devices, dtype=np.int64),
        "phases_ms": by_device(count, max_devices, len(PHASES)),
        "cost_ms": np.zeros(count),
        "hbm_curves": by_device(count, max_devices, problem.tables.hbm_curves.shape[-1]),
        "fits": by_device(count, problem.num_actions, dtype=np.bool_),
        "status": np.zeros(count, np.int8),
    }
    state = PlacementState(**arrays)
    if rules is not None:
        waiting = np.zeros((count, rules.max_halvings + 1), np.int64)
        state = ShardingState(**arrays, waiting=waiting, level=np.zeros(count, np.int64))
    begin(problem, state, np.arange(count))
    return state


def begin(problem: EnvProblem, state: PlacementState, envs: IntArray) -> None:
    """Reset the environments `envs` to nothing placed, in place. The first table of every valid task fits somewhere."""
    state.assignment[envs] = UNPLACED
    held = (state.device_loads, state.memory_used, state.phases_ms, state.hbm_curves)
    for array in (state.step, state.cost_ms, state.status, *held):
        array[envs] = 0
    if isinstance(state, ShardingState):
        begin_table(state, envs)
        state.fits[envs] = legal_actions(problem, state, envs)
    else:
        first = problem.tables.memory[problem.row[envs], 0]
        state.fits[envs] = first[:, None] <= problem.memory_cap[envs]
    if problem.limited:
        narrow(problem, state, envs)


def advance(
    problem: EnvProblem, state: PlacementState, actions: NDArray[np.integer[Any]], model: AdditiveCostModel
) -> None:
    """Place the current table of environment i on device `actions[i]`, or do what `problem.rules` say, in place.

    Environments that are not RUNNING do not change. An illegal action places nothing and ends the episode. A single
    environment steps on plain numbers if the model offers `plain_costs`; see `MAX_PLAIN_DEVICES`.
    """
    if len(actions) == 1 and problem.max_devices <= MAX_PLAIN_DEVICES and problem.rules is None:
        device, costs = actions.item(), model.plain_costs
        if costs is not None and state.fits.item(0, device):
            _advance_one(problem, state, device, model, costs)
            return
    # Rows of `flat` arrays: environment i on device d is row d * N + i.
    chosen = actions * len(actions) + np.arange(len(actions))
    legal = flat(state.fits).take(chosen)  # nothing fits after the end of an episode
    if not legal.all():
        state.status[(state.status == RUNNING) & ~legal] = ILLEGAL_ACTION
    envs = np.flatnonzero(legal)
    if isinstance(state, ShardingState):
        act(problem, state, actions, envs, model)
        allowed = legal_actions(problem, state)
    else:
        _place(problem, state, actions, chosen, envs, model)
        needed = problem.tables.memory.reshape(-1).take(problem.current(state.step))
        allowed = state.memory_used + needed[:, None] <= problem.memory_cap
    complete = state.step == problem.num_tables
    open_ended = legal & ~complete
    np.logical_and(allowed, open_ended[:, None], out=state.fits)
    if problem.limited:
        narrow(problem, state, np.flatnonzero(open_ended))
    state.status[legal & complete] = COMPLETE
    state.status[open_ended & ~state.fits.any(axis=1)] = DEAD_END


def _advance_one(
    problem: EnvProblem, state: PlacementState, device: int, model: AdditiveCostModel, costs: PlainCosts
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
    if state.hbm_curves.size:
        state.hbm_curves[0, device] += tables.hbm_curves[row, step]
    state.step[0] = step = step + 1

    if step == problem.num_tables.item():
        state.fits[0] = False
        state.status[0] = COMPLETE
        return
    needed = tables.memory.item(row, step)
    np.less_equal(state.memory_used + needed, problem.memory_cap, out=state.fits)
    if problem.limited:
        narrow(problem, state, np.zeros(1, np.int64))
    if not np.count_nonzero(state.fits):
        state.status[0] = DEAD_END


def _place(
    problem: EnvProblem,
    state: PlacementState,
    actions: NDArray[np.integer[Any]],
    chosen: NDArray[np.integer[Any]],
    envs: IntArray,
    model: AdditiveCostModel,
) -> None:
    current = problem.current(state.step)
    if len(envs) < len(actions):
        chosen, current = chosen[envs], current[envs]
    tables = problem.tables
    state.assignment[envs, state.step[envs]] = actions[envs]
    state.step[envs] += 1
    add(state, chosen, tables, current, model)
    update_costs(state, problem.cluster, model)


def current_rows(problem: EnvProblem, state: PlacementState) -> IntArray:
    """(N,) int64, the rows of the current tables or parts in table arrays with axes S and R merged."""
    current = problem.current(state.step)
    if isinstance(state, ShardingState) and problem.rules is not None:
        return current * problem.rules.num_variants + state.level
    return current


def action_mask(problem: EnvProblem, state: PlacementState) -> NDArray[np.bool_]:
    """(N, A) bool: the legal actions, as `begin` and `advance` computed them. The only mask.

    If tables are not split, A is D, the devices where the current table fits. The mask is never empty: after the end of
    an episode it is True for all devices of the task.
    """
    if problem.rules is not None:
        mask, over = state.fits.copy(), np.flatnonzero(state.status)
        mask[over, : problem.max_devices] = problem.cluster.device_mask[over]  # nothing else is legal
        return mask
    if problem.num_envs == 1:
        return (state.fits if state.status[0] == RUNNING else problem.cluster.device_mask).copy()
    return np.where(state.over[:, None], problem.cluster.device_mask, state.fits)
