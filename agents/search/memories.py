"""Answers to tasks of which some tables must be in HBM and others in host memory, with room for them in both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from shard_gym.agents.search.splits import SplitTables
from shard_gym.common.errors import NoPlacementFoundError, StatesExceedHbmError
from shard_gym.plans import SHARDING_TYPES, check_plan
from shard_gym.plans.caps import rooms_of_kept
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import ROW_WISE, TABLE_ROW_WISE, devices_of_hosts
from shard_gym.tables import STATE_BYTES
from shard_gym.tables.tables import IN_HBM
from shard_gym.tasks import Task

_MOST = 2.0**46  # bytes
_POWERS = (0.25, 0.5, 1.0)


def room_in_both(task: Task) -> Callable[[SplitTables], bool] | None:
    """Whether a plan within the caps leaves room in HBM, and in host memory, for what must be there.

    None for tasks in which nothing must be in one of them: no table, and no state of rows.
    """
    tables, topology = task.tables, task.topology
    if topology.host is None or (tables.rows_in is None and not np.any(tables.workload.state.per_row)):
        return None

    def has_room(split: SplitTables) -> bool:
        try:
            check_plan(split.plan(), tables, topology)
        except StatesExceedHbmError:
            return False
        return True

    return has_room


def in_both_memories(task: Task, search: Callable[[Task], SplitTables]) -> SplitTables:
    """What `search` finds; again for tasks of `with_memories_apart` while it leaves too little room in a memory.

    Memory caps, which searches know, count both. Most often costs alone keep devices from having too much in HBM.

    Raises:
        StatesExceedHbmError: no plan that was found has room in both.
    """
    found, has_room = search(task), room_in_both(task)
    if has_room is None:
        return found
    for power in _POWERS:
        if has_room(found):
            return found
        with suppress(NoPlacementFoundError):
            found = search(with_memories_apart(task, power))
    check_plan(found.plan(), task.tables, task.topology)
    return found


def with_memories_apart(task: Task, power: float) -> Task:
    """The task for a search that counts more bytes of what must be in HBM, or in host memory, than it has.

    With a power of 1 tables, and states of rows in HBM, take the share of the memory cap that they are of that memory.
    Plans within the caps then have room in both, but others have, too.
    """
    tables, topology = task.tables, task.topology
    limits = task.constraints or Constraints.none(task.num_tables, task.num_devices)
    counted = np.zeros((task.num_tables, len(SHARDING_TYPES), 2), np.int64)
    none, one = (tables.workload.row_bytes(np.full(task.num_tables, columns)) for columns in (0, 1))
    of_columns = np.stack([none, one - none], axis=1)
    blocks = {ROW_WISE: task.num_devices, TABLE_ROW_WISE: max(devices_of_hosts(topology), 1)}
    for where, rooms in rooms_of_kept(topology).items():
        share = float((topology.memory_cap_bytes / rooms).max()) ** power
        for kind, name in enumerate(SHARDING_TYPES):
            rows = -(-tables.num_embeddings // blocks.get(name, 1))
            states = STATE_BYTES * tables.workload.state.per_row * rows  # they are in HBM
            own = np.where(tables.are_in(where)[:, None], rows[:, None] * of_columns, 0)
            own[:, 0] += np.where(tables.are_in(where), 0, states) if where == IN_HBM else -states
            own = np.clip(np.ceil(share * own), 0.0, _MOST).astype(np.int64)
            counted[:, kind] = np.maximum(counted[:, kind], own)
    if limits.least_bytes is not None:
        counted = np.maximum(counted, limits.least_bytes)
    return replace(task, constraints=replace(limits, least_bytes=counted), known_placement=None)
