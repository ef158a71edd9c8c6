"""The cost of plans against the model of placements, and within its bounds; plain arithmetic: test_collectives.py."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.cost_models import (
    AnalyticalCostModel,
    AnalyticalShardingModel,
    InferenceCostModel,
    counted,
    make_cost_model,
)
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.analytical.index_exchange import INDEX_EXCHANGES
from shard_gym.cost_models.analytical.sharding import COMMUNICATION_BYTES, PARTIAL_BYTES
from shard_gym.cost_models.analytical.traffic import sent_bytes
from shard_gym.cost_models.base import loads_of_plan, loads_of_shards, loads_of_variants
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import (
    SHARDING_TYPES,
    Shard,
    ShardingPlan,
    TableSharding,
    check_plan,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.hbm_rows import split_of_plan
from shard_gym.plans.memory import training_memory
from shard_gym.plans.variants import variants_of
from shard_gym.tables import RowSteps, Tables, Workload

SEEDS = st.integers(0, 2**32 - 1)
MODEL, ANALYTICAL = AnalyticalShardingModel(), AnalyticalCostModel()


@settings(max_examples=50)
@given(seed=SEEDS)
def test_a_plan_of_whole_tables_costs_what_the_placement_costs(
    random_tables: Any, random_topology: Any, seed: int
) -> None:
    """In every bit."""
    rng = np.random.default_rng(seed)
    tables, topology = random_tables(rng, int(rng.integers(1, 12))), random_topology(rng, 12)
    placement = rng.integers(topology.num_devices, size=len(tables))
    wanted = ANALYTICAL.estimate(placement, tables, topology)
    columns = tuple(column_wise(tables, table, [device]) for table, device in enumerate(placement))
    for plan in (plan_of_placement(placement, tables), ShardingPlan(columns)):
        cost = MODEL.estimate(plan, tables, topology)
        assert cost.total_ms == wanted.total_ms
        assert np.array_equal(cost.phases_ms, wanted.phases_ms)
    cost = MODEL.estimate(placement, tables, topology)
    assert cost.total_ms == wanted.total_ms
    assert np.array_equal(cost.phases_ms, wanted.phases_ms)


@settings(max_examples=40)
@given(seed=SEEDS)
def test_parts_of_a_variant_are_the_shards_of_plans(random_tables: Any, random_topology: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables, topology = random_tables(rng, 3, dims=(16, 24, 64)), random_topology(rng, 8)
    variants = variants_of(tables, topology)
    loads = loads_of_variants(MODEL, variants, topology)
    for number, (kind, parts) in enumerate(zip(variants.sharding_types, variants.parts.tolist(), strict=True)):
        for table in np.flatnonzero(variants.legal[:, number]).tolist():
            sharding = sharding_of(rng, tables, table, kind, parts, topology)
            plan = ShardingPlan((sharding,))
            each, arrays = loads_of_shards(MODEL, plan, tables.select([table]), topology)
            assert (each == loads[table, number]).all()
            assert len(each) == parts
            size = tables.workload.weight_bytes * arrays[:, 3] * arrays[:, 5]
            assert size.max() == variants.memory[table, number]
    widths = {16: 2, 24: 1, 64: 3}
    halved = variants.legal[:, 1:4].sum(axis=1)
    assert halved.tolist() == [widths[dim] for dim in tables.embedding_dim.tolist()]


def sharding_of(
    rng: np.random.Generator, tables: Tables, table: int, kind: str, parts: int, topology: Topology
) -> TableSharding:
    """One of this type on random devices, or on a random host."""
    devices = topology.num_devices
    if kind == "table_wise":
        return table_wise(tables, table, int(rng.integers(devices)))
    if kind == "column_wise":
        return column_wise(tables, table, rng.integers(devices, size=parts).tolist())
    if kind == "table_row_wise":
        return table_row_wise(tables, table, topology, int(rng.integers(devices // parts)))
    return (row_wise if kind == "row_wise" else data_parallel)(tables, table, topology)


@pytest.mark.parametrize("pooled", [True, False])
def test_blocks_without_rows_cost_their_outputs_and_the_others_read_more(random_tables: Any, pooled: bool) -> None:
    """12 rows on 8 devices: six blocks of two rows, as on six devices, and two blocks of none."""
    drawn = replace(random_tables(np.random.default_rng(3), 1), pooled=[pooled])
    tables = replace(drawn, num_embeddings=[12], distinct_rows=np.minimum(drawn.lookups_per_batch, 12))
    eight, six = (hardware_profile("a100-dgx").topology(count) for count in (8, 6))
    blocks = row_wise(tables, 0, six)
    empty = tuple(Shard(device, 12, 0, 0, int(tables.embedding_dim[0])) for device in (6, 7))
    plan = ShardingPlan((replace(blocks, shards=blocks.shards + empty),))
    loads, _ = loads_of_shards(MODEL, plan, tables, eight)
    assert np.array_equal(loads[:6], loads_of_shards(MODEL, ShardingPlan((blocks,)), tables, six)[0])
    no_lookups = Tables.from_zipf([1], tables.embedding_dim, [0.0], 1.0, tables.workload, tables.num_features)
    alone = MODEL.loads(replace(no_lookups, pooled=[pooled]), eight, "row_wise")
    assert np.array_equal(loads[6:], np.repeat(alone, 2, axis=0))
    assert (loads[6:, PARTIAL_BYTES] == loads[0, PARTIAL_BYTES]).all()
    assert (loads[0, PARTIAL_BYTES] > 0) == pooled
    sent = sent_bytes(plan, tables, eight)
    partial = sent["reduce_scatter"]
    assert (partial == partial[0]).all()
    if not pooled:  # empty blocks send none in the forward, and get no gradients
        assert sent["all_to_all"][6:].sum() < sent["all_to_all"][:2].sum()
    estimate = MODEL.estimate(plan, tables, eight)
    assert np.array_equal(
        estimate.phases_ms, MODEL.costs(loads_of_plan(MODEL, plan, tables, eight), eight.cluster())[0]
    )
    on_six = MODEL.estimate(ShardingPlan((blocks,)), tables, six)
    assert np.array_equal(estimate.phases_ms[:6, 0], on_six.phases_ms[:, 0])
    assert (estimate.phases_ms[6:, 0] < estimate.phases_ms[0, 0]).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 31, 33, 961])
@pytest.mark.parametrize("known", [False, True])
def test_a_table_of_any_rows_is_costed_in_any_blocks(rows: int, known: bool) -> None:
    """Also where the rows that are read most are known: a block then has a part of each step of them."""
    drawn = Tables.from_zipf([rows], 16, 4.0, 1.05, Workload(1024, "fp32", "sgd"))
    steps = RowSteps.of_reads([np.arange(1, rows + 1)], [rows])
    tables = replace(drawn, popularity=steps) if known else drawn
    for count in (2, 3, 8, 32):
        size, topology = -(-rows // count), hardware_profile("a100-dgx").topology(count)
        begins = [min(size * block, rows) for block in range(count + 1)]
        shards = tuple(Shard(i, begins[i], begins[i + 1] - begins[i], 0, 16) for i in range(count))
        plan = ShardingPlan((TableSharding("row_wise", shards),))
        loads, arrays = loads_of_shards(MODEL, check_plan(plan, tables, topology), tables, topology)
        filled = arrays[:, 3] > 0
        assert filled.sum() == -(-rows // size)
        assert (loads[filled] >= loads[~filled].max(axis=0, initial=0.0)).all()
        host = replace(topology, host=hardware_profile("a100-dgx").host_memory(64))
        split = split_of_plan(plan, tables, host)
        assert (split.hbm_rows <= arrays[:, 3]).all()


def test_shards_that_are_only_read_cost_what_others_of_their_columns_do(random_tables: Any) -> None:
    """table_column_wise is column_wise; of grid_shard each column shard is a narrower table that is table_row_wise."""
    rng = np.random.default_rng(5)
    topology = hardware_profile("a100-dgx").topology(6, devices_per_host=2)
    tables = random_tables(rng, 1, dims=(48,))
    columns = column_wise(tables, 0, [4, 5, 5], [16, 16, 16])
    of_one_host = replace(columns, sharding_type="table_column_wise")
    told, read = (ShardingPlan((each,)) for each in (columns, of_one_host))
    assert_alike(tables, told, tables, read, topology)
    parts, shards, narrow = tables.select([0, 0, 0]).with_dims([16, 20, 12]), [], []
    for part, (first, host) in enumerate(zip((0, 16, 36), (2, 0, 2), strict=True)):
        blocks = table_row_wise(parts, part, topology, host)
        narrow.append(blocks)
        shards += [shard._replace(first_column=first) for shard in blocks.shards]
    grid = ShardingPlan((TableSharding("grid_shard", tuple(shards)),))
    assert_alike(parts, ShardingPlan(tuple(narrow)), tables, grid, topology)
    one_host = hardware_profile("a100-dgx").topology(2)
    halves = tuple(Shard(device, *shard[1:]) for shard, device in zip(shards, (0, 1) * 3, strict=True))
    same = [table_row_wise(parts, part, one_host, 0) for part in range(3)]
    assert_alike(
        parts, ShardingPlan(tuple(same)), tables, ShardingPlan((TableSharding("grid_shard", halves),)), one_host
    )


def assert_alike(
    tables: Tables, plan: ShardingPlan, other_tables: Tables, other: ShardingPlan, topology: Topology
) -> None:
    """Both plans cost, send and hold the same, in every bit."""
    estimate, same = MODEL.estimate(plan, tables, topology), MODEL.estimate(other, other_tables, topology)
    assert np.array_equal(estimate.phases_ms, same.phases_ms)
    assert estimate.total_ms == same.total_ms
    for name, sent in sent_bytes(plan, tables, topology).items():
        assert np.array_equal(sent, sent_bytes(other, other_tables, topology)[name])
    count = topology.num_devices
    held, same_held = training_memory(plan, tables, count), training_memory(other, other_tables, count)
    assert np.array_equal(held.of_devices, same_held.of_devices)


@settings(max_examples=30)
@given(seed=SEEDS)
def test_no_plan_is_cheaper_or_dearer_than_the_bounds(random_tables: Any, random_topology: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables, topology = random_tables(rng, 2, dims=(8, 16, 128)), random_topology(rng, 4)
    types = ("table_wise", *rng.choice(SHARDING_TYPES, 2).tolist())
    model = AnalyticalShardingModel(
        str(rng.choice(sorted(COMMUNICATION_BYTES))), index_exchange=str(rng.choice(INDEX_EXCHANGES))
    )
    variants = variants_of(tables, topology, types, max_halvings=2)
    low, high = model.bounds(loads_of_variants(model, variants, topology), topology, variants)
    kinds = list(zip(variants.sharding_types, variants.parts.tolist(), strict=True))
    for pair in itertools.product(*(list(itertools.compress(kinds, legal)) for legal in variants.legal)):
        for _ in range(3):
            shardings = [sharding_of(rng, tables, table, *each, topology) for table, each in enumerate(pair)]
            cost_ms = model.estimate(ShardingPlan(tuple(shardings)), tables, topology).total_ms
            assert low * (1 - 1e-9) <= cost_ms <= high * (1 + 1e-9)


def test_the_costs_of_a_batch_are_those_of_each_plan_alone(random_tables: Any, random_plan: Any) -> None:
    """Also where only some of the plans have partial sums or replicas."""
    rng = np.random.default_rng(0)
    tables, topology = random_tables(rng, 3), hardware_profile("a100-dgx").topology(4, devices_per_host=2)
    plans = [random_plan(rng, tables, topology, (kind,)) for kind in SHARDING_TYPES]
    loads = np.stack([loads_of_plan(MODEL, plan, tables, topology) for plan in plans])
    phases, costs = MODEL.costs(loads, topology.cluster())
    for number, plan in enumerate(plans):
        alone = MODEL.estimate(plan, tables, topology)
        assert costs[number] == alone.total_ms
        assert np.array_equal(phases[number], alone.phases_ms)


@settings(max_examples=60)
@given(seed=SEEDS)
def test_many_plans_cost_what_each_does_in_every_bit(random_tables: Any, seed: int) -> None:
    """However an array of them lies in memory, also with the fractions of bytes that sequences and codecs have."""
    rng = np.random.default_rng(seed)
    model = AnalyticalShardingModel(
        str(rng.choice(sorted(COMMUNICATION_BYTES))), index_exchange=str(rng.choice(INDEX_EXCHANGES))
    )
    size, per_host = int(rng.integers(2, 19)), int(rng.choice([1, 3, 8]))
    topology = hardware_profile("a100-dgx").topology(size, devices_per_host=per_host)
    tables = replace(random_tables(rng, 6), pooled=rng.random(6) < 0.5)
    variants = variants_of(tables, topology)
    loads = np.where(variants.legal[..., None], loads_of_variants(model, variants, topology), 0.0)
    kinds = np.array(variants.sharding_types)
    every = np.isin(kinds, ("row_wise", "table_row_wise", "data_parallel"))
    on_all = loads[:, every][:, rng.integers(every.sum())].sum(axis=0)  # what is on all devices, and one part on each
    parts = loads[:, ~every].reshape(-1, loads.shape[-1])
    held = on_all + parts[rng.integers(len(parts), size=(4, size))] * (rng.random((4, size, 1)) < 0.7)
    by_device = np.ascontiguousarray(held.swapaxes(0, 1)).swapaxes(0, 1)
    phases, costs = model.costs(by_device, topology.cluster())
    for number in range(4):
        alone, cost = model.costs(held[number], topology.cluster())
        assert np.array_equal(phases[number], alone)
        assert costs[number] == cost


def test_the_name_of_the_analytical_model_serves_plans() -> None:
    assert make_cost_model(additive=True, splits=True).fingerprint == ANALYTICAL.fingerprint
    constants = FITTED._replace(cycles_per_row=1.0)
    made = make_cost_model(AnalyticalCostModel(constants), additive=True, splits=True)
    assert isinstance(made, AnalyticalShardingModel)
    assert made.constants == constants
    half = AnalyticalShardingModel("fp16")
    assert make_cost_model(half, additive=True, splits=True) is half
    assert len({AnalyticalShardingModel(t).fingerprint for t in COMMUNICATION_BYTES}) == 6
    with pytest.raises(UnknownNameError, match=r"'fp4'.*bf16, fp16, fp32, fp8, int8, mx4"):
        AnalyticalShardingModel("fp4")
    with pytest.raises(InvalidOptionError, match="'measured' is not additive"):
        make_cost_model("measured", additive=True, splits=True)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"sharding_types": ("table_wise", "rowwise")}, UnknownNameError, r"'rowwise'\. Did you mean 'row_wise'"),
        ({"sharding_types": ("row_wise",)}, InvalidOptionError, "must contain 'table_wise'"),
        ({"sharding_types": 7}, InvalidOptionError, "list of sharding types"),
        ({"max_halvings": -1}, InvalidOptionError, "max_halvings"),
    ],
)
def test_wrong_variants_are_named(random_tables: Any, options: Any, error: type[Exception], says: str) -> None:
    tables, topology = random_tables(np.random.default_rng(0), 1), hardware_profile("a100-dgx").topology(2)
    with pytest.raises(error, match=says):
        variants_of(tables, topology, **options)


@settings(max_examples=60)
@given(seed=SEEDS)
def test_parts_alone_cost_the_same_whichever_devices_are_looked_at(
    random_tables: Any, random_topology: Any, seed: int
) -> None:
    """Fewer than all devices give the costs of all in every bit."""
    rng = np.random.default_rng(seed)
    served = bool(rng.integers(2))
    dtype = str(rng.choice(sorted(COMMUNICATION_BYTES)))
    model = InferenceCostModel(dtype) if served else AnalyticalShardingModel(dtype)
    tables, topology = random_tables(rng, int(rng.integers(1, 8))), random_topology(rng, 12)
    variants = variants_of(tables.with_training(training=not served), topology)
    loads = loads_of_variants(model, variants, topology).reshape(-1, model.num_loads_with(topology.host is not None))
    held = np.zeros((len(loads), topology.num_devices, loads.shape[1]))
    held[:, 0] = loads
    phases, costs = model.costs(held, topology.cluster())
    for each in (model, counted(model)):
        assert np.array_equal(each.single_tables(loads, topology)[0], phases[:, 0])
        assert np.array_equal(each.single_table_costs(loads, topology), costs)


def test_parts_alone_are_costed_on_a_few_of_many_devices(random_tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time and memory do not grow with tables times devices."""
    seen: list[int] = []
    fill = AnalyticalShardingModel.fill_communication

    def counting(self: AnalyticalShardingModel, phases: Any, shared: Any, cluster: Any) -> None:
        seen.append(phases.shape[-2])
        fill(self, phases, shared, cluster)

    monkeypatch.setattr(AnalyticalShardingModel, "fill_communication", counting)
    tables, topology = random_tables(np.random.default_rng(0), 5), hardware_profile("a100-dgx").topology(4096)
    loads = loads_of_variants(MODEL, variants_of(tables, topology), topology)
    MODEL.single_table_costs(loads.reshape(-1, loads.shape[-1]), topology)
    assert seen
    assert max(seen) <= 4
