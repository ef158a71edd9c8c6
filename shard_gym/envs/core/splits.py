"""Actions on tables that may be split: what they add to which devices, what waits, and what is legal next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import IntArray
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.envs.core.devices import add, update_costs
from shard_gym.envs.core.episode_state import ShardingState
from shard_gym.envs.core.problem import EnvProblem, by_device
from shard_gym.envs.core.split_rules import NONE, SplitRules

_NO_LIMIT = np.iinfo(np.int64).max


def begin_table(state: ShardingState, envs: IntArray) -> None:
    """Make the whole current table of `envs` the part that comes next, in place."""
    state.waiting[envs] = 0
    state.waiting[envs, 0] = 1
    state.level[envs] = 0


def act(
    problem: EnvProblem,
    state: ShardingState,
    actions: NDArray[np.integer[Any]],
    envs: IntArray,
    model: AdditiveCostModel,
) -> None:
    """Do the legal `actions[envs]`, in place: halve the current part, or add what the action means to its devices."""
    rules, chosen = _rules(problem), actions[envs]
    halves, single = chosen == rules.halve, chosen < problem.max_devices
    _add(problem, state, actions, envs[single], envs[~single & ~halves], model)
    some = envs[~halves]
    state.assignment[some, state.step[some], columns_begun(state, rules, some)] = chosen[~halves]

    halved, placed = envs[halves], envs[single]
    state.waiting[placed, state.level[placed]] -= 1
    state.waiting[envs[~single & ~halves]] = 0
    state.waiting[halved, state.level[halved]] -= 1
    state.level[halved] += 1
    state.waiting[halved, state.level[halved]] += 2
    left = state.waiting[some] > 0
    state.level[some] = rules.max_halvings - left[:, ::-1].argmax(axis=1)
    done = some[~left.any(axis=1)]
    state.step[done] += 1
    begin_table(state, done)


def columns_begun(state: ShardingState, rules: SplitRules, envs: IntArray | slice) -> IntArray:
    """(E,) int64, U-ths of the columns of the current table that have devices; its next part begins there."""
    begun: IntArray = rules.max_shards - state.waiting[envs] @ rules.shares
    return begun


def _add(
    problem: EnvProblem,
    state: ShardingState,
    actions: NDArray[np.integer[Any]],
    one_device: IntArray,
    several: IntArray,
    model: AdditiveCostModel,
) -> None:
    rules, tables, count = _rules(problem), problem.tables, problem.num_envs
    whole = problem.current(state.step) * rules.num_variants
    rows = actions[one_device] * count + one_device
    parts = whole[one_device] + state.level[one_device]
    if several.size:
        env, device = receivers(problem, several, actions[several])
        env = several[env]
        rows = np.concatenate([rows, device * count + env])
        parts = np.concatenate([parts, whole[env] + rules.variants_and_hosts[0][actions[env]]])
    if not rows.size:
        return  # all of them are halved, or over
    add(state, rows, tables, parts, model)
    update_costs(state, problem.cluster, model)


def receivers(problem: EnvProblem, envs: IntArray, actions: NDArray[np.integer[Any]]) -> tuple[IntArray, IntArray]:
    """The devices that (E,) actions on several devices in `envs` mean: positions in `envs`, and devices, ascending."""
    wanted = _rules(problem).variants_and_hosts[1][actions, None]
    members = (wanted == NONE) | (_hosts(problem, envs) == wanted)
    position, device = np.nonzero(problem.cluster.device_mask[envs] & members)
    return position, device


def legal_actions(problem: EnvProblem, state: ShardingState, envs: IntArray | None = None) -> NDArray[np.bool_]:
    """(N, A) bool, what can be done with the current parts of all environments or of `envs`, as if none were over.

    - A part goes to a device where it fits.
    - It can be halved if then all that waits of its table would fit, halved until all parts are equal.
    - A whole table goes to a set of devices if its block or replica fits each of them.
    """
    rules, tables = _rules(problem), problem.tables
    some = slice(None) if envs is None else envs
    memory, legal = tables.memory.reshape(-1), tables.legal.reshape(-1)
    whole = problem.current(state.step)[some] * rules.num_variants
    real, level = problem.cluster.device_mask[some], state.level[some]
    free = problem.memory_cap[some] - state.memory_used[some]
    allowed = by_device(len(whole), rules.num_actions, dtype=np.bool_)
    devices = allowed[:, : problem.max_devices]
    np.logical_and(memory.take(whole + level)[:, None] <= free, real, out=devices)
    if rules.halve != NONE:
        left = rules.max_shards - columns_begun(state, rules, some)
        allowed[:, rules.halve] = _can_be_halved(rules, memory, legal, left, level, whole, free)
    least = np.where(real, free, _NO_LIMIT)
    for _, variant, first, count in rules.spreads:
        row = whole + variant
        room = least.min(axis=1)[:, None] if count == 1 else _least_by_host(problem, some, least)
        possible = (level == 0) & legal.take(row)
        allowed[:, first : first + count] = possible[:, None] & (memory.take(row)[:, None] <= room)
    return allowed


def _least_by_host(problem: EnvProblem, envs: IntArray | slice, free: IntArray) -> IntArray:
    """(E, hosts) bytes free on the fullest device of each host, from (E, D); -1 where there is no such host."""
    count = _rules(problem).max_hosts
    least = np.full((len(free), count), _NO_LIMIT)
    host = np.minimum(_hosts(problem, envs), count - 1)  # beyond it is padding
    np.minimum.at(least, (np.arange(len(free))[:, None], host), free)
    first = np.arange(count) * np.asarray(problem.cluster.host_size)[envs][:, None]
    least[first >= np.asarray(problem.cluster.num_devices)[envs][:, None]] = NONE
    return least


def _can_be_halved(
    rules: SplitRules,
    memory: IntArray,
    legal: NDArray[np.bool_],
    left: IntArray,
    current: IntArray,
    whole: IntArray,
    free: IntArray,
) -> NDArray[np.bool_]:
    """(E,) bool: whether some number of halvings above the `current` one completes the table.

    All of the `left` U-ths of the columns, halved until all parts are equal, have to fit. Adding a part takes at most
    as many places of the smaller ones as it has of them, so this stays true until the table is complete. If the
    optimizer keeps no state for each row, halves have half the bytes, and a table that this refuses to halve cannot be
    completed by halving.
    """
    level = np.arange(1, rules.max_halvings + 1)[:, None]
    rows, parts = whole + level, (left << level) >> rules.max_halvings  # (H, E), of one size
    places = free.T // np.maximum(memory.take(rows), 1)[:, None]
    enough = np.minimum(places, parts[:, None]).sum(axis=1) >= parts
    return np.asarray((enough & (level > current) & legal.take(rows)).any(axis=0))


def _hosts(problem: EnvProblem, envs: IntArray | slice) -> IntArray:
    """(E, D) int64, the host of each device; where table_row_wise is legal, all hosts are as large as the first."""
    devices = np.arange(problem.max_devices)
    if _rules(problem).max_hosts == 1:
        return np.zeros((1, len(devices)), np.int64)
    return devices // np.asarray(problem.cluster.host_size)[envs][:, None].astype(np.int64)


def _rules(problem: EnvProblem) -> SplitRules:
    assert problem.rules is not None
    return problem.rules
