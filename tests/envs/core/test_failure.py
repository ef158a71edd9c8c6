"""A failure names the table, the bytes and the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.failure import describe_failure
from shard_gym.envs.core.problem import Problem, prepare
from shard_gym.envs.core.state import PlacementState, initial_state, step
from shard_gym.hardware import hardware_profile
from shard_gym.tasks import Task

MODEL = make_cost_model("analytical")
PROFILE = hardware_profile("a100-dgx")


@pytest.fixture
def tasks(random_tables: Any) -> list[Task]:
    """Two tasks of equal tables; in the second, the devices hold one and two of them and no more."""
    one = random_tables(np.random.default_rng(0), 1)
    bytes_each = int(one.memory_bytes[0])
    caps = np.array([bytes_each, 2 * bytes_each + 7])
    easy = Task("easy", one.select([0, 0]), PROFILE.topology(2))
    tight = Task("tight", one.select([0, 0, 0]), PROFILE.topology(2, memory_cap_bytes=caps))
    return [easy, tight]


def stepped(tasks: list[Task], *actions: list[int]) -> tuple[Problem, PlacementState]:
    problem = Problem.stack([prepare(task, MODEL, 4, 3) for task in tasks])
    state = initial_state(problem, MODEL)
    for each in actions:
        state = step(problem, state, np.array(each), MODEL)
    return problem, state


def test_there_is_nothing_to_say_of_a_row_that_did_not_fail(tasks: list[Task]) -> None:
    problem, state = stepped(tasks, [0, 0])
    assert [describe_failure(task, problem, state, row) for row, task in enumerate(tasks)] == [None, None]
    problem, state = stepped(tasks, [0, 0], [0, 1], [0, 1])
    assert state.status.tolist() == [1, 1]
    assert [describe_failure(task, problem, state, row) for row, task in enumerate(tasks)] == [None, None]


def test_each_row_has_a_failure_of_its_own(tasks: list[Task]) -> None:
    problem, state = stepped(tasks, [2, 0], [0, 0])
    needed = int(tasks[0].tables.memory_bytes[0])
    first, second = (describe_failure(task, problem, state, row) for row, task in enumerate(tasks))
    assert first is not None
    assert second is not None
    assert (first["reason"], first["table"], first["bytes_needed"]) == ("illegal_action", "table_0", needed)
    assert first["bytes_free"] == tasks[0].topology.device.memory_bytes
    assert (second["reason"], second["table"]) == ("illegal_action", "table_0")
    assert (second["bytes_needed"], second["bytes_free"]) == (needed, 2 * needed + 7)
    assert {type(value) for value in first.values()} == {str, int}


def test_a_dead_end_is_told_apart(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(3), 3, dims=(16,))
    order = MODEL.single_table_costs(MODEL.table_loads(tables, PROFILE.topology(2)), PROFILE.topology(2)).argsort()[
        ::-1
    ]
    needed = tables.memory_bytes[order]
    # The first on device 0 and the second on 1 leave too little on both; the first two on device 0 would do.
    caps = np.array([needed[:2].sum(), max(needed[1:]) + 3])
    task = Task("dead end", tables, PROFILE.topology(2, memory_cap_bytes=caps))
    problem, state = stepped([task], [0], [1])
    failure = describe_failure(task, problem, state)
    assert failure is not None
    free = [int(caps[0] - needed[0]), int(caps[1] - needed[1])]
    assert failure["reason"] == "dead_end"
    assert failure["table"] == tables.names[order[2]]
    assert failure["bytes_needed"] == needed[2]
    assert failure["bytes_free"] == max(free)
    for part in (failure["table"], str(needed[2]), str(max(free)), "2 devices", "fits no device"):
        assert part in failure["message"]
