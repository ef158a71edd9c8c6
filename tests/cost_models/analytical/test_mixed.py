"""Tables of several workloads: a device computes its groups in turn, and exchanges the outputs of all once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.agents.search import PlanSearchAgent
from shard_gym.common.errors import InvalidTablesError, MemoryExceededError, NoPlacementFoundError
from shard_gym.cost_models import (
    AdditiveCostModel,
    AnalyticalCostModel,
    AnalyticalShardingModel,
    make_cost_model,
)
from shard_gym.cost_models.analytical import FITTED, InferenceCostModel
from shard_gym.cost_models.analytical.mixed import GROUP_LOADS
from shard_gym.cost_models.analytical.model import BACKWARD_DRAM_MS, FORWARD_DRAM_MS, SORT_MS
from shard_gym.cost_models.base import COMMUNICATION, COMPUTE, bounds_of_plans
from shard_gym.cost_models.base.host_policy import HostPolicy
from shard_gym.cost_models.bounds import lower_bound_ms, plan_lower_bound_ms
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import ShardingPlan, TableSharding, check_plan, column_wise, data_parallel, row_wise, table_wise
from shard_gym.plans.check import plan_memory_used
from shard_gym.plans.hbm_rows import best_split, split_bytes
from shard_gym.plans.memory import training_memory
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tables.tables import ANYWHERE, IN_HBM, IN_HOST
from shard_gym.tasks import Task, TaskSuite, load_suite, save_suite

BATCH = 65_536
OWN = (Workload(BATCH, "fp16", "sgd"), Workload(BATCH, "fp32", "adam"), Workload(BATCH, "bf16", "rowwise_adagrad"))
MODELS = ["analytical", "analytical-exposed-indices"]


def mixed(task: Task, rng: np.random.Generator, count: int = 3, **changes: Any) -> Task:
    """The task with its tables in groups at random, and memory for all of them on every device."""
    own = [replace(each, **changes) for each in OWN[:count]]
    tables = replace(task.tables, workload=Workload.mixed(own, rng.integers(count, size=task.num_tables)))
    caps = np.full(task.num_devices, 2**50)
    return replace(task, tables=tables, topology=replace(task.topology, memory_cap_bytes=caps))


def of_group(tables: Tables, group: int, chosen: Any = True) -> Tables | None:
    """The tables of a group with its workload alone; None if there are none."""
    here = np.flatnonzero((tables.group == group) & chosen)
    return replace(tables.select(here), workload=tables.workloads[group]) if len(here) else None


def model_of(name: str, splits: bool = True) -> AdditiveCostModel:
    model = make_cost_model(name, splits=splits)
    assert isinstance(model, AdditiveCostModel)
    return model


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_compute_is_the_sum_over_groups_and_the_exchange_that_of_all(random_task: Any, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = mixed(random_task(rng, int(rng.integers(2, 12)), int(rng.integers(1, 5)), devices_per_host=2), rng)
    tables, topology = task.tables, task.topology
    placement = rng.integers(task.num_devices, size=task.num_tables)
    for splits in (False, True):
        model = model_of(name, splits)
        phases = model.estimate(placement, tables, topology).phases_ms
        one = replace(tables, workload=OWN[0])
        exchanged = model.estimate(placement, one, topology).phases_ms[:, COMMUNICATION]
        assert np.array_equal(phases[:, COMMUNICATION], exchanged)
        for device in range(task.num_devices):
            alone = [of_group(tables, group, placement == device) for group in range(3)]
            loads = [model.loads(each, topology) for each in alone if each is not None]
            wanted = [model.device_phases(model.reduce(each, np.zeros(len(each), np.int64), 1))[0] for each in loads]
            assert phases[device, COMPUTE] == pytest.approx(np.sum(wanted, axis=0)[COMPUTE] if wanted else 0.0)


def test_tables_of_one_group_of_several_cost_what_they_cost_alone(random_task: Any) -> None:
    rng = np.random.default_rng(3)
    task = random_task(rng, 9, 3)
    plain = replace(task.tables, workload=OWN[1])
    tables = replace(plain, workload=Workload.mixed(OWN, np.ones(9, np.int64)))
    placement = rng.integers(3, size=9)
    for name in MODELS:
        for model in (model_of(name, False), model_of(name, True)):
            found = model.estimate(placement, tables, task.topology).phases_ms
            assert np.array_equal(found, model.estimate(placement, plain, task.topology).phases_ms)


def test_pooled_and_sequence_tables_of_a_group_are_one_operator(random_task: Any) -> None:
    """As those of one workload are; with a group for each they are two, of which each launches and has limits."""
    rng = np.random.default_rng(0)
    task = random_task(rng, 8, 1, dims=(64,))
    tables = replace(task.tables, pooled=np.arange(8) < 5, workload=OWN[0])
    apart = replace(tables, workload=Workload.mixed([OWN[0], OWN[0]], (np.arange(8) >= 5).astype(np.int64)))
    placement, model = np.zeros(8, np.int64), model_of("analytical")
    together, two = (model.estimate(placement, each, task.topology).total_ms for each in (tables, apart))
    launches = FITTED.forward_launches + FITTED.backward_launches
    assert two >= together + launches * task.topology.device.kernel_launch_us * 1e-3 * (1 - 1e-9)


def plans_of(task: Task) -> Iterator[ShardingPlan]:
    """Whole tables anywhere, equal halves anywhere, blocks of rows and replicas, of each table."""
    tables, topology, devices = task.tables, task.topology, range(task.num_devices)
    halves = list(combinations_with_replacement(devices, 2))

    def forms(table: int) -> Iterator[TableSharding]:
        yield from (table_wise(tables, table, device) for device in devices)
        yield from (column_wise(tables, table, pair) for pair in halves)
        yield row_wise(tables, table, topology)
        yield data_parallel(tables, table, topology)

    for chosen in product(*(list(forms(table)) for table in range(len(tables)))):
        yield ShardingPlan(chosen)


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in MODELS for seed in range(2)])
def test_bounds_hold_for_all_plans_and_placements_of_tiny_tasks(random_task: Any, name: str, seed: int) -> None:
    pytest.importorskip("scipy")
    from shard_gym.cost_models.bounds import lower_bound_ms, plan_lower_bound_ms

    rng = np.random.default_rng(seed)
    task = mixed(random_task(rng, 3, 2, dims=(8, 48, 136), devices_per_host=1 + seed % 2), rng, 2)
    tables, topology = task.tables, task.topology
    sharding, placing = model_of(name), model_of(name, False)
    costs = [sharding.estimate(plan, tables, topology).total_ms for plan in plans_of(task)]
    low, high = bounds_of_plans(sharding, tables, topology)
    assert isinstance(sharding, AnalyticalShardingModel)
    assert low <= min(costs) <= max(costs) <= high
    tight = plan_lower_bound_ms(tables, topology, sharding)
    assert low * (1 - 1e-9) <= tight <= min(costs)
    assert tight > 0.55 * min(costs)
    whole = [placing.estimate(np.array(each), tables, topology).total_ms for each in product(range(2), repeat=3)]
    low, high = placing.bounds(placing.loads(tables, topology), topology)
    assert low <= min(whole) <= max(whole) <= high
    assert low * (1 - 1e-9) <= lower_bound_ms(tables, topology, placing) <= min(whole)


@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_the_best_placement_and_exact_proves_no_more_than_it(random_task: Any, seed: int) -> None:
    pytest.importorskip("ortools")
    rng = np.random.default_rng(seed)
    task = mixed(random_task(rng, 6, 2), rng)
    model = model_of("analytical", False)
    best = min(
        model.estimate(np.array(each), task.tables, task.topology).total_ms for each in product(range(2), repeat=6)
    )
    found = make_agent("local-search", seed=0, max_queries=3_000).place(task)
    assert model.estimate(found, task.tables, task.topology).total_ms == pytest.approx(best, rel=1e-9)
    exact: Any = make_agent("exact", max_work=0.1)
    solution = exact.solve(task)
    assert solution.lower_bound_ms <= best * (1 + 1e-9)
    assert solution.cost_ms == pytest.approx(best, rel=1e-6)


def test_plan_search_is_no_worse_than_the_best_tiny_plan_and_its_plans_hold(random_task: Any) -> None:
    rng = np.random.default_rng(1)
    task = replace(mixed(random_task(rng, 3, 2, dims=(16, 64)), rng, 2), splittable=True)
    model = model_of("analytical")
    best = min(model.estimate(plan, task.tables, task.topology).total_ms for plan in plans_of(task))
    plan = make_agent("plan-search", seed=0, max_queries=5000).plan(task)
    check_plan(plan, task.tables, task.topology)
    assert model.estimate(plan, task.tables, task.topology).total_ms <= best * (1 + 1e-9)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_incremental_costs_are_those_of_the_whole_placement(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = mixed(random_task(rng, 7, 3), rng)
    for model in (AnalyticalCostModel(), AnalyticalShardingModel()):
        loads, cluster = model.loads(task.tables, task.topology), task.topology.cluster()
        held = model.reduce(loads[:6], rng.integers(3, size=6), 3)
        devices = np.arange(3)
        new = model.add(held, loads[6])
        _, fast = model.costs_with_one(cluster, held, model.device_phases(held), devices, new)
        one_more = model.one_more(cluster, held[None]).costs(loads[6:])[0]
        for device in devices:
            after = held.copy()
            after[device] = new[device]
            assert fast[device] == one_more[device] == model.costs(after, cluster)[1]


def test_memory_of_plans_is_that_of_each_groups_own_workload(random_task: Any) -> None:
    rng = np.random.default_rng(5)
    task = mixed(random_task(rng, 6, 2, dims=(16, 32)), rng)
    tables = task.tables
    forms = [
        column_wise(tables, 0, (0, 1)),
        row_wise(tables, 1, task.topology),
        data_parallel(tables, 2, task.topology),
    ]
    plan = ShardingPlan((*forms, *(table_wise(tables, table, table % 2) for table in range(3, 6))))
    used = plan_memory_used(plan, tables, 2)
    wanted = np.zeros(2, np.int64)
    for table, sharding in enumerate(plan.tables):
        own = tables.workloads[tables.group[table]]
        for shard in sharding.shards:
            wanted[shard.device] += shard.num_rows * int(own.row_bytes(np.array([shard.num_columns]))[0])
    assert used.tolist() == wanted.tolist()
    tight = replace(task.topology, memory_cap_bytes=wanted)
    check_plan(plan, tables, tight)
    with pytest.raises(MemoryExceededError):
        check_plan(plan, tables, replace(tight, memory_cap_bytes=wanted - 1))


def test_replicas_of_adam_update_the_moments_of_all_rows_and_others_have_none(random_task: Any) -> None:
    """The dense update of each group costs what it costs the same table alone."""
    rng = np.random.default_rng(4)
    task = random_task(rng, 4, 2)
    own = (*OWN, Workload(BATCH, "fp8", "adagrad"))
    tables = replace(task.tables, workload=Workload.mixed(own, [0, 1, 2, 3]))
    assert tables.pooling_factor.all()
    model = AnalyticalShardingModel()
    loads = model.loads(tables, task.topology, "data_parallel")
    for table in range(4):
        alone = replace(tables.select([table]), workload=own[table])
        assert np.array_equal(loads[table, : model.num_loads], model.loads(alone, task.topology, "data_parallel")[0])


def test_serving_costs_the_forward_of_each_group(random_task: Any) -> None:
    rng = np.random.default_rng(4)
    task = mixed(random_task(rng, 8, 2), rng)
    served, placement = task.tables.with_training(training=False), rng.integers(2, size=8)
    trained = AnalyticalShardingModel().estimate(placement, task.tables, task.topology).phases_ms
    found = InferenceCostModel().estimate(placement, served, task.topology).phases_ms
    assert np.array_equal(found[:, :2], trained[:, :2])
    assert not found[:, 2:].any()


def hosted(task: Task, share: float) -> Task:
    """The task on devices whose HBM has room for a share of the bytes of a device."""
    hbm = int(share * task.tables.memory_bytes.sum() / task.num_devices)
    host = hardware_profile("a100-dgx").host_memory(hbm)
    return replace(task, topology=replace(task.topology, host=host), known_placement=None)


def added_ms(model: AdditiveCostModel, tables: Tables, topology: Topology) -> np.ndarray:
    """What rows in host memory add to the forward and the backward of the first device, which has all tables."""
    placement = np.zeros(len(tables), np.int64)
    ms = [
        model.estimate(placement, tables, each).phases_ms[0, list(COMPUTE)]
        for each in (topology, replace(topology, host=None))
    ]
    return np.asarray(ms[0] - ms[1])


@pytest.mark.parametrize("policy", ["static", "lru"])
@pytest.mark.parametrize("model", [AnalyticalCostModel, AnalyticalShardingModel])
def test_groups_of_one_workload_read_from_the_host_what_one_group_does(
    random_task: Any, model: type[AnalyticalCostModel], policy: str
) -> None:
    rng = np.random.default_rng(2)
    for own in OWN:
        one = replace(random_task(rng, 8, 2).tables, workload=own)
        hbm = hardware_profile("a100-dgx").host_memory(int(0.3 * one.memory_bytes.sum()))
        topology = replace(hardware_profile("a100-dgx").topology(2, memory_cap_bytes=2**50), host=hbm)
        twice = replace(one, workload=Workload.mixed([own, own], np.arange(8) % 2))
        found, expected = (added_ms(model(host_policy=policy), each, topology) for each in (twice, one))
        assert expected[0] > 0
        assert found.tolist() == pytest.approx(expected.tolist())


def test_each_phase_waits_for_the_rows_that_the_best_split_for_it_leaves(random_task: Any) -> None:
    """Sorted by the bytes that a byte of HBM saves; states of rows, and tables that are kept, leave less of it."""
    rng = np.random.default_rng(3)
    model = AnalyticalCostModel()
    for seed in range(6):
        task = hosted(mixed(random_task(rng, 6, 2), rng), (0.2, 0.5, 0.9)[seed % 3])
        tables, host = task.tables, task.topology.host
        if seed > 2:
            rows_in = np.full(6, ANYWHERE)
            rows_in[np.argsort(tables.memory_bytes)[:2]] = IN_HBM, IN_HOST
            tables = tables.with_rows_in(rows_in)
        assert host is not None
        states, weight = (np.asarray(each) for each in (tables.workload.state, tables.workload.weight_bytes))
        row_bytes = tables.embedding_dim * (weight + 4 * states[1])
        steps, count = tables.row_popularity.steps(tables.num_embeddings.astype(float))
        read = -np.expm1(-steps * tables.lookups_per_batch[:, None])
        count = count * np.where(read > 0, 1.0, 0.0)
        kept, away = tables.are_in(IN_HBM), tables.are_in(IN_HOST)
        own = np.where(kept, tables.memory_bytes, 4 * states[0] * tables.num_embeddings)
        found = added_ms(model, tables, task.topology)
        for phase, rate, share in ((0, 16e6, weight / (weight + 4 * states[1])), (1, 20e6, np.ones(6))):
            gain = (share[:, None] * read)[~kept & ~away].ravel()
            size = (count * row_bytes[:, None])[~kept & ~away].ravel()
            order = np.argsort(-gain, kind="stable")
            free = max(host.hbm_bytes - own.sum(), 0)
            inside = np.clip(free - (np.cumsum(size[order]) - size[order]), 0, size[order])
            left = (gain[order] * (size[order] - inside)).sum()
            left += ((share[:, None] * read * count).sum(axis=1) * row_bytes)[away].sum()
            assert found[phase] <= left / rate * (1 + 1e-3)
            assert found[phase] == pytest.approx(left / rate, rel=0.06, abs=1e-6)


def test_the_split_of_a_plan_takes_little_longer_than_is_costed() -> None:
    """Rows by the probability that a batch reads them, not by what each phase saves: 3% on average, as the docs say."""
    pool, rng, ratios = load_pool("dlrm-2021").tables, np.random.default_rng(0), []
    profile = hardware_profile("h100-dgx")
    own = [
        Workload(BATCH, "fp16", "rowwise_adagrad"),
        Workload(BATCH, "fp32", "adam"),
        Workload(BATCH, "fp16", "adagrad"),
    ]
    for share in (0.05, 0.1, 0.3, 0.6) * 5:
        tables = pool.select(rng.choice(len(pool), 20, replace=False)).with_dims(64)
        tables = replace(tables, workload=Workload.mixed(own, rng.integers(3, size=20)))
        host = profile.host_memory(int(share * tables.memory_bytes.sum()))
        topology = replace(profile.topology(1, memory_cap_bytes=2**50), host=host)
        split = best_split(tables, np.zeros(20, np.int64), np.zeros(20, bool), topology)
        weights = split.host_reads * tables.embedding_dim
        read = (weights * tables.workload.weight_bytes).sum() / host.read_gb_per_s / 1e6
        updated = (weights * split_bytes(tables.workload)).sum() / host.update_gb_per_s / 1e6
        ratios.append(float((read + updated) / added_ms(AnalyticalCostModel(), tables, topology).sum()))
    assert min(ratios) > 0.999
    assert np.mean(ratios) == pytest.approx(1.03, abs=0.005)
    assert max(ratios) < 1.13


@pytest.mark.parametrize("policy", ["static", "lru"])
def test_bounds_of_tables_of_several_workloads_hold_with_host_memory(
    random_task: Any, valid_placements: Any, policy: str
) -> None:
    rng = np.random.default_rng(5)
    for share in (0.05, 0.3, 0.7):
        task = hosted(mixed(random_task(rng, 5, 2), rng), share)
        model, splitting = AnalyticalCostModel(host_policy=policy), AnalyticalShardingModel(host_policy=policy)
        loads, every = model.loads(task.tables, task.topology), valid_placements(task)
        costs = [float(model.costs(model.reduce(loads, each, 2), task.topology.cluster())[1]) for each in every]
        low, high = model.bounds(loads, task.topology)
        assert low <= min(costs) * (1 + 1e-12)
        assert max(costs) <= high * (1 + 1e-12)
        assert lower_bound_ms(task.tables, task.topology, model) <= min(costs) * (1 + 1e-9)
        bound = plan_lower_bound_ms(task.tables, task.topology, splitting)
        plan = PlanSearchAgent(splitting, max_queries=1_000).plan(task)
        assert bound <= splitting.estimate(plan, task.tables, task.topology).total_ms * (1 + 1e-9)


def test_environments_cost_one_workload_beside_several_as_it_costs_alone(random_task: Any) -> None:
    rng = np.random.default_rng(6)
    several = hosted(mixed(random_task(rng, 5, 2), rng), 0.3)
    one = hosted(replace(several, name="one", tables=replace(several.tables, workload=OWN[1])), 0.3)
    for tasks in ((several, one), (one,)):
        env = EmbeddingPlacementEnv(TaskSuite("mine", tasks))
        for task in tasks:
            env.reset(options={"task": task})
            for device in rng.integers(2, size=5).tolist():
                *_, info = env.step(device)
            estimate = AnalyticalCostModel().estimate(info["placement"], task.tables, task.topology)
            assert info["cost_ms"] == pytest.approx(estimate.total_ms, rel=1e-12)


@pytest.mark.parametrize("name", ["static", "lru"])
def test_the_loads_of_host_memory_are_told_from_those_of_groups(name: str) -> None:
    policy: HostPolicy = AnalyticalCostModel(host_policy=name).host_policy
    assert (policy.num_mixed_loads - policy.num_maxima) % GROUP_LOADS
    assert (policy.num_loads - policy.num_maxima) % GROUP_LOADS
    assert policy.num_mixed_loads == policy.num_loads or (policy.num_loads - policy.num_mixed_loads) % GROUP_LOADS


def test_tables_of_several_workloads_are_stored_with_their_suite(random_task: Any, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    task = mixed(random_task(rng, 5, 2), rng)
    suite = TaskSuite("mine", (task, replace(random_task(rng, 3, 2), name="one")))
    save_suite(tmp_path / "mine.json", suite)
    read = load_suite(tmp_path / "mine.json")
    assert (read[0].tables.workload, read[1].tables.workload) == (task.tables.workload, suite[1].tables.workload)
    assert (suite.num_groups, read.num_groups) == (3, 3)
    with suppress(NoPlacementFoundError):
        placement = make_agent("size-greedy", seed=0).place(task)
        assert placement.shape == (5,)


@pytest.mark.parametrize(
    ("optimizer", "like"), [("lamb", "adam"), ("adagrad", "sgd"), ("partial_rowwise_adam", "rowwise_adagrad")]
)
def test_optimizers_read_and_write_the_states_that_they_keep(random_task: Any, optimizer: str, like: str) -> None:
    """LAMB's are Adam's; Adagrad has one number of each weight more than SGD, as partial rowwise Adam than Adagrad."""
    rng = np.random.default_rng(0)
    task, model = random_task(rng, 6, 2, dims=(32, 64)), AnalyticalCostModel()
    tables = task.tables
    updates, rest = (
        [np.round(model.loads(tables.with_training(optimizer=name), task.topology)[:, columns], 9) for name in names]
        for names in [(optimizer, like)]
        for columns in ([BACKWARD_DRAM_MS], [0, 2, 3, 4, 5, 6, 7, 8, 9])
    )
    assert np.array_equal(*rest)
    one_number = 4 * tables.embedding_dim * tables.distinct_rows * 2
    rate = task.topology.device.dram_gb_per_s * 1e6 * FITTED.random_update_efficiency
    wanted = 0.0 * one_number if optimizer == "lamb" else one_number / rate
    assert (updates[0] - updates[1])[:, 0] == pytest.approx(wanted, abs=1e-8)


def test_weights_of_lookups_are_read_sorted_exchanged_and_held(random_task: Any) -> None:
    """4 bytes each; the sort of the weights moves a key and a weight four times, beside the one of the positions."""
    rng = np.random.default_rng(0)
    task = random_task(rng, 5, 2)
    tables, device = task.tables, task.topology.device
    scored = replace(tables, workload=replace(tables.workload, weighted=True))
    model = AnalyticalCostModel(index_exchange="exposed")
    more = model.loads(scored, task.topology) - model.loads(tables, task.topology)
    lookups, rate = tables.lookups_per_batch, device.dram_gb_per_s * 1e6
    first = model.first_load
    assert more[:, 0] == pytest.approx(4 * lookups, rel=1e-6)
    for load in (FORWARD_DRAM_MS, BACKWARD_DRAM_MS):
        assert more[:, first + load] == pytest.approx(4 * lookups / rate, rel=1e-6, abs=1e-12)
    assert more[:, first + SORT_MS] == pytest.approx(104 * lookups / (FITTED.sort_efficiency * rate), rel=1e-6)
    others = np.delete(more, [0, first + FORWARD_DRAM_MS, first + BACKWARD_DRAM_MS, first + SORT_MS], axis=1)
    assert not others.any()
    held = (
        training_memory(np.zeros(5, np.int64), scored, 2).total
        - training_memory(np.zeros(5, np.int64), tables, 2).total
    )
    assert held[0] == pytest.approx(2 * 4 * lookups.sum(), abs=5)
    assert scored.memory_bytes.tolist() == tables.memory_bytes.tolist()
    with pytest.raises(
        InvalidTablesError, match="is a sequence table, whose rows are not added up, so lookups have no"
    ):
        replace(scored, pooled=False)
    some = Workload.mixed([tables.workload, scored.workload], [0, 1, 0, 1, 0])
    loads, every = model.loads(replace(tables, workload=some), task.topology), np.arange(5)
    wanted = np.stack([model.loads(each, task.topology) for each in (tables, scored)])
    assert np.array_equal(loads[:, : wanted.shape[-1]], wanted[[0, 1, 0, 1, 0], every])
