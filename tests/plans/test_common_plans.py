"""The quick check of plans against the one that words what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidPlanError
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import SHARDING_TYPES, Shard, ShardingPlan, TableSharding, column_wise, data_parallel, table_wise
from shard_gym.plans.check import _check_cells
from shard_gym.plans.common_plans import is_common_valid_plan
from shard_gym.plans.plan import (
    PLAN_TYPES,
    ROW_WISE,
    TABLE_COLUMN_WISE,
    TABLE_ROW_WISE,
    devices_of_hosts,
    rows_per_block,
)
from shard_gym.tables import Tables, Workload

TABLES = Tables.from_zipf(
    [1000, 5000, 64, 10**6, 200, 9],
    [100, 124, 12, 36, 64, 8],
    [3.0, 5, 1, 10, 2, 1],
    1.05,
    Workload(batch_size=1024),
    pooled=[True, True, False, True, True, True],
)


def on(num_devices: int, devices_per_host: int) -> Topology:
    return hardware_profile("a100-dgx").topology(num_devices, devices_per_host=devices_per_host)


def blocks(table: int, devices: range) -> tuple[Shard, ...]:
    """One on each device; the last may be empty."""
    rows, dim = int(TABLES.num_embeddings[table]), int(TABLES.embedding_dim[table])
    size = rows_per_block(rows, len(devices))
    firsts = [min(number * size, rows) for number in range(len(devices))]
    return tuple(
        Shard(device, first, min(size, rows - first), 0, dim) for device, first in zip(devices, firsts, strict=True)
    )


def drawn_sharding(rng: np.random.Generator, table: int, topology: Topology) -> TableSharding:
    """Of any type that the table may have."""
    of_host = devices_of_hosts(topology)
    kind = rng.integers(6)
    if kind == 0:
        return TableSharding(ROW_WISE, blocks(table, range(topology.num_devices)))
    if kind == 1 and of_host and TABLES.pooled[table]:
        first = of_host * int(rng.integers(topology.num_devices // of_host))
        return TableSharding(TABLE_ROW_WISE, blocks(table, range(first, first + of_host)))
    if kind == 2:
        return data_parallel(TABLES, table, topology)
    if kind in (3, 4):
        quarters = int(TABLES.embedding_dim[table]) // 4
        cuts = np.sort(rng.choice(np.arange(1, quarters), int(rng.integers(0, min(4, quarters))), replace=False))
        widths = 4 * np.diff([0, *cuts.tolist(), quarters])
        devices = rng.integers(topology.num_devices, size=len(widths)).tolist()
        sharding = column_wise(TABLES, table, devices, widths.tolist())
        shuffled = tuple(sharding.shards[each] for each in rng.permutation(len(widths)))
        return TableSharding(TABLE_COLUMN_WISE if kind == 4 else sharding.sharding_type, shuffled)
    return table_wise(TABLES, table, int(rng.integers(topology.num_devices)))


def with_a_fault(rng: np.random.Generator, plan: ShardingPlan) -> ShardingPlan:
    """One number, shard or type is another, which may still be right."""
    shardings = list(plan.tables)
    table = int(rng.integers(len(shardings)))
    kind, shards = shardings[table].sharding_type, list(shardings[table].shards)
    at, what = int(rng.integers(len(shards))), int(rng.integers(8))
    if what < 5:
        number = shards[at][what]
        others = [0, number - 4, number - 1, number + 1, number + 4, -1, 2**62, 2**70]
        shards[at] = shards[at]._replace(**{shards[at]._fields[what]: int(rng.choice(np.array(others, object)))})
    elif what == 5:
        del shards[at]
    elif what == 6:
        shards.append(shards[at])
    else:
        kind = str(rng.choice([*PLAN_TYPES, "whole"]))
    shardings[table] = TableSharding(kind, tuple(shards))
    return replace(plan, tables=tuple(shardings))


def is_right(plan: ShardingPlan, topology: Topology, sharding_types: tuple[str, ...]) -> bool:
    try:
        _check_cells(plan, TABLES, topology, sharding_types, True)
    except InvalidPlanError:
        return False
    return True


@pytest.mark.parametrize("devices", [(1, 8), (4, 2), (6, 4), (8, 8), (9, 3)])
def test_valid_plans_are_common_and_no_wrong_plan_is(devices: tuple[int, int]) -> None:
    topology = on(*devices)
    rng, wrong = np.random.default_rng(topology.num_devices), 0
    for _ in range(150):
        plan = ShardingPlan(tuple(drawn_sharding(rng, table, topology) for table in range(len(TABLES))))
        assert is_right(plan, topology, PLAN_TYPES)
        assert is_common_valid_plan(plan, TABLES, topology, PLAN_TYPES)
        only = is_right(plan, topology, SHARDING_TYPES)
        assert is_common_valid_plan(plan, TABLES, topology, SHARDING_TYPES) == only
        for _ in range(4):
            other = with_a_fault(rng, plan)
            right = is_right(other, topology, PLAN_TYPES)
            found = is_common_valid_plan(other, TABLES, topology, PLAN_TYPES)
            assert found == right or (right and any(each.sharding_type == "grid_shard" for each in other.tables))
            wrong += not right
    assert wrong > 300


@pytest.mark.parametrize("kind", [["table_wise"], None, 3])
def test_a_sharding_type_of_another_kind_is_left_to_the_other_check(kind: Any) -> None:
    topology = on(4, 4)
    shardings = [table_wise(TABLES, table, 0) for table in range(len(TABLES))]
    shardings[2] = TableSharding(kind, shardings[2].shards)
    assert not is_common_valid_plan(ShardingPlan(tuple(shardings)), TABLES, topology, PLAN_TYPES)
