from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidPlanError, MemoryExceededError, UnknownNameError
from shard_gym.cost_models import AnalyticalCostModel, make_cost_model
from shard_gym.cost_models.analytical.traffic import sent_bytes
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.planning import Explanation, explain
from shard_gym.planning.explanation import critical_devices
from shard_gym.plans import (
    Shard,
    ShardingPlan,
    TableSharding,
    check_plan,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_wise,
)
from shard_gym.plans.placement import memory_used
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, load_suite

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
def test_no_other_target_of_a_moved_table_gains_more(suite: str, number: int, agent: str) -> None:
    task, explanation = explained(suite, number, agent)
    estimate = MODEL.estimate(explanation.devices, task.tables, task.topology)
    assert np.array_equal(explanation.phases_ms, estimate.phases_ms)
    assert 0 < explanation.lower_bound_ms <= explanation.total_ms == estimate.total_ms
    assert [move.gain_ms for move in explanation.moves] == sorted((m.gain_ms for m in explanation.moves), reverse=True)
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


# Plans

PLANS = make_cost_model(additive=True, splits=True)


def told_of(plan: ShardingPlan, tables: Tables, topology: Topology, model: Any) -> Explanation:
    return explain(Task("plan", tables, topology, splittable=True), plan, model)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_gains_are_differences_of_costs(random_tables: Any, random_plan: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 4)
    topology = hardware_profile("a100-dgx").topology(
        3, devices_per_host=2, memory_cap_bytes=int(tables.memory_bytes.sum() + rng.integers(1, 2**24))
    )
    plan = random_plan(rng, tables, topology)
    told = told_of(plan, tables, topology, PLANS)
    assert told.total_ms == PLANS.estimate(plan, tables, topology).total_ms
    assert np.array_equal(told.phases_ms, PLANS.estimate(plan, tables, topology).phases_ms)
    assert told.hosts.tolist() == [0, 0, 1]
    sent = sent_bytes(plan, tables, topology)
    assert np.array_equal(told.traffic, np.sum(list(sent.values()), axis=0))
    assert sorted(split.table for split in told.splits) == plan.split_tables
    gains = [split.gain_ms for split in told.splits if split.gain_ms is not None]
    assert gains == sorted(gains, reverse=True)
    for split in told.splits:
        wholes = {}
        for device in range(3):
            shardings = [*plan.tables]
            shardings[split.table] = table_wise(tables, split.table, device)
            try:
                check_plan(ShardingPlan(tuple(shardings)), tables, topology)
            except MemoryExceededError:
                continue
            wholes[device] = PLANS.estimate(ShardingPlan(tuple(shardings)), tables, topology).total_ms
        if not wholes:
            assert (split.gain_ms, split.device) == (None, None)
        else:
            assert split.gain_ms == pytest.approx(min(wholes.values()) - told.total_ms, abs=1e-9)
            assert split.device is not None
            assert wholes[split.device] == pytest.approx(min(wholes.values()))
    for move in told.moves:
        table, device = told.shards[move.shard, :2].tolist()
        assert device == move.source
        assert plan.tables[table].sharding_type in ("table_wise", "column_wise")
        first = int(np.flatnonzero(told.shards[:, 0] == table)[0])
        shards = list(plan.tables[table].shards)
        shards[move.shard - first] = shards[move.shard - first]._replace(device=move.target)
        shardings = [*plan.tables]
        shardings[table] = replace(plan.tables[table], shards=tuple(shards))
        moved = check_plan(ShardingPlan(tuple(shardings)), tables, topology)
        after = PLANS.estimate(moved, tables, topology).total_ms
        assert move.gain_ms == pytest.approx(told.total_ms - after, abs=1e-9)


