"""Rows in host memory behind a cache: against simulated caches, and what holds for all tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

from shard_gym.common.errors import UnknownNameError
from shard_gym.cost_models import COST_MODELS, AnalyticalCostModel, AnalyticalShardingModel, counted, make_cost_model
from shard_gym.cost_models.analytical.host_cache import (
    ALL_BYTES,
    BATCHES,
    FIRST_MS,
    FIRST_ROWS,
    INDEXED_BYTES,
    LOOKUP_MS,
    LRU,
    WAYS,
    overflow,
)
from shard_gym.cost_models.base.model import BACKWARD, FORWARD
from shard_gym.cost_models.bounds import lower_bound_ms, plan_lower_bound_ms
from shard_gym.hardware import Cluster, HostMemory, Topology, hardware_profile
from shard_gym.tables import Tables, load_pool
from shard_gym.tables.tables import ANYWHERE, IN_HBM, IN_HOST
from shard_gym.tasks import Task, TaskSampler

MODEL, STATIC = AnalyticalCostModel(host_policy="lru"), AnalyticalCostModel()


def on_one(hbm_bytes: int, read: float = 28.0, update: float = 40.0, dense_ms: float = 0.0) -> Topology:
    """One H100 with so many bytes of HBM for tables."""
    topology = hardware_profile("h100-dgx").topology(1, memory_cap_bytes=2**50)
    return replace(topology, host=HostMemory(hbm_bytes, read, update, dense_ms=dense_ms))


def misses(tables: Tables, slots: int) -> tuple[float, float]:
    """Bytes of the rows of a batch that are not in a cache of so many slots, and of those that find no slot."""
    row = int(tables.embedding_dim.max()) * tables.workload.weight_bytes + 16
    loads = MODEL.host_policy.loads(tables, on_one(slots * row + 4 * int(tables.num_embeddings.sum()), 40.0))
    device = np.concatenate([loads[:, :4].max(axis=0), loads[:, 4:].sum(axis=0)])
    device[ALL_BYTES] = np.inf  # with a cache, even if all rows fit into the HBM
    forward, in_place = (float(ms) for ms in LRU.added_ms(device))
    return (forward - float(tables.lookups_per_batch.sum()) * LOOKUP_MS) * 40e6, in_place * 40e6


def simulated(
    probability: np.ndarray, width: np.ndarray, slots: int, ways: int, batches: int, seed: int
) -> tuple[float, float, float]:
    """The mean bytes of a batch that an LRU cache misses, that find no slot, and all; from the second half on."""
    rng = np.random.default_rng(seed)
    home = rng.integers(slots // ways, size=len(probability))
    sets: list[dict[int, int]] = [{} for _ in range(slots // ways)]  # rows, from that read longest ago to the last
    total = np.zeros(3)
    for batch in range(batches):
        rows = rng.permutation(np.flatnonzero(rng.random(len(probability)) < probability))
        absent = [row for row in rows.tolist() if row not in sets[home[row]]]
        for row in set(rows.tolist()) - set(absent):
            del sets[home[row]][row]
            sets[home[row]][row] = batch
        in_place = []
        for row in absent:
            held = sets[home[row]]
            if len(held) == ways:
                oldest = next(iter(held))
                if held[oldest] == batch:
                    in_place.append(row)
                    continue
                del held[oldest]
            held[row] = batch
        if batch >= batches // 2:
            total += width[absent].sum(), width[in_place].sum(), width[rows].sum()
    missed, without_slot, read = (total / (batches - batches // 2)).tolist()
    return missed, without_slot, read


def probabilities(tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    """Of each row: that a batch reads it, and its bytes."""
    both = []
    for rows, lookups, s, row in zip(
        tables.num_embeddings, tables.lookups_per_batch, tables.row_popularity.s, tables.row_bytes, strict=True
    ):
        weight = np.arange(1.0, rows + 1) ** -s
        both.append((-np.expm1(-weight / weight.sum() * lookups), np.full(rows, float(row))))
    chance, width = zip(*both, strict=True)
    return np.concatenate(chance), np.concatenate(width)


STREAMS: Sequence[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float]] = (
    ((6_000,), (16,), (0.0,), 1.0),
    ((6_000,), (16,), (1.05,), 2.0),
    ((2_000, 4_000), (32, 8), (0.6, 1.1), 0.5),
)


@pytest.mark.parametrize("ways", [WAYS, None])
@pytest.mark.parametrize("slots", [1_280, 2_560, 5_120])
@pytest.mark.parametrize("stream", STREAMS)
def test_misses_are_those_of_a_simulated_cache(zipf_tables: Any, stream: Any, slots: int, ways: int | None) -> None:
    rows, dims, exponents, pooling = stream
    tables = zipf_tables(rows, dims, pooling, s=exponents, batch_size=600)
    found, without_slot, read = simulated(*probabilities(tables), slots, ways or slots, 160, 0)
    expected, expected_without = misses(tables, slots)
    # Sets of 32 slots miss a little more than one of all slots.
    assert expected == pytest.approx(found, rel=0.05, abs=0.01 * read if ways else 0.025 * read)
    assert expected_without == pytest.approx(without_slot, abs=0.005 * read)


@pytest.mark.parametrize(("fill", "share"), [(0.9, 0.033), (1.0, 0.070), (2.0, 0.5)])
def test_rows_without_a_slot_in_full_sets(zipf_tables: Any, fill: float, share: float) -> None:
    """Each batch reads all rows, so each is in the cache but those without a slot."""
    tables = zipf_tables([6_400], 16, 1e4, batch_size=600)
    _, in_place = misses(tables, int(6_400 / fill))
    assert in_place / (6_400 * 64) == pytest.approx(share, abs=0.0006)
    ways, several = simulated(np.ones(6_400), np.ones(6_400), int(6_400 / fill) // 32 * 32, WAYS, 4, 0)[1:]
    assert in_place / (6_400 * 64) == pytest.approx(ways / several, abs=0.02)


def test_overflow_is_that_of_poisson() -> None:
    counts = np.arange(400)
    for mean in (0.0, 1.0, 14.5, 32.0, 57.3, 120.0):
        assert overflow(mean) == pytest.approx(
            (poisson.pmf(counts, mean) * np.maximum(counts - 32, 0)).sum(), abs=1e-11
        )


def test_tables_that_fit_have_no_cache_and_pay_nothing(zipf_tables: Any) -> None:
    tables = zipf_tables([50_000, 80_000], [16, 64], 4.0, s=1.0, optimizer="rowwise_adagrad")
    size, nowhere = int(tables.memory_bytes.sum()), np.zeros(2, np.int64)
    without = replace(on_one(1), host=None)
    assert MODEL.estimate(nowhere, tables, on_one(size)).total_ms == STATIC.estimate(nowhere, tables, without).total_ms
    assert MODEL.estimate(nowhere, tables, without).total_ms == STATIC.estimate(nowhere, tables, without).total_ms
    paid = MODEL.estimate(nowhere, tables, on_one(size - 1)).phases_ms[0, FORWARD]
    assert (
        paid - STATIC.estimate(nowhere, tables, without).phases_ms[0, FORWARD]
        > tables.lookups_per_batch.sum() * LOOKUP_MS
    )


def test_states_of_each_weight_are_updated_in_the_host_and_those_of_rows_take_room(zipf_tables: Any) -> None:
    sgd, adam, rowwise = (
        zipf_tables([2_000_000], 32, 4.0, s=1.0, optimizer=name) for name in ("sgd", "adam", "rowwise_adagrad")
    )
    topology, where = on_one(64 * 2**20), np.zeros(1, np.int64)
    added = [
        (MODEL.estimate(where, tables, topology).phases_ms - STATIC.estimate(where, tables, on_one(2**40)).phases_ms)[0]
        for tables in (sgd, adam, rowwise)
    ]
    states_ms = float(sgd.distinct_rows[0]) * 32 * 8 / 40e6
    assert added[1][BACKWARD] == pytest.approx(added[0][BACKWARD] + states_ms, rel=1e-3)
    assert added[1][FORWARD] == pytest.approx(added[0][FORWARD], rel=1e-9)
    assert added[2][FORWARD] > added[0][FORWARD]
    loads = [LRU.loads(tables, topology)[0, INDEXED_BYTES] for tables in (sgd, rowwise)]
    assert loads == [4 * 2e6, 8 * 2e6]


def test_the_dense_layers_hide_the_prefetch_and_not_what_is_done_in_place(zipf_tables: Any) -> None:
    tables, where = zipf_tables([200_000], 64, 20.0, s=0.7), np.zeros(1, np.int64)
    phases = [MODEL.estimate(where, tables, on_one(2**21, dense_ms=ms)).phases_ms[0] for ms in (0.0, 0.1, 1e6, 1e7)]
    assert phases[0][FORWARD] - phases[1][FORWARD] == pytest.approx(0.1)
    assert phases[2].tolist() == phases[3].tolist()
    in_place = phases[2] - STATIC.estimate(where, tables, on_one(2**40)).phases_ms[0]
    assert in_place[FORWARD] == pytest.approx(in_place[BACKWARD] * 40 / 28)
    assert in_place[BACKWARD] > 0


def test_every_row_of_a_replica_is_updated(zipf_tables: Any) -> None:
    tables = zipf_tables([100_000], 16, 2.0, s=1.0)
    loads = LRU.loads(tables, on_one(2**20), dense=True)[0]
    assert loads[FIRST_ROWS:FIRST_MS].tolist() == [100_000.0, *[0.0] * (FIRST_MS - FIRST_ROWS - 1)]
    assert loads[FIRST_MS:].sum() == pytest.approx(100_000 * 64 / 40e6)


def sampled(seed: int, devices: int = 3, tables: tuple[int, int] = (3, 8), optimizer: str = "rowwise_adagrad") -> Task:
    pool = load_pool("dlrm-2021").tables.with_training(weight_dtype="fp16", optimizer=optimizer)
    sampler = TaskSampler(pool, tables, (devices, devices), "a100-dgx", (4, 16, 64, 128), hbm_share=(0.02, 1.0))
    return sampler.sample(np.random.default_rng(seed))


few = settings(max_examples=20, deadline=None, derandomize=True)


@few
@given(st.integers(0, 10**6), st.sampled_from(["sgd", "rowwise_adagrad", "adam"]), st.floats(0.3, 3.0))
def test_nothing_gets_faster_with_another_table(seed: int, optimizer: str, read_times: float) -> None:
    task = sampled(seed, optimizer=optimizer)
    host = task.topology.host
    assert host is not None
    faster = replace(host, read_gb_per_s=host.update_gb_per_s * read_times, dense_ms=seed % 3 * 0.2)
    topology = replace(task.topology, host=faster)
    loads = MODEL.loads(task.tables, topology)
    assert (loads >= 0).all()
    device = np.zeros(loads.shape[1])
    before = MODEL.device_phases(device)
    assert not before.any()
    for table in loads:
        device = MODEL.add(device, table)
        after = MODEL.device_phases(device)
        assert (after >= before - 1e-12).all()
        before = after


@few
@given(st.integers(0, 10**6))
def test_plain_numbers_and_arrays_have_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = sampled(seed, tables=(5, 30))
    loads = LRU.loads(task.tables, task.topology)
    loads[:, 0] *= np.exp(rng.uniform(-12, 2))  # other sizes of the HBM
    chosen = [loads[rng.random(len(loads)) < share] for share in (0.1, 0.5, 1.0)] + [loads[:0]]
    devices = np.array(
        [np.concatenate([each[:, :4].max(axis=0, initial=0.0), each[:, 4:].sum(axis=0)]) for each in chosen]
    )
    forward, backward = LRU.added_ms(devices)
    for device, *expected in zip(devices.tolist(), forward.tolist(), backward.tolist(), strict=True):
        assert list(LRU.plain_added_ms(device)) == expected


def test_tables_that_are_kept_in_a_memory_are_in_no_cache(zipf_tables: Any) -> None:
    """Those in HBM leave the cache less of it; those in the host are read and updated in place, whatever is cached."""
    tables = zipf_tables([20_000, 3_000, 50_000], optimizer="adam")
    hbm = int(0.2 * tables.memory_bytes[0] + tables.memory_bytes[1])
    kept = tables.with_rows_in(np.array([ANYWHERE, IN_HBM, IN_HOST]))

    def added(of: Tables, hbm: int) -> np.ndarray:
        loads = LRU.loads(of, on_one(hbm, read=20.0, update=40.0))
        device = np.concatenate([loads[:, :4].max(axis=0), loads[:, 4:].sum(axis=0)])
        assert list(LRU.plain_added_ms(device.tolist())) == [float(ms) for ms in LRU.added_ms(device)]
        return np.array(LRU.plain_added_ms(device.tolist()))

    first, last = tables.select([0]), tables.select([2])
    read = LRU.loads(last, on_one(1))[:, FIRST_MS : FIRST_MS + len(BATCHES)].sum()  # to copy the rows of a batch
    of_weight = int(np.max(tables.workload.weight_bytes))
    in_place = np.array([2.0 * read, (1.0 + 8.0 / of_weight) * read])  # reads are half as fast; moments have 8 bytes
    assert added(kept.select([2]), 1) == pytest.approx(in_place)
    assert not added(kept.select([1]), hbm).any()
    alone = added(first, hbm - int(tables.memory_bytes[1]))
    assert alone[0] > 0
    assert added(kept, hbm) == pytest.approx(in_place + alone)
    # Where the others fit, there is no cache.
    assert added(kept.select([0, 2]), int(tables.memory_bytes[0])) == pytest.approx(in_place)


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_for_every_placement(seed: int, valid_placements: Any) -> None:
    task = sampled(seed, devices=2, tables=(4, 6))
    roomy = replace(task, topology=replace(task.topology, memory_cap_bytes=np.asarray(2**50)), known_placement=None)
    loads = MODEL.loads(task.tables, roomy.topology)
    low, high = MODEL.bounds(loads, roomy.topology)
    costs = [
        float(MODEL.costs(MODEL.reduce(loads, placement, 2), roomy.topology.cluster())[1])
        for placement in valid_placements(roomy)
    ]
    assert low <= min(costs) * (1 + 1e-12)
    assert max(costs) <= high * (1 + 1e-12)
    assert lower_bound_ms(task.tables, roomy.topology, MODEL) <= min(costs)


def test_the_model_has_a_name_of_its_own_and_the_default_is_as_before() -> None:
    assert make_cost_model("analytical-lru").fingerprint == MODEL.fingerprint == "analytical-lru-v2"
    assert AnalyticalCostModel(host_policy="static").fingerprint == STATIC.fingerprint == "analytical-v2"
    assert AnalyticalShardingModel("bf16", host_policy="lru").fingerprint == "analytical-lru-v2-bf16"
    sharding = make_cost_model("analytical-lru", additive=True, splits=True)
    assert isinstance(sharding, AnalyticalShardingModel)
    assert (sharding.name, sharding.host_policy) == ("analytical-lru", LRU)
    assert "analytical-lru" in COST_MODELS
    with pytest.raises(UnknownNameError, match="host policy"):
        AnalyticalCostModel(host_policy="lfu")


def test_it_is_linear_only_without_host_memory() -> None:
    task = sampled(0)
    assert MODEL.linear_costs(task.tables, task.topology) is None
    assert MODEL.linear_costs(task.tables, replace(task.topology, host=None)) is not None


def test_whole_tables_cost_the_same_as_shards_and_counting_changes_nothing() -> None:
    task = sampled(5)
    placement = np.arange(len(task.tables)) % 3
    roomy = replace(task.topology, memory_cap_bytes=np.asarray(2**50))
    models = (MODEL, AnalyticalShardingModel(host_policy="lru"), counted(MODEL))
    costs = {model.estimate(placement, task.tables, roomy).total_ms for model in models}
    assert len(costs) == 1
    assert costs != {STATIC.estimate(placement, task.tables, roomy).total_ms}


@pytest.mark.parametrize("policy", ["static", "lru"])
def test_placing_table_by_table_costs_the_same_in_plain_numbers_and_in_arrays(policy: str) -> None:
    model, task = AnalyticalCostModel(host_policy=policy), sampled(7, tables=(20, 20), optimizer="adam")
    loads, cluster = model.loads(task.tables, task.topology), Cluster.stack([task.topology.cluster()])
    devices, phases = np.zeros((1, 3, loads.shape[1])), [[0.0] * 3 for _ in range(4)]
    for table, row in enumerate(loads):
        device = table % 3
        devices[0, device] = model.add(devices[0, device], row)
        shared = devices[0, :, model.shared_loads].T.tolist()
        cost = model.plain_costs(device, devices[0, device].tolist(), phases, shared, cluster)
        expected, total = model.costs(devices, cluster)
        assert np.array_equal(np.array(phases).T, expected[0])
        assert cost == total[0]


def test_the_bound_of_plans_ignores_the_cache_and_holds() -> None:
    task = sampled(3, tables=(4, 4))
    roomy = replace(task.topology, memory_cap_bytes=np.asarray(2**50))
    model = AnalyticalShardingModel(host_policy="lru")
    bound = plan_lower_bound_ms(task.tables, roomy, model)
    whole = [model.estimate(np.array(devices), task.tables, roomy).total_ms for devices in product(range(3), repeat=4)]
    in_hbm = plan_lower_bound_ms(task.tables, replace(roomy, host=None), AnalyticalShardingModel())
    assert in_hbm == pytest.approx(bound, rel=1e-6)
    assert bound <= min(whole)
