"""`add` and `remove`: what was added and taken off again leaves no trace, in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models import AnalyticalCostModel, make_sharding_cost_model
from shard_gym.envs.core.devices import DeviceState, add, remove, update_costs
from shard_gym.envs.core.problem import by_device
from shard_gym.hardware import hardware_profile
from shard_gym.topology import Cluster

NUM_ENVS, NUM_DEVICES = 3, 4


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_removed_was_never_there(random_tables: Any, sharded: bool, seed: int) -> None:
    """Tables are added to random devices of three environments; some of the last are removed, maxima included."""
    rng = np.random.default_rng(seed)
    model = make_sharding_cost_model() if sharded else AnalyticalCostModel()
    tables, topology = random_tables(rng, 7), hardware_profile("a100-dgx").topology(NUM_DEVICES, devices_per_host=2)
    loads, memory = model.table_loads(tables, topology), tables.memory_bytes
    cluster = Cluster.stack([topology.cluster()] * NUM_ENVS)
    devices = rng.integers(NUM_DEVICES, size=(7, NUM_ENVS))

    def state_of(count: int) -> DeviceState:
        state = DeviceState(
            device_loads=by_device(NUM_ENVS, NUM_DEVICES, model.num_loads),
            memory_used=by_device(NUM_ENVS, NUM_DEVICES, dtype=np.int64),
            phases_ms=by_device(NUM_ENVS, NUM_DEVICES, 4),
            cost_ms=np.zeros(NUM_ENVS),
        )
        for table in range(count):
            rows = devices[table] * NUM_ENVS + np.arange(NUM_ENVS)
            add(state, rows, np.repeat(loads[[table]], NUM_ENVS, axis=0), np.repeat(memory[table], NUM_ENVS), model)
            update_costs(state, cluster, model)
        return state

    kept = int(rng.integers(7))
    state, wanted = state_of(7), state_of(kept)
    gone = [(table, env) for table in range(kept, 7) for env in range(NUM_ENVS)]
    rows = np.array(sorted({int(devices[table, env]) * NUM_ENVS + env for table, env in gone}), np.int64)
    freed = np.zeros(len(rows), np.int64)
    for table, env in gone:
        freed[np.searchsorted(rows, devices[table, env] * NUM_ENVS + env)] += memory[table]
    stays = [
        (table, position)
        for position, row in enumerate(rows.tolist())
        for table in range(kept)
        if devices[table, row % NUM_ENVS] == row // NUM_ENVS
    ]
    tables_on, on = np.array(stays, np.int64).reshape(-1, 2).T
    remove(state, rows, freed, loads[tables_on], on, model)
    update_costs(state, cluster, model)
    for name in ("device_loads", "memory_used", "phases_ms", "cost_ms"):
        assert getattr(state, name).tobytes() == getattr(wanted, name).tobytes(), name
