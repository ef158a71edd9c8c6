"""The fast path of the network of the learned solvers, against the plain one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.cost_models.neural.pooled import WORK, work
from shard_gym.hardware import hardware_profile
from shard_gym.sharding.plan import DATA_PARALLEL, ROW_WISE, SHARDING_TYPES, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.sharding.variants import variants_of
from shard_gym.workload import OPTIMIZER_STATES, WEIGHT_BYTES

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
    loads = model.variant_loads(variants, topology)
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
    for dtype, optimizer in product(WEIGHT_BYTES, OPTIMIZER_STATES):
        own = tables.with_training(weight_dtype=dtype, optimizer=optimizer)
        inputs = work(own, TABLE_WISE)
        assert np.isfinite(inputs).all()
        sectors = {"sgd": 0, "rowwise_adagrad": 1, "adam": 2 * np.ceil(own.embedding_dim / 8)}[optimizer]
        np.testing.assert_allclose(inputs[:, WORK.index("states")], own.distinct_rows * sectors / 1e6)
