"""The fast path of the network of the learned solvers, against the plain one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AdditiveCostModel, AnalyticalShardingModel
from shard_gym.cost_models.analytical.all_to_all import to_parts_of_bytes
from shard_gym.cost_models.analytical.grouped import GroupedShardingModel, sync_ms_per_byte
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES_SENT
from shard_gym.cost_models.analytical.sharding import GRADIENT_BYTES, HOST_PARTIAL_BYTES, PARTIAL_BYTES
from shard_gym.cost_models.base import loads_of_variants
from shard_gym.cost_models.neural.pooled import (
    ALL_REDUCE,
    ALL_TO_ALL,
    EXCHANGES,
    HOST_REDUCE_SCATTER,
    MIB,
    REDUCE_SCATTER,
    WORK,
    work,
)
from shard_gym.hardware import Replicas, hardware_profile
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.needs import HOST_MEMORY, SERVING
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.plans.variants import variants_of
from shard_gym.tables.workload import OPTIMIZER_STATES, WEIGHT_BYTES

ON_ALL = (ROW_WISE, DATA_PARALLEL)


@pytest.mark.parametrize("spread", [(), (ROW_WISE,), (DATA_PARALLEL,), (TABLE_ROW_WISE,), SHARDING_TYPES[2:]])
@pytest.mark.parametrize(("devices", "of_host"), [(1, 8), (5, 8), (12, 4), (10, 8)])
def test_one_more_shard_costs_what_the_plain_way_says(
    spread: tuple[str, ...], devices: int, of_host: int, untrained: Any, random_tables: Any
) -> None:
    """With tables on all devices, on a host, and on one device each; hosts may differ in size."""
    rng = np.random.default_rng(devices)
    model, tables = untrained("pooled", 1), random_tables(rng, 12)
    topology = hardware_profile("a100-dgx").topology(devices, devices_per_host=of_host)
    variants = variants_of(tables, topology)
    loads = loads_of_variants(model, variants, topology)
    held = np.zeros((devices, model.num_loads))
    for table in range(9):
        kind = spread[table % len(spread)] if spread and table % 3 else TABLE_WISE
        where = np.arange(devices) if kind in ON_ALL else rng.integers(devices, size=1)
        if kind == TABLE_ROW_WISE:
            where = np.arange(devices)[np.arange(devices) // of_host == where[0] // of_host]
        variant = variants.sharding_types.index(kind)
        held[where] = model.add(held[where], loads[table, variant])
    where = np.arange(devices)
    after = model.add(held, loads[11, 0])
    case = topology.cluster(), held, model.device_phases(held), where, after
    for fast, plain in zip(model.costs_with_one(*case), AdditiveCostModel.costs_with_one(model, *case), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-5)


def test_the_inputs_of_every_workload_are_finite_and_count_the_sectors_of_the_state(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 8, dims=(4, 12, 128))
    for dtype, optimizer in product(set(WEIGHT_BYTES) - {"fp8"}, OPTIMIZER_STATES):
        own = tables.with_training(weight_dtype=dtype, optimizer=optimizer)
        inputs = work(own, TABLE_WISE)
        assert np.isfinite(inputs).all()
        moment = np.ceil(own.embedding_dim / 8)
        sectors = {
            **{"sgd": 0, "rowwise_adagrad": 1, "adagrad": moment, "partial_rowwise_adam": 1 + moment},
            **dict.fromkeys(("adam", "lamb"), 2 * moment),
        }[optimizer]
        np.testing.assert_allclose(inputs[:, WORK.index("states")], own.distinct_rows * sectors / 1e6)


def test_blocks_of_sequences_send_rows_and_served_copies_nothing(random_tables: Any) -> None:
    """What a shard sends is that of the analytical model: the same exchange, and the same bytes."""
    tables = replace(random_tables(np.random.default_rng(0), 6), pooled=np.array([True, False] * 3))
    tables = tables.with_training(optimizer="sgd")
    topology, model = hardware_profile("a100-dgx").topology(16), AnalyticalShardingModel()
    for kind in SHARDING_TYPES:
        shards = shard_tables(tables, kind, topology)
        sent, loads = work(shards, kind)[:, -len(EXCHANGES) :] * MIB, model.loads(shards, topology, kind)
        outputs = to_parts_of_bytes(sent[:, ALL_TO_ALL])  # as the model has them
        np.testing.assert_allclose(outputs, loads[:, OUTPUT_BYTES_SENT], rtol=1e-12)
        np.testing.assert_allclose(sent[:, ALL_REDUCE], loads[:, GRADIENT_BYTES], rtol=1e-12)
        partial = loads[:, [HOST_PARTIAL_BYTES, PARTIAL_BYTES]]
        np.testing.assert_allclose(sent[:, [HOST_REDUCE_SCATTER, REDUCE_SCATTER]], partial, rtol=1e-12)
    served = shard_tables(tables.with_training(training=False), DATA_PARALLEL, topology)
    assert not work(served, DATA_PARALLEL)[:, -len(EXCHANGES) :].any()


def test_what_is_served_costs_the_forward_alone(untrained: Any, random_tables: Any) -> None:
    """Also of rows in host memory; and the fast path and the shares of a search say the same."""
    rng, network = np.random.default_rng(3), type(untrained("pooled", 1))
    model = network(network.first_weights(rng, {HOST_MEMORY}))
    hardware, tables = hardware_profile("a100-dgx"), random_tables(rng, 12)
    topology = replace(hardware.topology(4), host=hardware.host_memory(int(tables.memory_bytes.sum()) // 20))
    alone, placement = model.forward_alone(), rng.integers(4, size=12)
    both, forward = (each.estimate(placement, tables, topology).phases_ms for each in (model, alone))
    assert (both.max(axis=0) > 0).all()
    assert np.array_equal(forward[:, :2], both[:, :2])
    assert not forward[:, 2:].any()
    assert (model.exchanges, alone.exchanges) == (2, 1)
    assert SERVING in alone.supports
    held = alone.reduce(alone.loads(tables, topology), placement, 4)
    case = topology.cluster(), held, alone.device_phases(held), np.arange(4), alone.add(held, held[::-1])
    for fast, plain in zip(alone.costs_with_one(*case), AdditiveCostModel.costs_with_one(alone, *case), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-4, atol=1e-5)


def test_of_groups_the_averaging_is_added_to_what_it_learned(untrained: Any, random_tables: Any) -> None:
    rng, model = np.random.default_rng(4), untrained("pooled", 1)
    tables, placement = random_tables(rng, 9), rng.integers(4, size=9)
    alone = hardware_profile("a100-dgx").topology(4, devices_per_host=2)
    topology = replace(alone, replicas=Replicas(4, 2, 10))
    grouped = GroupedShardingModel(model)
    without, with_replicas = (
        each.estimate(placement, tables, on).phases_ms for each, on in ((model, alone), (grouped, topology))
    )
    fullest = np.bincount(placement, tables.memory_bytes, 4).max() * sync_ms_per_byte(topology)
    np.testing.assert_allclose(with_replicas[:, :2], without[:, :2], rtol=1e-5)
    np.testing.assert_allclose(with_replicas[:, 2], without[:, 2] + fullest, rtol=1e-5)
