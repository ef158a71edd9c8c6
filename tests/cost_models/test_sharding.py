"""The cost of plans against the model of placements, and within its bounds; plain arithmetic: test_collectives.py."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models import AnalyticalCostModel, counted, make_sharding_cost_model
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.analytical_sharding import COMMUNICATION_BYTES, AnalyticalShardingModel
from shard_gym.cost_models.index_exchange import INDEX_EXCHANGES
from shard_gym.cost_models.inference import InferenceCostModel
from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.hardware import hardware_profile
from shard_gym.sharding import (
    SHARDING_TYPES,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.sharding.variants import variants_of
from shard_gym.tables import Tables
from shard_gym.topology import Topology

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
        cost = MODEL.estimate_plan(plan, tables, topology)
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
    loads = MODEL.variant_loads(variants, topology)
    for number, (kind, parts) in enumerate(zip(variants.sharding_types, variants.parts.tolist(), strict=True)):
        for table in np.flatnonzero(variants.legal[:, number]).tolist():
            sharding = sharding_of(rng, tables, table, kind, parts, topology)
            plan = ShardingPlan((sharding,))
            each, arrays = MODEL.each_shard(plan, tables.select([table]), topology)
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
    low, high = model.variant_bounds(variants, model.variant_loads(variants, topology), topology)
    kinds = list(zip(variants.sharding_types, variants.parts.tolist(), strict=True))
    for pair in itertools.product(*(list(itertools.compress(kinds, legal)) for legal in variants.legal)):
        for _ in range(3):
            shardings = [sharding_of(rng, tables, table, *each, topology) for table, each in enumerate(pair)]
            cost_ms = model.estimate_plan(ShardingPlan(tuple(shardings)), tables, topology).total_ms
            assert low * (1 - 1e-9) <= cost_ms <= high * (1 + 1e-9)


def test_the_costs_of_a_batch_are_those_of_each_plan_alone(random_tables: Any, random_plan: Any) -> None:
    """Also where only some of the plans have partial sums or replicas."""
    rng = np.random.default_rng(0)
    tables, topology = random_tables(rng, 3), hardware_profile("a100-dgx").topology(4, devices_per_host=2)
    plans = [random_plan(rng, tables, topology, (kind,)) for kind in SHARDING_TYPES]
    loads = np.stack([MODEL.plan_loads(plan, tables, topology) for plan in plans])
    phases, costs = MODEL.costs(loads, topology.cluster())
    for number, plan in enumerate(plans):
        alone = MODEL.estimate_plan(plan, tables, topology)
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
    loads = np.where(variants.legal[..., None], model.variant_loads(variants, topology), 0.0)
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
    assert make_sharding_cost_model("analytical").fingerprint == ANALYTICAL.fingerprint
    constants = FITTED._replace(cycles_per_row=1.0)
    made = make_sharding_cost_model(AnalyticalCostModel(constants))
    assert isinstance(made, AnalyticalShardingModel)
    assert made.constants == constants
    half = AnalyticalShardingModel("fp16")
    assert make_sharding_cost_model(half) is half
    assert len({AnalyticalShardingModel(t).fingerprint for t in COMMUNICATION_BYTES}) == 6
    with pytest.raises(UnknownNameError, match=r"'fp4'.*bf16, fp16, fp32, fp8, int8, mx4"):
        AnalyticalShardingModel("fp4")
    with pytest.raises(InvalidOptionError, match="does not estimate sharded tables"):
        make_sharding_cost_model("measured")


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
    loads = model.variant_loads(variants, topology).reshape(-1, model.num_loads_with(topology.host is not None))
    held = np.zeros((len(loads), topology.num_devices, loads.shape[1]))
    held[:, 0] = loads
    phases, costs = model.costs(held, topology.cluster())
    for each in (model, counted(model)):
        assert np.array_equal(each.single_table_phases(loads, topology), phases[:, 0])
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
    loads = MODEL.variant_loads(variants_of(tables, topology), topology)
    MODEL.single_table_costs(loads.reshape(-1, loads.shape[-1]), topology)
    assert seen
    assert max(seen) <= 4
