"""Groups of devices with a copy of all tables each: their devices, costs, plans and files."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError, InvalidPlanError, InvalidTaskError, InvalidTopologyError
from shard_gym.cost_models import AdditiveCostModel, AnalyticalShardingModel
from shard_gym.cost_models.analytical.grouped import GroupedShardingModel
from shard_gym.hardware import HostMemory, Replicas, hardware_profile
from shard_gym.plans import ShardingPlan, plan_of_placement
from shard_gym.plans.plan import LAYOUTS, ONE_GROUP, Groups
from shard_gym.plans.statistics import in_batches
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import PROBLEMS, Task, TaskSuite, load_suite, save_suite
from shard_gym.tasks.groups import device_numbers, possible_groups, task_of_group

BATCH = 3 * 4096
MODEL, PROBLEM = AnalyticalShardingModel(), PROBLEMS["sharding"]


def task_of(num_devices: int, devices_per_host: int, sync_every: int = 100, count: int = 3) -> Task:
    rng = np.random.default_rng([num_devices, devices_per_host, count])
    rows, dims = rng.integers(1_000, 200_000, count), rng.choice([16, 64, 128], count)
    tables = Tables.from_zipf(rows, dims, rng.uniform(1, 20, count), 1.05, Workload(BATCH, "fp32", "adam"))
    topology = hardware_profile("a100-dgx").topology(num_devices, devices_per_host=devices_per_host)
    return Task("grouped", tables, topology, splittable=True, sync_every=sync_every)


def hosts_of(devices: list[int], per_host: int) -> list[int]:
    """How many of these devices are on each host that has some, in the order of the hosts."""
    hosts = [device // per_host for device in devices]
    return [hosts.count(host) for host in sorted(set(hosts))]


@pytest.mark.parametrize(("num_devices", "per_host"), [(8, 8), (16, 8), (12, 4), (12, 6), (6, 1), (32, 4), (4, 8)])
def test_groups_and_replicas_are_where_the_layout_says(num_devices: int, per_host: int) -> None:
    task, seen = task_of(num_devices, per_host), set()
    for groups in possible_groups(task):
        own, numbers = task_of_group(task, groups), device_numbers(groups, num_devices)
        assert sorted(numbers.ravel().tolist()) == list(range(num_devices))
        step = groups.count if groups.layout == "strided" else 1
        assert (np.diff(numbers, axis=1) == step).all()
        assert own.tables.workload.batch_size == BATCH // groups.count
        seen.add(groups.count)
        if groups == ONE_GROUP:
            assert own is task
            continue
        replicas = own.topology.replicas
        assert replicas == Replicas(groups.count, hosts_of(numbers[:, 0].tolist(), per_host)[0], 100)
        for member in numbers:  # the hosts of a group are those of its topology
            assert hosts_of(member.tolist(), per_host) == np.bincount(own.topology.hosts).tolist()
        for copies in numbers.T:
            assert set(hosts_of(copies.tolist(), per_host)) == {replicas.in_host}
    whole = [count for count in range(1, num_devices + 1) if num_devices % count == 0]
    assert seen <= set(whole)
    assert {1, num_devices} <= seen


def ring_bytes(num_bytes: float, hosts: list[int]) -> tuple[float, float]:
    """What a device sends inside its host, and across, in an all-reduce step by step: a ring in each host, then one."""
    of_host, near, far = hosts[0], 0.0, 0.0
    for _ in range(2 * (of_host - 1)):
        near += num_bytes / of_host
    for _ in range(2 * (len(hosts) - 1)):
        far += num_bytes / len(hosts) / of_host  # the cards of a host share what it sends
    return near, far


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_plan_costs_what_its_group_costs_and_its_part_of_averaging(
    random_tables: Any, random_plan: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    per_host, hosts = int(rng.choice([1, 2, 4])), int(rng.choice([1, 2, 3]))
    topology = hardware_profile("h100-dgx").topology(per_host * hosts, devices_per_host=per_host)
    tables = random_tables(rng, 3, dims=(16, 64, 128), optimizer=str(rng.choice(["sgd", "adam"])))
    task = Task("random", tables, topology, splittable=True, sync_every=int(rng.choice([1, 7, 1000])))
    groups = list(possible_groups(task))[int(rng.integers(len(list(possible_groups(task)))))]
    own = task_of_group(task, groups)
    plain, workload = replace(own.topology, replicas=None), tables.workload
    plan, of_number = random_plan(rng, own.tables, plain), workload.weight_bytes + 8 * (workload.optimizer == "adam")
    cost = PROBLEM.cost_ms(replace(plan, groups=groups), task, MODEL)
    estimate, longest = MODEL.estimate(plan, own.tables, plain), 0.0
    numbers = device_numbers(groups, topology.num_devices)
    for device in range(own.num_devices):
        held = sum(
            shard.num_rows * shard.num_columns * of_number
            for sharding in plan.tables
            for shard in sharding.shards
            if shard.device == device
        )
        near, far = ring_bytes(held, hosts_of(numbers[:, device].tolist(), per_host))
        links = topology.links
        longest = max(longest, near / links.intra_host_gb_per_s / 1e6, far / links.inter_host_gb_per_s / 1e6)
    # The model rounds the rows of a last block up to those of the others.
    assert cost == pytest.approx(estimate.total_ms + longest / task.sync_every, rel=1e-5)
    assert PROBLEM.lower_bound_ms(task, MODEL) <= cost * (1 + 1e-9)
    assert cost < PROBLEM.penalty_ms(task, MODEL)


def test_one_changed_device_costs_what_the_whole_plan_then_costs() -> None:
    task = task_of_group(task_of(8, 4, count=9), Groups(2, "contiguous"))
    model, rng = MODEL.with_replicas(), np.random.default_rng(0)
    loads, cluster = model.loads(task.tables, task.topology), task.topology.cluster()
    held = model.reduce(loads, rng.integers(0, 4, 9), 4)
    devices, new = rng.integers(0, 4, 20), model.add(held[rng.integers(0, 4, 20)], loads[rng.integers(0, 9, 20)])
    own = model.device_phases(held)
    phases, costs = model.costs_with_one(cluster, held, own, devices, new)
    plain_phases, plain = AdditiveCostModel.costs_with_one(model, cluster, held, own, devices, new)
    np.testing.assert_allclose(costs, plain, rtol=1e-12)
    np.testing.assert_allclose(phases, plain_phases, rtol=1e-12)


@pytest.mark.parametrize("sync_every", [1, 30, 1000])
def test_plan_search_finds_the_best_groups_and_placement_of_a_few_tables(sync_every: int) -> None:
    task = task_of(4, 2, sync_every)
    costs = {}
    for groups in possible_groups(task):
        own = task_of_group(task, groups)
        for placement in itertools.product(range(own.num_devices), repeat=3):
            plan = replace(plan_of_placement(placement, task.tables), groups=groups)
            costs[groups, placement] = PROBLEM.cost_ms(plan, task, MODEL)
    found = make_agent("plan-search", sharding_types="table_wise", max_queries=2_000).plan(task)
    assert PROBLEM.cost_ms(found, task, MODEL) == pytest.approx(min(costs.values()), rel=1e-12)
    assert (found.groups.count > 1) == (sync_every > 1)  # averaging often costs more than it saves


def test_its_queries_are_counted_and_equal_seeds_give_equal_plans() -> None:
    task = task_of(8, 4, count=12)
    first, second = (make_agent("plan-search", max_queries=2_000, seed=3) for _ in range(2))
    assert first.plan(task) == second.plan(task)
    queries = first.true_cost_queries(MODEL.fingerprint)
    assert 0 < queries == second.true_cost_queries(MODEL.fingerprint)
    assert first.cost_model.queries < queries < 3_000
    assert first.budget_for(task) == 2_000


def test_plans_with_groups_go_through_json() -> None:
    task = task_of(8, 4)
    for groups in possible_groups(task):
        plan = ShardingPlan(plan_of_placement([0] * 3, task.tables).tables, groups)
        text = json.dumps(PROBLEM.to_json(plan))
        assert PROBLEM.from_json(json.loads(text), task) == PROBLEM.checked(plan, task) == plan
    for wrong in ([2], [0, "strided"], [2, "round"], ["2", "strided"], None):
        with pytest.raises(InvalidPlanError, match="groups of a plan are a list of their number and strided or contig"):
            PROBLEM.from_json({"groups": wrong, "shardings": []}, task)


def test_served_tables_have_no_groups() -> None:
    served = task_of(8, 8, 0).tables.with_training(training=False)
    topology = task_of(8, 8).topology
    with pytest.raises(InvalidTaskError, match=r"sync_every 7, but its tables are served.*pass sync_every=0"):
        Task("served", served, topology, splittable=True, sync_every=7)
    assert Task("served", served, topology, splittable=True).sync_every == 0


def test_the_same_tables_in_other_groups_are_another_answer() -> None:
    task = task_of(8, 8)
    shardings = plan_of_placement([0] * 3, task.tables).tables
    several = [ONE_GROUP, *(Groups(2, layout) for layout in LAYOUTS)]
    forms = {PROBLEM.canonical(ShardingPlan(shardings, groups), task) for groups in several}
    assert len(forms) == 2  # on one host, layouts make no difference
    on_hosts = task_of(8, 4)
    assert len({PROBLEM.canonical(ShardingPlan(shardings, groups), on_hosts) for groups in several}) == 3
    assert Groups(1, "contiguous") == ONE_GROUP


@pytest.mark.parametrize(
    ("task", "groups", "says"),
    [
        (task_of(8, 4, 0), Groups(2), "its sync_every is 0"),
        (task_of(8, 4), Groups(3), "3 does not divide its 8 devices"),
        (task_of(10, 4), Groups(2), "hosts of 4 do not"),
        (task_of(12, 4), Groups(6), "different numbers of devices on its hosts of 4"),
        (task_of(8, 4), Groups(0), r"The groups of a plan are Groups\(count, layout\)"),
        (task_of(8, 4), Groups(2, "round"), "Groups are strided or contiguous, not 'round'"),
        (task_of(8, 4), "two", r"The groups of a plan are Groups\(count, layout\), not 'two'"),
    ],
)
def test_impossible_groups_are_refused(task: Task, groups: Any, says: str) -> None:
    plan = ShardingPlan(plan_of_placement([0] * 3, task.tables).tables, groups)
    with pytest.raises(InvalidPlanError, match=says):
        PROBLEM.checked(plan, task)


def test_batches_that_groups_do_not_divide_and_memory_that_is_too_small_leave_groups_out() -> None:
    task = task_of(8, 8)
    odd = replace(task, tables=task.tables.at_batch_size(BATCH - 4))
    assert {groups.count for groups in possible_groups(odd)} == {1, 2, 4}
    largest, total = int(task.tables.memory_bytes.max()), int(task.tables.memory_bytes.sum())
    tight = replace(task, topology=replace(task.topology, memory_cap_bytes=np.full(8, max(largest, -(-total // 4)))))
    assert {groups.count for groups in possible_groups(tight)} == {1, 2}
    with pytest.raises(InvalidTaskError, match="needs"):
        task_of_group(tight, Groups(8))
    # Enough bytes for all tables together, but one fits no way on two devices, as its rows and columns cannot be split.
    tables = Tables.from_zipf([1, 60_000], 4, [0.0, 1.0], 1.05, task.tables.workload)
    caps = np.full(8, tables.memory_bytes.sum())
    caps[[0, 4]] = 10
    odd = replace(task, tables=tables, topology=replace(task.topology, memory_cap_bytes=caps))
    assert ONE_GROUP in list(possible_groups(odd))
    assert make_agent("plan-search", max_queries=500).plan(odd)


def test_models_and_topologies_say_what_they_do_not_know() -> None:
    own = task_of_group(task_of(8, 4), Groups(2))
    with pytest.raises(InvalidOptionError, match="does not support devices whose shards have replicas in other groups"):
        MODEL.loads(own.tables, own.topology, "table_wise")
    assert isinstance(MODEL.with_replicas(), GroupedShardingModel)
    with pytest.raises(InvalidTopologyError, match="give host or replicas, not both"):
        replace(own.topology, host=HostMemory(2**20, 10.0, 10.0))
    with pytest.raises(InvalidTopologyError, match="in_host must divide count; got 2 and 3"):
        Replicas(3, 2, 1)
    with pytest.raises(InvalidTopologyError, match="sync_every of Replicas must be an integer of at least 1, not 0"):
        Replicas(2, 2, 0)
    with pytest.raises(InvalidTaskError, match="only plans have groups; pass splittable=True"):
        replace(task_of(8, 4), splittable=False)
    with pytest.raises(InvalidTaskError, match="must be an integer from 0 to"):
        replace(task_of(8, 4), sync_every=-1)


def test_a_file_keeps_how_often_copies_are_averaged(tmp_path: Path) -> None:
    task = task_of(8, 4)
    for kept in (task, task_of_group(task, Groups(2)), replace(task, sync_every=0)):
        save_suite(tmp_path / "mine.json", TaskSuite("mine", (kept,)))
        loaded = load_suite(tmp_path / "mine.json")[0]
        assert (loaded.sync_every, loaded.topology.replicas) == (kept.sync_every, kept.topology.replicas)
    record = json.loads((tmp_path / "mine.json").read_text())["splits"]["custom"][0]
    assert "sync_every" not in record
    assert "replicas" not in record["topology"]


def test_tables_in_smaller_batches_are_kept_as_long_as_the_tables(four_tables: Tables) -> None:
    tables = replace(four_tables)
    size = tables.workload.batch_size
    assert in_batches(tables, size) is tables
    part = in_batches(tables, size // 4)
    assert in_batches(tables, size // 4) is part
    assert in_batches(replace(tables), size // 4) is not part
    kept = weakref.ref(part)
    del tables, part
    gc.collect()
    assert kept() is None
