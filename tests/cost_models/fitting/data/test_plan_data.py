"""Measured plans as data: drawn at random, recorded, written, and estimated as the plans they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.cost_models import AnalyticalShardingModel, CostEstimate
from shard_gym.cost_models.base import loads_of_plan
from shard_gym.cost_models.fitting import CostDataset, PlacementSampler, collect, load_measurements
from shard_gym.cost_models.fitting.data.dataset import CostRecorder
from shard_gym.cost_models.fitting.data.designed import EXCHANGES, WIDTHS, DesignedSampler
from shard_gym.cost_models.fitting.data.folder import read_index
from shard_gym.cost_models.fitting.metrics import estimates_of
from shard_gym.cost_models.fitting.training import Samples, as_arrays, trainable, with_normalization
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.plans import check_plan
from shard_gym.plans.placement import check_placement
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE
from shard_gym.tables import Workload

WORKLOAD = Workload(512, "fp32", "sgd")
SAMPLER = PlacementSampler(WORKLOAD, "cpu", 4, 2**31, plan_share=0.5, tables_per_device=5)


def recorded(count: int = 40) -> tuple[CostDataset, list[CostEstimate]]:
    """The placements and plans of a sampler, costed."""
    model, recorder, costs = AnalyticalShardingModel(), CostRecorder("made up"), []
    for number in range(count):
        sampled = SAMPLER.sample(number)
        tables, topology, plan = sampled.tables, sampled.topology, sampled.plan
        if plan is None:
            costs.append(model.estimate(sampled.placement, tables, topology))
            recorder.add(tables, topology, sampled.placement, costs[-1])
        else:
            costs.append(model.estimate(plan, tables, topology))
            recorder.add_plan(tables, topology, plan, costs[-1])
    return recorder.dataset(), costs


def test_a_sampler_with_plans_draws_valid_ones_of_all_types() -> None:
    samples = [SAMPLER.sample(number) for number in range(80)]
    plans = [each for each in samples if each.plan is not None]
    assert 25 < len(plans) < 55
    types = set()
    for each in plans:
        assert each.plan is not None
        check_plan(each.plan, each.tables, each.topology)
        types |= {sharding.sharding_type for sharding in each.plan.tables}
    assert {COLUMN_WISE, ROW_WISE, DATA_PARALLEL} <= types
    assert SAMPLER.sample(7).plan == SAMPLER.sample(7).plan


def test_placements_do_not_depend_on_whether_plans_are_asked_for() -> None:
    """And collections of placements are described as before, so they continue."""
    without = replace(SAMPLER, plan_share=0.0)
    for number in range(20):
        np.testing.assert_array_equal(without.sample(number).placement, SAMPLER.sample(number).placement)
    assert "plan_share" not in without.to_json()
    assert SAMPLER.to_json()["plan_share"] == 0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [({"plan_share": 1.5}, "a share, from 0 to 1"), ({"num_devices": 3}, "3 devices do not divide a batch of 512")],
)
def test_impossible_samplers_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        replace(SAMPLER, **change)


def test_recorded_plans_cost_what_the_plans_do() -> None:
    data, costs = recorded()
    found = estimates_of(AnalyticalShardingModel(), data)
    assert found.cost_ms == pytest.approx([cost.total_ms for cost in costs])
    for own, cost in zip(found.phases_ms, costs, strict=True):
        np.testing.assert_allclose(own, cost.phases_ms)
    assert data.has_plans
    planned = [SAMPLER.sample(number).plan for number in range(40)]
    assert data.planned.tolist() == [plan is not None and bool(plan.split_tables) for plan in planned]
    assert not data.take(np.flatnonzero(~data.planned)).has_plans
    some = data.take([3, 1, 30])
    expected = [costs[number].total_ms for number in (3, 1, 30)]
    assert estimates_of(AnalyticalShardingModel(), some).cost_ms == pytest.approx(expected)


def test_a_network_is_trained_on_the_shards_that_it_estimates() -> None:
    """The tensors of training have the loads of the cost model."""
    data, _ = recorded()
    samples = Samples(data, PooledCostModel)
    first = trainable(PooledCostModel.first_weights(np.random.default_rng(0)))
    weights = with_normalization(samples, as_arrays(first))
    model = PooledCostModel(weights)
    tensors = trainable(weights)
    loads = samples.loads(samples.latents(tensors), np.arange(len(data))).detach().numpy()
    for p in (0, 5, 17):
        sampled = SAMPLER.sample(p)
        topology = sampled.topology
        if sampled.plan is not None:
            own = loads_of_plan(model, sampled.plan, sampled.tables, topology)
        else:
            table_loads = model.loads(sampled.tables, topology)
            own = model.reduce(table_loads, sampled.placement, topology.num_devices)
        own = own.copy()
        own[:, model.alone] = loads[p][:, model.alone]  # training has a 1 for each shard in its place
        np.testing.assert_allclose(loads[p], own, rtol=1e-3, atol=1e-3)


def test_plans_survive_arrays_and_files(tmp_path: Path) -> None:
    data, _ = recorded()
    arrays = data.to_arrays()
    again = CostDataset.from_arrays(arrays)
    assert again.kinds.tolist() == data.kinds.tolist()
    with pytest.raises(DamagedFileError, match="sharding types"):
        CostDataset.from_arrays({**arrays, "kinds": arrays["kinds"] + 9})
    collect(AnalyticalShardingModel, tmp_path, SAMPLER, count=30)
    read = load_measurements(tmp_path)
    assert read_index(tmp_path).has_plans
    assert read.costs.data.has_plans
    assert estimates_of(AnalyticalShardingModel(), read.costs.data).cost_ms == pytest.approx(read.costs.data.cost_ms)
    with pytest.raises(InvalidOptionError, match="plan_share"):
        collect(AnalyticalShardingModel, tmp_path, replace(SAMPLER, plan_share=0.0), count=31)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_designed_loads_have_one_kind_of_work_each(kind: str) -> None:
    sampler = DesignedSampler(WORKLOAD, "cpu", 4, kind)
    amounts = []
    for number in range(len(sampler)):
        sampled = sampler.sample(number)
        check_placement(sampled.placement, sampled.tables, replace_caps(sampled.topology))
        assert sampled.split == "train"
        assert np.unique(sampled.tables.embedding_dim[sampled.placement == 0]).size == 1
        amounts.append(sampled.tables.lookups_per_batch / sampled.tables.outputs_per_batch)
    assert {1, 8, 40} <= set(np.concatenate(amounts).round().tolist())
    assert sampler.sample(0).placement.tolist() == sampler.sample(0).placement.tolist()


def replace_caps(topology: Any) -> Any:
    return replace(topology, memory_cap_bytes=np.full(topology.num_devices, 2**50))


def test_designed_exchanges_have_each_collective_in_each_size() -> None:
    sampler = DesignedSampler(WORKLOAD, "cpu", 2, "cpu", exchange=True)
    assert len(sampler) == len(WIDTHS) * len(EXCHANGES)
    model, sent = AnalyticalShardingModel(), []
    for number in range(len(sampler)):
        sampled = sampler.sample(number)
        plan = sampled.plan
        if plan is None:
            sent.append(model.estimate(sampled.placement, sampled.tables, sampled.topology).phases_ms[:, 1:3].max())
        else:
            check_plan(plan, sampled.tables, sampled.topology)
            sent.append(model.estimate(plan, sampled.tables, sampled.topology).phases_ms[:, 1:3].max())
    by_kind = np.array(sent).reshape(len(WIDTHS), len(EXCHANGES))
    assert (np.diff(by_kind, axis=0) > 0).all()
