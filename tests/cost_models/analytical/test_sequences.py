"""Sequence tables: what they cost against batches drawn row by row, with and without deduplicated ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError, InvalidPlanError, InvalidTablesError
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, make_cost_model
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES_SENT
from shard_gym.cost_models.analytical.traffic import sent_bytes
from shard_gym.cost_models.bounds import plan_lower_bound_ms
from shard_gym.cost_models.fitting.data.dataset import CostRecorder
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.planning import deduplicated
from shard_gym.plans import (
    ShardingPlan,
    check_plan,
    column_wise,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.memory import training_memory
from shard_gym.plans.variants import variants_of
from shard_gym.tables import Pool, RowSteps, Tables, Workload, load_pool
from shard_gym.tables.lookup_statistics import read_counts
from shard_gym.tables.pools import save_pool
from shard_gym.tables.tables import MAX_SEQUENCE
from shard_gym.tasks import Task, TaskSuite, load_suite, save_suite

ROWS, DIMS, POOLING, EXPONENTS = (3000, 700, 60, 2000), (16, 32, 8, 64), (5.0, 12.0, 3.0, 2.0), (1.05, 0.6, 0.0, 0.9)
BATCH, DEVICES = 2048, 8


def tables_of(pooled: Any = (False, False, False, True), **changes: Any) -> Tables:
    workload = Workload(BATCH, "fp32", "sgd")
    return replace(Tables.from_zipf(ROWS, DIMS, POOLING, EXPONENTS, workload, pooled=pooled), **changes)


def topology_of(devices: int = DEVICES, per_host: int = 4) -> Topology:
    return replace(hardware_profile("a100-dgx").topology(devices), devices_per_host=per_host)


def drawn_reads(table: int, devices: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows that the samples of each device read, of one batch."""
    weights = np.arange(1.0, ROWS[table] + 1) ** -EXPONENTS[table]
    count = int(BATCH * POOLING[table]) // devices
    rows = rng.permutation(ROWS[table])  # which rows are read often does not depend on their number
    return [rows[rng.choice(ROWS[table], count, p=weights / weights.sum())] for _ in range(devices)]


@pytest.mark.parametrize("dedup", [False, True])
def test_bytes_are_those_of_drawn_batches(dedup: bool) -> None:
    """Each owner sends a device its part of the rows that the device asks for: all reads, or every row once."""
    tables, topology = tables_of(), topology_of()
    planned = deduplicated(tables, DEVICES) if dedup else tables
    plan = ShardingPlan(
        (
            row_wise(tables, 0, topology),
            column_wise(tables, 1, [6, 1], [24, 8]),
            table_wise(tables, 2, 3),
            data_parallel(tables, 3, topology),
        )
    )
    rng, wanted, draws = np.random.default_rng(0), np.zeros((DEVICES, 2)), 80
    for _ in range(draws):
        sent: Counter[tuple[int, int]] = Counter()
        for table, sharding in enumerate(plan.tables[:3]):
            for device, reads in enumerate(drawn_reads(table, DEVICES, rng)):
                asked = np.unique(reads) if dedup else reads
                for shard in sharding.shards:
                    inside = (asked >= shard.first_row) & (asked < shard.first_row + shard.num_rows)
                    sent[shard.device, device] += int(inside.sum()) * shard.num_columns * 4
        for (source, target), size in sent.items():
            across = source // 4 != target // 4
            if source != target:
                wanted[source, int(across)] += size / draws  # in the forward
                wanted[target, int(across)] += size / draws  # of gradients, in the backward
    found = sent_bytes(plan, planned, topology)
    np.testing.assert_allclose(found["all_to_all"], wanted, rtol=0.03)
    assert not found["reduce_scatter"].any()
    assert not found["host_reduce_scatter"].any()


