"""The exchange of the indices: bytes recounted bag by bag, its time link by link, and the models that wait for it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.cost_models import (
    AdditiveCostModel,
    AnalyticalCostModel,
    AnalyticalShardingModel,
    InferenceCostModel,
    make_cost_model,
    with_index_exchange,
)
from shard_gym.cost_models.analytical.index_exchange import EXPOSED, HIDDEN, index_exchange_ms
from shard_gym.cost_models.analytical.traffic import index_exchange_of_plan_ms, received_index_bytes
from shard_gym.cost_models.base import loads_of_plan
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.cost_models.bounds import lower_bound_ms
from shard_gym.hardware import Cluster, Replicas, Topology, hardware_profile
from shard_gym.planning import deduplicated
from shard_gym.plans import (
    ShardingPlan,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, problem_of

SEEDS = st.integers(0, 2**32 - 1)
MODEL = AnalyticalShardingModel()
WAITS = AnalyticalShardingModel(index_exchange=EXPOSED)
VALUE, LENGTH = 8, 4  # bytes


def a100s(devices: int, per_host: int = 8, **changes: Any) -> Topology:
    made = hardware_profile("a100-dgx").topology(devices, devices_per_host=per_host, memory_cap_bytes=2**50)
    return replace(made, **changes)


def indices(plan: ShardingPlan, tables: Tables, topology: Topology) -> np.ndarray:
    """(D,) what the model says that each device gets."""
    return loads_of_plan(WAITS, plan, tables, topology)[:, 0]


def wait_ms(num_bytes: np.ndarray, topology: Topology) -> float:
    return float(index_exchange_ms(num_bytes, topology.cluster()))


# Bytes


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_bytes_are_those_of_a_batch_recounted_bag_by_bag(seed: int) -> None:
    """Every bag of every sample is sent to the shards of its table, cut into the rows of blocks as TorchRec does."""
    rng = np.random.default_rng(seed)
    per_host, hosts = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    topology = a100s(per_host * hosts, per_host)
    devices, batch = topology.num_devices, topology.num_devices * int(rng.integers(1, 5))
    rows = devices * per_host * 8
    kinds = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
    features = rng.integers(1, 3, len(kinds))
    pooled = rng.random(len(kinds)) < 0.5
    pooled[kinds.index("table_row_wise")] = True
    # As many ids of each bag are in each block as in the others: lookups of the model are spread evenly over them.
    bags = [
        [rng.permutation(np.arange(0, rows, rows // devices)).repeat(rng.integers(0, 3)) for _ in range(batch * count)]
        for count in features
    ]
    lookups = np.array([sum(map(len, of_table)) for of_table in bags], np.float64)
    tables = Tables.from_zipf([rows] * 5, 16, lookups / batch, 0.0, Workload(batch), features, pooled=pooled)
    shards = [int(device) for device in rng.integers(devices, size=4)]
    plan = ShardingPlan(
        (
            table_wise(tables, 0, shards[0]),
            column_wise(tables, 1, shards[1:], (4, 8, 4)),  # two of them may be on one device
            row_wise(tables, 2, topology),
            table_row_wise(tables, 3, topology, int(rng.integers(hosts))),
            data_parallel(tables, 4, topology),
        )
    )
    expected = np.zeros(devices)
    for kind, sharding, of_table in zip(kinds, plan.tables, bags, strict=True):
        for bag, shard in itertools.product(of_table, sharding.shards):
            if kind != "data_parallel":
                inside = (bag >= shard.first_row) & (bag < shard.first_row + shard.num_rows)
                expected[shard.device] += LENGTH + VALUE * int(inside.sum())
    np.testing.assert_allclose(indices(plan, tables, topology), expected, rtol=1e-9, atol=1e-2)
    assert received_index_bytes(plan, tables, topology).tolist() == indices(plan, tables, topology).tolist()
    took = index_exchange_of_plan_ms(plan, tables, topology)
    assert took == wait_ms(indices(plan, tables, topology), topology)
    assert (took == 0) == (devices == 1)


def test_deduplicated_ids_are_sent_once_by_a_device_and_lengths_are_not() -> None:
    tables = Tables.from_zipf([100], 16, 50.0, 1.0, Workload(4096), pooled=[False])
    plan, topology = plan_of_placement([0], tables), a100s(4)
    fewer = deduplicated(tables, 4)
    saved = VALUE * (tables.lookups_per_batch - fewer.lookups_per_batch)[0]
    assert saved > 0.9 * VALUE * tables.lookups_per_batch[0]
    assert (indices(plan, tables, topology) - indices(plan, fewer, topology))[0] == pytest.approx(saved, rel=1e-9)


# Time


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_the_time_is_that_of_the_busiest_link_and_three_latencies(seed: int) -> None:
    """Against a matrix of what each device sends to each other one, whatever outputs shrink to across hosts."""
    rng = np.random.default_rng(seed)
    devices, per_host = int(rng.integers(2, 11)), int(rng.integers(1, 5))
    topology = a100s(devices, per_host, cross_host_ratio=float(rng.choice([1.0, 0.3])))
    gets = np.rint(10.0 ** rng.uniform(3, 9, devices)) * (rng.random(devices) < 0.8)
    gets[0] += 1.0
    sent = np.repeat(gets[None] / devices, devices, axis=0)  # of each to each, from its D-th of the samples
    np.fill_diagonal(sent, 0.0)
    host = np.arange(devices) // per_host
    links, longest = topology.links, 0.0
    for near, where in ((host[:, None] == host, "intra_host"), (host[:, None] != host, "inter_host")):
        for axis in (0, 1):
            passed = (sent * near).sum(axis=axis).max()
            knee, extra = getattr(links, f"{where}_knee_bytes"), getattr(links, f"{where}_knee_extra")
            longest = max(longest, (passed + extra * min(passed, knee)) / (getattr(links, f"{where}_gb_per_s") * 1e6))
    latency_us = links.inter_host_latency_us if devices > per_host else links.intra_host_latency_us
    assert wait_ms(gets, topology) == pytest.approx(longest + 3e-3 * latency_us, rel=1e-12)


def test_nothing_takes_no_time_and_one_device_waits_for_nobody() -> None:
    assert wait_ms(np.zeros(8), a100s(8)) == 0.0
    assert wait_ms(np.array([1e9]), a100s(1)) == 0.0


# The model that waits for it


def test_it_is_a_model_of_its_own_and_the_hidden_one_is_as_before() -> None:
    assert (
        AnalyticalCostModel().fingerprint == AnalyticalCostModel(index_exchange=HIDDEN).fingerprint == "analytical-v2"
    )
    made = make_cost_model("analytical-exposed-indices")
    assert (
        made.fingerprint
        == make_cost_model(made, additive=True, splits=True).fingerprint
        == "analytical-exposed-indices-v2"
    )
    assert AnalyticalShardingModel("fp16", index_exchange=EXPOSED).fingerprint == "analytical-exposed-indices-v2-fp16"
    cached = AnalyticalCostModel(host_policy="lru", index_exchange=EXPOSED)
    assert (
        cached.fingerprint
        == make_cost_model(cached, additive=True, splits=True).fingerprint
        == "analytical-lru-exposed-indices-v2"
    )
    assert InferenceCostModel(index_exchange=EXPOSED).fingerprint == "analytical-inference-exposed-indices-v2"
    with pytest.raises(UnknownNameError, match="There is no index exchange named 'hiden'"):
        AnalyticalCostModel(index_exchange="hiden")


def test_only_analytical_models_can_be_told_to_wait() -> None:
    for model in (AnalyticalCostModel(host_policy="lru"), AnalyticalShardingModel("fp16"), InferenceCostModel("mx4")):
        waits = with_index_exchange(model, EXPOSED)
        assert type(waits) is type(model)
        assert waits.fingerprint == model.fingerprint.replace("-v2", "-exposed-indices-v2")
        assert with_index_exchange(waits, HIDDEN).fingerprint == model.fingerprint
        assert with_index_exchange(model, HIDDEN) is model
        assert with_index_exchange(waits, None) is waits
    with pytest.raises(InvalidOptionError, match="'no-costs' does not know the exchange of the indices"):
        with_index_exchange(NoCosts(), EXPOSED)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_an_iteration_is_the_hidden_one_and_the_exchange(
    random_tables: Any, random_topology: Any, random_plan: Any, in_host: Any, seed: int
) -> None:
    """With plans, sequences, dtypes, compression and host memory; only forward exchanges change, all alike."""
    rng = np.random.default_rng(seed)
    tables, topology = random_tables(rng, 5), random_topology(rng, 9)
    tables = replace(tables, pooled=rng.random(5) < 0.5)
    topology = replace(topology, cross_host_ratio=float(rng.choice([1.0, 0.4])), memory_cap_bytes=np.asarray(2**50))
    dtype, policy = str(rng.choice(["fp32", "fp16", "mx4"])), "static"
    if rng.random() < 0.5:
        topology = in_host(Task("task", tables, topology, splittable=True), 0.3).topology
        policy = str(rng.choice(["static", "lru"]))
    plan = random_plan(rng, tables, topology)
    hidden, waits = (AnalyticalShardingModel(dtype, None, policy, name) for name in (HIDDEN, EXPOSED))
    before, after = (loads_of_plan(model, plan, tables, topology) for model in (hidden, waits))
    assert after[:, 1:].tobytes() == before.tobytes()
    took = wait_ms(after[:, 0], topology)
    costs, longer = (model.costs(loads, topology.cluster()) for model, loads in ((hidden, before), (waits, after)))
    expected = costs[0].copy()
    expected[:, 1] += took
    np.testing.assert_array_equal(longer[0], expected)
    assert longer[1] == pytest.approx(costs[1] + took, rel=1e-14)


def test_serving_and_groups_wait_too() -> None:
    tables = Tables.from_zipf([1000] * 4, 32, 20.0, 0.9, Workload(4096))
    served = tables.with_training(training=False)
    topology, placement = a100s(4), np.arange(4)
    plan = plan_of_placement(placement, tables)
    took = wait_ms(indices(plan, tables, topology), topology)
    for hidden, waits, read, where in (
        (InferenceCostModel(), InferenceCostModel(index_exchange=EXPOSED), served, topology),
        (MODEL.with_replicas(), WAITS.with_replicas(), tables, replace(topology, replicas=Replicas(2, 1, 10))),
    ):
        costs = [model.estimate(plan, read, where).total_ms for model in (hidden, waits)]
        assert costs[1] - costs[0] == pytest.approx(took, rel=1e-9)
        assert waits.estimate(placement, read, where).total_ms == costs[1]
        single, loads = waits.single_tables(waits.loads(read, where), where), waits.loads(read, where)
        alone = [float(waits.costs(waits.reduce(each[None], np.array([0]), 4), where.cluster())[1]) for each in loads]
        assert single[1] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("policy", [None, "static", "lru"])
def test_placing_table_by_table_costs_the_same_in_plain_numbers_and_in_arrays(
    random_tables: Any, in_host: Any, policy: str | None
) -> None:
    tables, topology = random_tables(np.random.default_rng(3), 12), a100s(5, 2, cross_host_ratio=0.5)
    if policy is not None:
        topology = in_host(Task("task", tables, topology), 0.3).topology
    model = AnalyticalCostModel(None, policy or "static", EXPOSED)
    for padding in (0, 2):
        loads, cluster = model.loads(tables, topology), Cluster.stack([topology.cluster(5 + padding)])
        devices = np.zeros((1, 5 + padding, model.num_loads_with(policy is not None)))
        phases = [[0.0] * (5 + padding) for _ in range(4)]
        for table, row in enumerate(loads):
            device = table % 4  # one stays empty
            devices[0, device] = model.add(devices[0, device], row)
            shared = devices[0, :, model.shared_loads].T.tolist()
            cost = model.plain_costs(device, devices[0, device].tolist(), phases, shared, cluster)
            expected, total = model.costs(devices, cluster)
            assert np.array_equal(np.array(phases).T, expected[0])
            assert cost == total[0]


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_no_cost_falls_when_a_table_is_added(random_tables: Any, random_topology: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables, topology = random_tables(rng, 20), random_topology(rng, 10)
    model, size = AnalyticalCostModel(index_exchange=EXPOSED), topology.num_devices
    loads = model.loads(tables, topology)
    held = model.reduce(loads, rng.integers(size, size=20), size)
    _, before = model.costs(held, topology.cluster())
    device, table = rng.integers(size, size=400), rng.integers(20, size=400)
    more = np.repeat(held[None], 400, axis=0)
    more[np.arange(400), device] = model.add(held[device], loads[table])
    _, after = model.costs(more, topology.cluster())
    assert (after >= before).all()


# Bounds


def test_bounds_hold_for_all_placements_of_tiny_tasks(random_task: Any) -> None:
    model = AnalyticalCostModel(index_exchange=EXPOSED)
    shares = []
    for seed in range(10):
        task = random_task(np.random.default_rng(seed), 4, 3, devices_per_host=1 + seed % 3)
        tables, topology = task.tables, replace(task.topology, memory_cap_bytes=np.asarray(2**50))
        costs = [
            model.estimate(np.array(devices), tables, topology).total_ms
            for devices in itertools.product(range(3), repeat=4)
        ]
        low, high = model.bounds(model.loads(tables, topology), topology)
        assert low * (1 - 1e-12) <= min(costs)
        assert max(costs) <= high * (1 + 1e-12) < model.penalty_ms(tables, topology)
        assert lower_bound_ms(tables, topology, model) <= min(costs)
        shares.append(low / min(costs))
    assert np.mean(shares) > 0.75


def test_the_upper_bound_has_the_slowest_of_both_exchanges() -> None:
    """On a last host of one device, links between hosts count; on a full one, those inside, which are slower here."""
    tables = Tables.from_zipf([1000] * 2, 512, 0.001, 0.0, Workload(2**16))
    slow_near = replace(a100s(3).links, intra_host_gb_per_s=20.0, inter_host_gb_per_s=25.0, inter_host_knee_extra=0.0)
    for dim in (4, 512):
        topology, changed = replace(a100s(3, 2), links=slow_near), tables.with_dims(dim)
        model = AnalyticalCostModel(index_exchange=EXPOSED)
        _, high = model.bounds(model.loads(changed, topology), topology)
        for placement in itertools.product(range(3), repeat=2):
            assert model.estimate(np.array(placement), changed, topology).total_ms <= high * (1 + 1e-12)


def test_the_exact_agent_says_that_it_does_not_know_it(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 4, 2)
    pytest.importorskip("ortools")
    with pytest.raises(InvalidOptionError, match="'analytical-exposed-indices' is none"):
        make_agent("exact", cost_model="analytical-exposed-indices").place(task)


# Plans


def whole_and_halved() -> tuple[Tables, Topology, ShardingPlan, ShardingPlan]:
    """24 tables of 64 columns and 60 lookups a sample on 16 A100, whole ones and halves."""
    tables = Tables.from_zipf([200_000] * 24, 64, 60.0, 1.0, Workload(65_536, "fp32", "adam"))
    halves = [column_wise(tables, table, [2 * table % 16, (2 * table + 1) % 16]) for table in range(24)]
    return tables, a100s(16), plan_of_placement(np.arange(24) % 16, tables), ShardingPlan(tuple(halves))


def test_halves_are_cheaper_only_while_the_exchange_is_hidden() -> None:
    """It takes 2.12 ms for whole tables and 3.12 for halves, whose lookups are sent twice."""
    tables, topology, whole, halved = whole_and_halved()
    hidden, exposed = (
        [model.estimate(plan, tables, topology).total_ms for plan in (whole, halved)] for model in (MODEL, WAITS)
    )
    assert hidden == pytest.approx([5.33, 4.87], abs=0.005)
    assert exposed == pytest.approx([7.46, 7.985], abs=0.005)
    took = [wait_ms(indices(plan, tables, topology), topology) for plan in (whole, halved)]
    assert took == pytest.approx([2.12, 3.12], abs=0.005)


def test_a_search_that_waits_for_it_beats_both() -> None:
    tables, topology, whole, halved = whole_and_halved()
    task = Task("indices", tables, topology, splittable=True)

    def cost_ms(plan: ShardingPlan) -> float:
        return WAITS.estimate(plan, tables, topology).total_ms

    def planned(model: AdditiveCostModel) -> ShardingPlan:
        agent = make_agent("plan-search", cost_model=model, max_queries=12_500, seed=0)
        return problem_of(task).checked(problem_of(task).asker(agent)(task), task)

    knows = cost_ms(planned(WAITS))
    assert knows == pytest.approx(6.78, abs=0.005)
    assert knows < 0.95 * min(map(cost_ms, (whole, halved, planned(MODEL))))
