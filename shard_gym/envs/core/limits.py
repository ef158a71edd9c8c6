"""Which of the legal actions the constraints of a task permit, in the episodes whose tasks have any."""

from __future__ import annotations

import numpy as np

from shard_gym.common.arrays import IntArray
from shard_gym.envs.core.episode_state import PlacementState, ShardingState
from shard_gym.envs.core.problem import EnvProblem
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import TABLE_ROW_WISE


def narrow(problem: EnvProblem, state: PlacementState, envs: IntArray) -> None:
    """Take the actions out of `state.fits[envs]` that the constraints of the tasks do not permit, in place.

    A part goes to a device that may hold it beside what is there. The first of several tables that stay together goes
    where all of them fit. What becomes of a form is decided when the task is prepared (`Variants.under`), but for the
    hosts that blocks of rows may be on.
    """
    for env in envs[problem.limits[envs] != None].tolist():  # noqa: E711, of each object
        if state.fits[env].any():
            _narrow_one(problem, state, env, problem.limits[env])


def _narrow_one(problem: EnvProblem, state: PlacementState, env: int, limits: Constraints) -> None:
    row, step = int(problem.row[env]), int(state.step[env])
    order, memory = problem.tables.order[row], problem.tables.memory[row].reshape(problem.max_tables, -1)[:, 0]
    table, count, fits = int(order[step]), limits.num_devices, state.fits[env]
    assignment = state.assignment[env].reshape(problem.max_tables, -1)
    on_one = (assignment >= 0) & (assignment < problem.max_devices)  # other actions give a table to many devices
    held, on = order[np.nonzero(on_one)[0]], assignment[on_one].astype(np.int64)
    open_to = limits.open_to([table], held[held != table], on[held != table])
    mates = limits.companions.get(table, ())
    if mates and not np.isin(held, mates).any():
        needed = memory[np.isin(order, mates) & (np.arange(len(order)) < len(limits))].sum()
        open_to = open_to & (problem.memory_cap[env] - state.memory_used[env] >= needed)[:count]
    level = int(state.level[env]) if isinstance(state, ShardingState) else 0
    if level == 0 and not limits.may_be_whole[table]:
        open_to = np.zeros_like(open_to)
    fits[:count] &= open_to
    if problem.rules is not None:
        size = int(np.asarray(problem.cluster.host_size)[env])
        for name, _, first, actions in problem.rules.spreads:
            if name == TABLE_ROW_WISE:
                for host in range(min(actions, count // size)):
                    devices = np.arange(host * size, (host + 1) * size)
                    fits[first + host] &= limits.may_spread(name, devices)[table]
