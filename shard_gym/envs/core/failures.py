"""Why an episode failed, in numbers and in a sentence."""

from __future__ import annotations

from typing import Any

from shard_gym.envs.core.problem import Problem
from shard_gym.envs.core.state import DEAD_END, ILLEGAL_ACTION, PlacementState, ShardingState, Status, current_rows
from shard_gym.tasks import Task
from shard_gym.text import format_bytes

REASONS: dict[int, str] = {
    ILLEGAL_ACTION: "was put on a device that does not exist or has too little memory free",
    DEAD_END: "fits no device",
}
SPLIT_REASONS: dict[int, str] = {
    ILLEGAL_ACTION: "was given an action that is illegal",
    DEAD_END: "fits no device, and no split of it fits",
}
"""The same where tables may be split."""


def failure_of(task: Task, problem: Problem, state: PlacementState, env: int) -> dict[str, Any] | None:
    """Why episode `env` failed, or None if it did not; see `Episodes.failure`."""
    status = int(state.status[env])
    if status not in REASONS:
        return None
    part, reasons = "Table", REASONS
    if isinstance(state, ShardingState):
        part, reasons = "The current shard of table" if state.level[env] else part, SPLIT_REASONS
    table = task.tables.names[problem.tables.order[problem.row[env], state.step[env]]]
    needed = int(problem.tables.memory.reshape(-1)[current_rows(problem, state)[env]])
    free = int((problem.memory_cap[env] - state.memory_used[env]).max())
    return {
        "reason": Status(status).name.lower(),
        "table": table,
        "bytes_needed": needed,
        "bytes_free": free,
        "message": (
            f"{part} {table} {reasons[status]}: it needs {needed} bytes ({format_bytes(needed)}), "
            f"and the emptiest of the {task.num_devices} devices has {free} bytes ({format_bytes(free)}) free."
        ),
    }