def test_the_cost_without_replicas_is_that_of_whole_tables_put_one_after_the_other(random_tables: Any) -> None:
    tables, topology = random_tables(np.random.default_rng(4), 4), hardware_profile("a100-dgx").topology(3)
    kept = table_wise(tables, 0, 0), column_wise(tables, 1, [1, 2])
    plan = ShardingPlan((*kept, *(data_parallel(tables, table, topology) for table in (2, 3))))
    costs = []
    for table in (2, 3):
        found = []
        for device in range(3):
            shardings = [*plan.tables]
            shardings[table] = table_wise(tables, table, device)
            found.append(ShardingPlan(tuple(shardings)))
        costs = [PLANS.estimate(each, tables, topology).total_ms for each in found]
        plan = found[int(np.argmin(costs))]
    replicated = ShardingPlan((*kept, *(data_parallel(tables, table, topology) for table in (2, 3))))
    told = told_of(replicated, tables, topology, PLANS)
    assert told.without_replicas_ms == pytest.approx(min(costs))
    assert told.without_replicas_ms != told.total_ms
    assert told_of(plan, tables, topology, PLANS).without_replicas_ms is None


def test_a_table_that_fits_no_device_has_no_gain_from_its_split(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 1, dims=(64,))
    cap = int(tables.memory_bytes[0]) // 2 + 2**20
    topology = hardware_profile("a100-dgx").topology(2, memory_cap_bytes=cap)
    told = told_of(ShardingPlan((row_wise(tables, 0, topology),)), tables, topology, PLANS)
    assert [(split.gain_ms, split.device) for split in told.splits] == [(None, None)]
    assert told.moves == ()
    assert told.memory_used.sum() == tables.memory_bytes[0]
    assert told.shards_on(1).tolist() == [1]


def test_only_valid_plans_are_explained(random_tables: Any) -> None:
    tables, topology = random_tables(np.random.default_rng(0), 2), hardware_profile("a100-dgx").topology(2)
    plan = plan_of_placement([0, 1], tables)
    assert told_of(plan, tables, topology, PLANS).splits == ()
    wrong = ShardingPlan((plan.tables[0], TableSharding("table_wise", (Shard(0, 0, 1, 0, 4),))))
    with pytest.raises(InvalidPlanError, match=r"Table 1 \(table_1\) is table_wise"):
        told_of(wrong, tables, topology, PLANS)


# Traffic


def test_the_traffic_of_three_tables_on_two_hosts_is_that_counted_by_hand() -> None:
    """Eight samples on four devices, two to a host; bytes are counted message by message."""
    workload = Workload(8, weight_dtype="fp32", optimizer="sgd")
    tables = Tables.from_zipf(np.array([40, 40, 10]), np.array([4, 8, 4]), np.ones(3), np.zeros(3), workload)
    topology = hardware_profile("a100-dgx").topology(4, devices_per_host=2)
    plan = ShardingPlan((table_wise(tables, 0, 0), row_wise(tables, 1, topology), data_parallel(tables, 2, topology)))
    told = told_of(plan, tables, topology, PLANS)
    # Whole on device 0: 8 x 4 numbers, 32 bytes to each device, and 32 bytes of gradients back.
    whole = np.array([[32, 64], [32, 0], [0, 32], [0, 32]])
    # Blocks on all: 8 x 8 partial sums, 64 bytes to each device, and 64 back.
    blocks = np.array([[128, 256]] * 4)
    # Replicas: 160 bytes of gradients, twice half of them in a ring of two devices, and as many between the two hosts,
    # whose devices share them.
    replicas = np.array([[160, 80]] * 4)
    assert told.traffic.tolist() == (whole + blocks + replicas).tolist()
    assert told.hosts.tolist() == [0, 0, 1, 1]
    placed = explain(Task("whole", tables, topology), [0, 3, 3])
    # Of 8 samples 16 numbers on device 0 and 48 on device 3 of four: a fourth to each of the others, and back.
    assert placed.traffic.tolist() == [[32, 64 + 96], [32, 96], [96, 32], [96, 192 + 32]]