@pytest.mark.parametrize("devices", [1, 3, 8, 40])
def test_deduplicated_statistics_are_those_of_drawn_batches(devices: int) -> None:
    tables = tables_of()
    fewer, rng = deduplicated(tables, devices), np.random.default_rng(1)
    for table in range(3):
        lookups, distinct, bins = 0.0, 0.0, np.zeros((2, 17))
        for _ in range(10):
            asked = np.concatenate([np.unique(reads) for reads in drawn_reads(table, devices, rng)])
            lookups, distinct = lookups + len(asked) / 10, distinct + len(np.unique(asked)) / 10
            bins += read_counts(asked) / 10
        assert fewer.lookups_per_batch[table] == pytest.approx(lookups, rel=0.01)
        assert fewer.distinct_rows[table] == pytest.approx(distinct, rel=0.01)
        np.testing.assert_allclose(fewer.reuse_histogram[table], bins[0] / bins[0].sum(), atol=0.015)
        np.testing.assert_allclose(fewer.access_histogram[table], bins[1] / bins[1].sum(), atol=0.015)
    assert (fewer.lookups_per_batch[:3] < tables.lookups_per_batch[:3]).all()
    for name in ("pooling_factor", "distinct_rows", "reuse_histogram"):  # the pooled table stays as it is
        assert (getattr(fewer, name)[3] == getattr(tables, name)[3]).all()


def test_one_device_asks_for_every_row_once() -> None:
    once = deduplicated(tables_of(), 1)
    np.testing.assert_allclose(once.lookups_per_batch[:3], once.distinct_rows[:3], rtol=1e-6)
    assert deduplicated(tables_of(pooled=True), 4).pooling_factor.tolist() == list(POOLING)
    with pytest.raises(InvalidOptionError, match="num_devices"):
        deduplicated(tables_of(), 0)


def test_the_popularity_of_deduplicated_tables_gives_their_statistics() -> None:
    fewer = deduplicated(tables_of(), 8)
    assert isinstance(fewer.popularity, RowSteps)
    share, count = fewer.popularity.steps(fewer.num_embeddings.astype(float))
    asked = (share * count).sum(axis=1) * fewer.lookups_per_batch
    np.testing.assert_allclose(asked, fewer.lookups_per_batch, rtol=1e-6)
    assert (deduplicated(replace(tables_of(), popularity=None), 8)).popularity is None


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 10_000),
    dim=st.sampled_from([4, 16, 128, 200]),
    batch=st.integers(1, 5000),
    exponent=st.floats(0, 2),
)
def test_a_sequence_of_one_lookup_costs_what_a_bag_of_one_costs(
    rows: int, dim: int, batch: int, exponent: float
) -> None:
    bag = Tables.from_zipf([rows], dim, 1.0, exponent, Workload(batch, "fp32", "rowwise_adagrad"))
    sequence, topology = replace(bag, pooled=np.zeros(1, bool)), topology_of()
    loads = [AnalyticalShardingModel().loads(each, topology) for each in (bag, sequence)]
    assert (loads[0] == loads[1]).all()
    plan = ShardingPlan((table_wise(bag, 0, 2),))
    memory = [training_memory(plan, each, DEVICES).of_shards for each in (bag, sequence)]
    assert (memory[0] == memory[1]).all()


@settings(max_examples=30, deadline=None)
@given(pooling=st.floats(0.01, 50), device=st.integers(0, DEVICES - 1))
def test_outputs_and_buffers_follow_from_the_lookups(pooling: float, device: int) -> None:
    tables, topology = tables_of(pooled=False), topology_of()
    tables = replace(tables, **Tables.from_zipf(ROWS, DIMS, pooling, 1.0, tables.workload, pooled=False).__dict__)
    lookups = max(BATCH * pooling, 1.0)
    loads = AnalyticalCostModel().loads(tables, topology)
    np.testing.assert_allclose(loads[:, OUTPUT_BYTES_SENT], 4 * np.array(DIMS) * lookups, atol=1 / 1024)
    plan = ShardingPlan(tuple(table_wise(tables, table, device) for table in range(4)))
    found = training_memory(plan, tables, DEVICES).of_shards[:, 2]
    np.testing.assert_allclose(found, 4 * np.array(DIMS) * BATCH * pooling, rtol=1e-6, atol=1)


def test_the_rows_of_all_blocks_have_the_bytes_of_the_table() -> None:
    tables, topology = tables_of(), topology_of()
    model = AnalyticalShardingModel()
    whole, blocks = (
        model.loads(
            tables if kind == "table_wise" else variants_of(tables, topology, ("table_wise", kind)).tables[1],
            topology,
            kind,
        )
        for kind in ("table_wise", "row_wise")
    )
    np.testing.assert_allclose(blocks[:3, OUTPUT_BYTES_SENT] * DEVICES, whole[:3, OUTPUT_BYTES_SENT])
    assert blocks[3, OUTPUT_BYTES_SENT] == 0  # those of a pooled table are added up by a reduce-scatter


