"""Explanations of plans: every gain is the difference of two costs of whole plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.errors import InvalidPlanError, MemoryExceededError
from shard_gym.explain import Explanation, explain
from shard_gym.hardware import hardware_profile
from shard_gym.sharding import Shard, ShardingPlan, TableSharding, check_plan, plan_of_placement, row_wise, table_wise
from shard_gym.tables import Tables
from shard_gym.tasks import Task
from shard_gym.topology import Topology

MODEL = make_sharding_cost_model()


def told_of(plan: ShardingPlan, tables: Tables, topology: Topology, model: Any) -> Explanation:
    return explain(Task("plan", tables, topology, splittable=True), plan, model)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1))
def test_gains_are_differences_of_costs(random_tables: Any, random_plan: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 4)
    topology = hardware_profile("a100-dgx").topology(
        3, devices_per_host=2, memory_cap_bytes=int(tables.memory_bytes.sum() + rng.integers(1, 2**24))
    )
    plan = random_plan(rng, tables, topology)
    told = told_of(plan, tables, topology, MODEL)
    assert told.total_ms == MODEL.estimate_plan(plan, tables, topology).total_ms
    assert np.array_equal(told.phases_ms, MODEL.estimate_plan(plan, tables, topology).phases_ms)
    loads = MODEL.plan_loads(plan, tables, topology)
    for name, sent in MODEL.sent_bytes(loads, topology.cluster()).items():
        assert np.array_equal(told.sent_bytes[name], sent)
    assert sorted(split.table for split in told.splits) == plan.split_tables
    gains = [split.gain_ms for split in told.splits if split.gain_ms is not None]
    assert gains == sorted(gains, reverse=True)
    for split in told.splits:
        wholes = {}
        for device in range(3):
            shardings = [*plan.tables]
            shardings[split.table] = table_wise(tables, split.table, device)
            try:
                check_plan(ShardingPlan(tuple(shardings)), tables, topology)
            except MemoryExceededError:
                continue
            wholes[device] = MODEL.estimate_plan(ShardingPlan(tuple(shardings)), tables, topology).total_ms
        if not wholes:
            assert (split.gain_ms, split.device) == (None, None)
        else:
            assert split.gain_ms == pytest.approx(min(wholes.values()) - told.total_ms, abs=1e-9)
            assert split.device is not None
            assert wholes[split.device] == pytest.approx(min(wholes.values()))
    for move in told.moves:
        table, device = told.shards[move.shard, :2].tolist()
        assert device == move.source
        assert plan.tables[table].sharding_type in ("table_wise", "column_wise")
        first = int(np.flatnonzero(told.shards[:, 0] == table)[0])
        shards = list(plan.tables[table].shards)
        shards[move.shard - first] = shards[move.shard - first]._replace(device=move.target)
        shardings = [*plan.tables]
        shardings[table] = replace(plan.tables[table], shards=tuple(shards))
        moved = check_plan(ShardingPlan(tuple(shardings)), tables, topology)
        after = MODEL.estimate_plan(moved, tables, topology).total_ms
        assert move.gain_ms == pytest.approx(told.total_ms - after, abs=1e-9)


def test_a_table_that_fits_no_device_has_no_gain_from_its_split(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 1, dims=(64,))
    cap = int(tables.memory_bytes[0]) // 2 + 2**20
    topology = hardware_profile("a100-dgx").topology(2, memory_cap_bytes=cap)
    told = told_of(ShardingPlan((row_wise(tables, 0, topology),)), tables, topology, MODEL)
    assert [(split.gain_ms, split.device) for split in told.splits] == [(None, None)]
    assert told.moves == ()
    assert told.memory_used.sum() == tables.memory_bytes[0]
    assert told.shards_per_device.tolist() == [1, 1]
    assert told.shards_on(1).tolist() == [1]


def test_only_valid_plans_are_explained(random_tables: Any) -> None:
    tables, topology = random_tables(np.random.default_rng(0), 2), hardware_profile("a100-dgx").topology(2)
    plan = plan_of_placement([0, 1], tables)
    assert told_of(plan, tables, topology, MODEL).splits == ()
    wrong = ShardingPlan((plan.tables[0], TableSharding("table_wise", (Shard(0, 0, 1, 0, 4),))))
    with pytest.raises(InvalidPlanError, match=r"Table 1 \(table_1\) is table_wise"):
        told_of(wrong, tables, topology, MODEL)
