from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.errors import MemoryExceededError, UnknownNameError
from shard_gym.explain import Explanation, critical_devices, explain
from shard_gym.placement import memory_used
from shard_gym.suites import load_suite
from shard_gym.tasks import Task
from shard_gym.topology import Topology

MODEL = AnalyticalCostModel()
CASES = [("dlrm-40x8", 3, "size-lookup-greedy"), ("dlrm-20x4", 0, "random")]


def explained(suite: str, number: int, agent: str) -> tuple[Task, Explanation]:
    task = load_suite(suite).task(number)
    return task, explain(task, make_agent(agent).place(task), MODEL)


def cost_ms(task: Task, placement: np.ndarray) -> float:
    return MODEL.estimate(placement, task.tables, task.topology).total_ms


def test_equally_slow_devices_are_all_critical_and_an_idle_phase_has_none() -> None:
    phases = np.array([[1.0, 0.0, 2.0, 3.0], [1.0 - 1e-12, 0.0, 2.1, 3.0], [0.9, 0.0, 2.0, 2.9]])
    assert critical_devices(phases).tolist() == [
        [True, False, False, True],
        [True, False, True, True],
        [False, False, False, False],
    ]


@pytest.mark.parametrize(("suite", "number", "agent"), CASES)
def test_the_costs_are_those_of_the_model_and_gains_are_differences(suite: str, number: int, agent: str) -> None:
    task, explanation = explained(suite, number, agent)
    estimate = MODEL.estimate(explanation.devices, task.tables, task.topology)
    assert np.array_equal(explanation.phases_ms, estimate.phases_ms)
    assert 0 < explanation.lower_bound_ms <= explanation.total_ms == estimate.total_ms
    assert explanation.moves
    for move in explanation.moves:
        after = explanation.devices.copy()
        assert after[move.shard] == move.source != move.target
        after[move.shard] = move.target
        assert move.gain_ms == pytest.approx(explanation.total_ms - cost_ms(task, after), abs=1e-9)
    gains = [move.gain_ms for move in explanation.moves]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize(("suite", "number", "agent"), CASES)
def test_no_other_target_of_a_moved_table_gains_more(suite: str, number: int, agent: str) -> None:
    task, explanation = explained(suite, number, agent)
    critical = np.flatnonzero(explanation.critical.any(axis=1))
    best = {move.shard: move.gain_ms for move in explanation.moves}
    assert set(best) <= set(np.flatnonzero(np.isin(explanation.devices, critical)))
    for table in np.flatnonzero(np.isin(explanation.devices, critical)):
        gains = []
        for target in set(range(task.num_devices)) - {int(explanation.devices[table])}:
            after = explanation.devices.copy()
            after[table] = target
            if (memory_used(after, task.tables, task.num_devices) <= task.topology.memory_cap_bytes).all():
                gains.append(explanation.total_ms - cost_ms(task, after))
        assert (table in best) == bool(gains)
        if gains:
            assert best[table] == pytest.approx(max(gains), abs=1e-9)


def test_the_tables_of_a_device_come_costliest_first() -> None:
    task, explanation = explained(*CASES[0])
    for device in range(task.num_devices):
        tables = explanation.shards_on(device)
        assert set(tables) == set(np.flatnonzero(explanation.devices == device))
        assert (np.diff(explanation.single_shard_ms[tables]) <= 0).all()
    alone = Task("alone", task.tables.select([5]), task.topology)
    assert explanation.single_shard_ms[5] == pytest.approx(cost_ms(alone, np.zeros(1, np.int64)))


def test_the_busiest_devices_hold_the_critical_ones() -> None:
    task, explanation = explained(*CASES[0])
    critical = np.flatnonzero(explanation.critical.any(axis=1))
    shown = explanation.busiest(critical.size)
    assert shown.tolist() == critical.tolist()
    assert explanation.busiest(100).tolist() == list(range(task.num_devices))
    assert explanation.busiest(0).size == 0
    # One device of every phase comes first, even where many are equally slow.
    phases = np.array([[1.0, 0, 0, 9]] * 5 + [[1.0, 2, 2, 1], [3.0, 1, 1, 1], [1.0, 1, 1, 1]])
    tied = replace(explanation, phases_ms=phases)
    assert tied.busiest(3).tolist() == [0, 5, 6]
    assert tied.busiest(5).tolist() == [0, 1, 2, 5, 6]


def test_on_one_device_there_is_nothing_to_move() -> None:
    task = load_suite("dlrm-20x4").task(0)
    topology = Topology(task.topology.device, task.topology.links, 1)
    explanation = explain(Task("single", task.tables.select([0, 1]), topology), [0, 0], MODEL)
    assert explanation.moves == ()
    assert explanation.critical.tolist() == [[True, False, False, True]]


def test_a_cost_model_may_be_named_and_a_placement_must_be_valid() -> None:
    task = load_suite("dlrm-20x4")[0]
    placement = make_agent("size-greedy").place(task)
    assert explain(task, placement, "analytical").total_ms == cost_ms(task, placement)
    with pytest.raises(UnknownNameError, match="no cost model named 'analytic'"):
        explain(task, placement, "analytic")
    with pytest.raises(MemoryExceededError, match="Device 0"):
        explain(task, np.zeros(task.num_tables, np.int64), MODEL)