def test_table_row_wise_is_for_pooled_tables() -> None:
    tables, topology = tables_of(), topology_of()
    variants = variants_of(tables, topology)
    assert variants.legal[:, variants.sharding_types.index("table_row_wise")].tolist() == [False, False, False, True]
    others = [table_wise(tables, table, 0) for table in (1, 2)]
    plan = ShardingPlan((table_wise(tables, 0, 0), *others, table_row_wise(tables, 3, topology, 0)))
    assert check_plan(plan, tables, topology) is plan
    plan = ShardingPlan((table_row_wise(tables, 0, topology, 0), *others, table_wise(tables, 3, 0)))
    with pytest.raises(
        InvalidPlanError, match=r"Table 0 \(table_0\) is a sequence table, which TorchRec does not split"
    ):
        check_plan(plan, tables, topology)


@pytest.mark.parametrize("seed", range(3))
def test_plan_search_is_not_above_plans_in_rows_and_bounds_hold(seed: int) -> None:
    """Rows of all sequences on all devices is the plan that single moves do not find."""
    rng = np.random.default_rng(seed)
    pool = load_pool("dlrm-2021").tables
    tables = pool.select(rng.choice(len(pool), 12, replace=False)).with_dims(rng.choice([16, 64], 12))
    tables = replace(tables, pooled=rng.random(12) < 0.5)
    topology = topology_of()
    task, model = Task("t", tables, topology, splittable=True), AnalyticalShardingModel()
    found = make_agent("plan-search", cost_model=model, max_queries=20_000).plan(task)
    cost = model.estimate(found, tables, topology).total_ms
    in_rows = ShardingPlan(
        tuple(
            table_wise(tables, table, table % DEVICES) if tables.pooled[table] else row_wise(tables, table, topology)
            for table in range(12)
        )
    )
    assert plan_lower_bound_ms(tables, topology, model) <= cost <= model.estimate(in_rows, tables, topology).total_ms


def test_models_that_do_not_know_sequences_refuse_them() -> None:
    tables, topology = tables_of(pooled=(True, False, True, True)), topology_of()
    with pytest.raises(InvalidOptionError, match=r"'measured' does not support sequence tables.*such as 'table_1'"):
        make_cost_model("measured").estimate(np.zeros(4, int), tables, topology)
    for name in ("analytical", "analytical-lru"):
        assert make_cost_model(name).estimate(np.zeros(4, int), tables, topology).total_ms > 0


def test_files_keep_which_tables_are_sequences(tmp_path: Path) -> None:
    tables, topology = tables_of(), topology_of()
    pool = Pool("mine", tables, load_pool("dlrm-2021").card)
    save_pool(pool, tmp_path / "pool.json")
    assert load_pool(tmp_path / "pool.json").tables.pooled.tolist() == [False, False, False, True]
    save_suite(tmp_path / "suite.json", TaskSuite("mine", (Task("t", tables, topology),), "test"))
    assert load_suite(tmp_path / "suite.json")[0].tables.pooled.tolist() == [False, False, False, True]
    recorder = CostRecorder("here")
    recorder.add(tables, topology, np.zeros(4, int), AnalyticalCostModel().estimate(np.zeros(4, int), tables, topology))
    again = CostRecorder("here")
    again.restore(recorder.to_arrays())
    assert again.dataset().tables.pooled.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ([True], "pooled must be a truth value for each of 4 tables"),
        ([1, 0, 1, 1], "pooled must be a truth value for each of 4 tables"),
        ("yes", "pooled must be a truth value for each of 4 tables"),
    ],
)
def test_what_is_no_truth_value_is_refused(given_: Any, says: str) -> None:
    with pytest.raises(InvalidTablesError, match=says):
        tables_of(pooled=given_)


def test_sequences_that_are_too_long_are_refused() -> None:
    with pytest.raises(InvalidTablesError, match="is a sequence table with 16385 lookups of a sample; the limit is"):
        Tables.from_zipf([10], 4, MAX_SEQUENCE + 1, 1.0, Workload(1, "fp32", "sgd"), pooled=False)
