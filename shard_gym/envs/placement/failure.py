"""Why an episode failed, in words and numbers."""

from __future__ import annotations

from typing import Any

from shard_gym.envs.placement.problem import Problem
from shard_gym.envs.placement.state import DEAD_END, ILLEGAL_ACTION, PlacementState, Status
from shard_gym.tasks import Task
from shard_gym.text import format_bytes


def describe_failure(task: Task, problem: Problem, state: PlacementState, row: int = 0) -> dict[str, Any] | None:
    """What went wrong in row `row`, or None if nothing did.

    Returns:
        `reason` ("illegal_action" or "dead_end"), `table` (its name), `bytes_needed`, `bytes_free` (the most on any
        device) and `message`.
    """
    status = int(state.status[row])
    if status not in (ILLEGAL_ACTION, DEAD_END):
        return None
    step = int(state.step[row])
    table = (problem.row[row], step)
    name = task.tables.names[int(problem.tables.order[table])]
    needed = int(problem.tables.memory[table])
    free = int((problem.memory_cap[row] - state.memory_used[row]).max())
    if status == DEAD_END:
        said = "fits no device"
    else:
        said = "was put on a device that does not exist or has too little memory free"
    return {
        "reason": Status(status).name.lower(),
        "table": name,
        "bytes_needed": needed,
        "bytes_free": free,
        "message": (
            f"Table {name} {said}: it needs {needed} bytes ({format_bytes(needed)}), "
            f"and the emptiest of the {task.num_devices} devices has {free} bytes ({format_bytes(free)}) free."
        ),
    }
