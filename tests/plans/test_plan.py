"""Plans and their check: valid exactly if every cell is where the sharding type wants it, and memory to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError, InvalidPlanError, MemoryExceededError
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import (
    Shard,
    ShardingPlan,
    TableSharding,
    check_answer,
    check_plan,
    column_wise,
    data_parallel,
    plan_memory_used,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.plan import PLAN_TYPES, READ_TYPES
from shard_gym.plans.text import brief_sharding, describe_sharding
from shard_gym.tables import Tables

SEEDS = st.integers(0, 2**32 - 1)
BLOCKS = ("row_wise", "table_row_wise", "grid_shard")


def devices(count: int, per_host: int = 8, caps: Any = None) -> Topology:
    return hardware_profile("a100-dgx").topology(count, devices_per_host=per_host, memory_cap_bytes=caps)


def few_rows(tables: Tables, rows: Any) -> Tables:
    """The same tables with so many rows, each read as often as there are lookups for."""
    rows = np.broadcast_to(rows, len(tables))
    return replace(tables, num_embeddings=rows, distinct_rows=np.minimum(rows, tables.lookups_per_batch) * 0.5)


def is_valid(sharding: TableSharding, rows: int, dim: int, topology: Topology) -> bool:
    """The definition, cell by cell: who has it, and is that what the sharding type says?"""
    count, per_host = topology.num_devices, min(topology.devices_per_host, topology.num_devices)
    held: dict[tuple[int, int], Counter[int]] = {(r, c): Counter() for r in range(rows) for c in range(dim)}
    for shard in sharding.shards:
        for r in range(shard.first_row, shard.first_row + shard.num_rows):
            for c in range(shard.first_column, shard.first_column + shard.num_columns):
                if (r, c) not in held:
                    return False
                held[r, c][shard.device] += 1
    if any(max(owners.values(), default=0) != 1 for owners in held.values()):
        return False
    on = {cell: set(owners) for cell, owners in held.items()}
    kind = sharding.sharding_type
    if any(shard.num_rows == 0 for shard in sharding.shards) and kind not in BLOCKS:
        return False
    if kind == "data_parallel":
        return len(sharding.shards) == count and all(owners == set(range(count)) for owners in on.values())
    if any(len(owners) != 1 for owners in on.values()):
        return False
    if kind == "table_wise":
        return len(sharding.shards) == 1
    if kind in ("column_wise", "table_column_wise"):
        return all(s.num_columns % 4 == 0 and s.num_rows == rows for s in sharding.shards)
    if kind == "grid_shard":  # each of its column shards is what table_row_wise is of a table of these columns
        columns = {shard[3:] for shard in sharding.shards}
        parts = [tuple(s._replace(first_column=0) for s in sharding.shards if s[3:] == each) for each in columns]
        return sum(width for _, width in columns) == dim and all(
            width % 4 == 0 and is_valid(TableSharding("table_row_wise", shards), rows, width, topology)
            for (_, width), shards in zip(columns, parts, strict=True)
        )
    blocks = count if kind == "row_wise" else per_host
    first = 0 if kind == "row_wise" else min(s.device for s in sharding.shards) // per_host * per_host
    if kind == "table_row_wise" and count % per_host:
        return False
    size = int(np.ceil(rows / blocks))
    return (
        len(sharding.shards) == blocks
        and {s.device for s in sharding.shards} == set(range(first, first + blocks))
        and all(owner == first + r // size for (r, _), owners in on.items() for owner in owners)
        # Empty ones, which have no cells, stand where TorchRec says they are, and have all columns.
        and all(s.num_rows or s[1:] == (rows, 0, 0, dim) for s in sharding.shards)
    )


def as_read(rng: np.random.Generator, tables: Tables, topology: Topology) -> TableSharding:
    """A sharding of the first table that only plans that are read may have, or one with blocks without rows."""
    rows, dim = int(tables.num_embeddings[0]), int(tables.embedding_dim[0])
    size = min(topology.devices_per_host, topology.num_devices)
    hosts = topology.num_devices // size
    kind = str(rng.choice(["row_wise", *([*READ_TYPES, "table_row_wise"] if topology.num_devices % size == 0 else [])]))
    cuts = (
        [0, *(4 * np.flatnonzero(rng.random(dim // 4 - 1) < 0.5) + 4).tolist(), dim] if kind in READ_TYPES else [0, dim]
    )
    shards = []
    for first, end in pairwise(cuts):
        host = int(rng.integers(hosts))
        if kind == "table_column_wise":
            shards.append(Shard(int(rng.integers(topology.num_devices)), 0, rows, first, end - first))
            continue
        blocks = topology.num_devices if kind == "row_wise" else size
        for block in range(blocks):
            begin, after = (min(each * -(-rows // blocks), rows) for each in (block, block + 1))
            device = block if kind == "row_wise" else host * size + block
            shards.append(Shard(device, begin, after - begin, first, end - first))
    return TableSharding(kind, tuple(shards))


def damaged(rng: np.random.Generator, sharding: TableSharding) -> TableSharding:
    """The sharding with one number changed by a little, a shard left out or given twice, or under another type."""
    shards = list(sharding.shards)
    where, way = int(rng.integers(len(shards))), int(rng.integers(5))
    if way == 0:
        return replace(sharding, sharding_type=str(rng.choice(PLAN_TYPES)))
    if way == 1 and len(shards) > 1:
        del shards[where]
    elif way == 2:
        shards.insert(where, shards[where])
    elif way == 3 and len(shards) > 1:
        other = (where + 1) % len(shards)
        first, second = shards[where], shards[other]
        shards[where], shards[other] = first._replace(device=second.device), second._replace(device=first.device)
    else:
        numbers = list(shards[where])
        numbers[int(rng.integers(5))] += int(rng.choice([-4, -1, 1, 4]))
        shards[where] = Shard(*numbers)
    return replace(sharding, shards=tuple(shards))


def test_the_tables_that_have_several_shards_are_known(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 3, dims=(16,))
    halves = [column_wise(tables, table, [0, 1]) for table in (0, 2)]
    assert ShardingPlan((halves[0], table_wise(tables, 1, 0), halves[1])).split_tables == [0, 2]


@given(seed=SEEDS)
def test_a_plan_is_valid_if_and_only_if_every_cell_is_where_it_belongs(
    random_tables: Any, random_plan: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tables = few_rows(random_tables(rng, 1, dims=(4, 8, 12, 16)), int(rng.integers(1, 30)))
    topology = devices(int(rng.integers(1, 7)), int(rng.integers(1, 5)))
    searched = bool(rng.integers(2))
    plan = random_plan(rng, tables, topology) if searched else ShardingPlan((as_read(rng, tables, topology),))
    assert check_plan(plan, tables, topology) is plan
    if searched:
        assert check_answer(plan, tables, topology) is plan
    rows, dim = int(tables.num_embeddings[0]), int(tables.embedding_dim[0])
    assert is_valid(plan.tables[0], rows, dim, topology)
    for _ in range(5):
        wrong = damaged(rng, plan.tables[0])
        inside = all(0 <= s.device < topology.num_devices and min(s) >= 0 < s.num_columns for s in wrong.shards)
        if inside and is_valid(wrong, rows, dim, topology):
            check_plan(ShardingPlan((wrong,)), tables, topology)
        else:
            with pytest.raises(InvalidPlanError, match=r"Table 0 \(table_0\)"):
                check_plan(ShardingPlan((wrong,)), tables, topology)


@given(seed=SEEDS)
def test_memory_is_counted_to_the_byte_and_the_cap_holds(random_tables: Any, random_plan: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    optimizer, dtype = str(rng.choice(["sgd", "rowwise_adagrad", "adam"])), str(rng.choice(["bf16", "fp32"]))
    tables, count = random_tables(rng, 4, optimizer=optimizer, weight_dtype=dtype), int(rng.integers(1, 5))
    weight, state = 2 if dtype == "bf16" else 4, 8 if optimizer == "adam" else 0
    plan = random_plan(rng, tables, devices(count, 2))
    needed = [0] * count
    for sharding in plan.tables:
        for shard in sharding.shards:
            of_row = 4 if optimizer == "rowwise_adagrad" else 0  # in each column shard; moments of Adam are split
            needed[shard.device] += shard.num_rows * (shard.num_columns * (weight + state) + of_row)
    assert plan_memory_used(plan, tables, count).tolist() == needed
    exact = np.maximum(needed, 1)
    check_plan(plan, tables, devices(count, 2, exact))
    full = int(rng.choice(np.flatnonzero(needed)))
    exact[full] -= 1
    with pytest.raises(MemoryExceededError, match=f"Device {full} is given .* {needed[full]} bytes.*{exact[full]} byt"):
        check_plan(plan, tables, devices(count, 2, exact))


def test_row_blocks_are_those_that_torchrec_reads(random_tables: Any) -> None:
    tables = few_rows(random_tables(np.random.default_rng(0), 1, dims=(8,)), 50)
    blocks = [(shard.first_row, shard.num_rows) for shard in row_wise(tables, 0, devices(4)).shards]
    assert blocks == [(0, 13), (13, 13), (26, 13), (39, 11)]
    uneven = TableSharding("row_wise", (Shard(0, 0, 10, 0, 8), Shard(1, 10, 40, 0, 8)))
    with pytest.raises(InvalidPlanError, match=r"device 0 has rows 0 to 24 .*ceil\(50 / 2\) = 25 rows.* rows 0 to 9 "):
        check_plan(ShardingPlan((uneven,)), tables, devices(2))
    swapped = TableSharding("row_wise", (Shard(1, 0, 25, 0, 8), Shard(0, 25, 25, 0, 8)))
    with pytest.raises(InvalidPlanError, match="device 1 has rows 25 to 49"):
        check_plan(ShardingPlan((swapped,)), tables, devices(2))


def test_too_few_rows_for_the_blocks_are_refused(random_tables: Any) -> None:
    tables = few_rows(random_tables(np.random.default_rng(0), 1, dims=(8,)), 5)
    assert len(row_wise(tables, 0, devices(3)).shards) == 3
    with pytest.raises(InvalidPlanError, match="5 rows, so 4 blocks of 2 leave some empty"):
        row_wise(tables, 0, devices(4))


@pytest.mark.parametrize(
    ("rows", "of_devices"),
    [(12, [2, 2, 2, 2, 2, 2, 0, 0]), (3, [1, 1, 1, 0, 0, 0, 0, 0]), (13, [2, 2, 2, 2, 2, 2, 1, 0])],
)
def test_blocks_without_rows_are_valid_in_plans_and_not_in_answers(
    random_tables: Any, rows: int, of_devices: list[int]
) -> None:
    tables, first = few_rows(random_tables(np.random.default_rng(0), 1, dims=(8,)), rows), 0
    shards = []
    for device, count in enumerate(of_devices):
        shards.append(Shard(device, first, count, 0, 8))
        first += count
    plan = ShardingPlan((TableSharding("row_wise", tuple(shards)),))
    assert check_plan(plan, tables, devices(8)) is plan
    assert plan_memory_used(plan, tables, 8).tolist() == [
        count * tables.workload.row_bytes(np.array(8)) for count in of_devices
    ]
    with pytest.raises(InvalidPlanError, match=f"row_wise with {rows} rows, which leaves device {of_devices.index(0)}"):
        check_answer(plan, tables, devices(8))
    assert check_answer(plan, tables, devices(8), empty_blocks=True) is plan
    assert row_wise(tables, 0, devices(8), empty_blocks=True) == plan.tables[0]


@pytest.mark.parametrize("kind", READ_TYPES)
def test_types_that_are_only_read_are_no_answers(random_tables: Any, kind: str) -> None:
    """Bounds of costs and the actions of environments do not know them."""
    tables = few_rows(random_tables(np.random.default_rng(0), 1, dims=(8,)), 8)
    shards = {
        "table_column_wise": [Shard(0, 0, 8, 0, 4), Shard(1, 0, 8, 4, 4)],
        "grid_shard": [Shard(host * 2 + i, 4 * i, 4, 4 * host, 4) for host in range(2) for i in range(2)],
    }
    plan = ShardingPlan((TableSharding(kind, tuple(shards[kind])),))
    assert check_plan(plan, tables, devices(4, 2)) is plan
    with pytest.raises(InvalidPlanError, match=f"has the sharding type '{kind}'; known are table_wise, "):
        check_answer(plan, tables, devices(4, 2))
    assert kind in describe_sharding(plan.tables[0])
    assert kind in brief_sharding(plan.tables[0])


def test_blocks_on_a_host_need_equal_hosts(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 1)
    assert table_row_wise(tables, 0, devices(6, 3), 1).devices == [3, 4, 5]
    assert table_row_wise(tables, 0, devices(3, 8), 0).devices == [0, 1, 2]
    with pytest.raises(InvalidPlanError, match="the hosts are 0 to 1"):
        table_row_wise(tables, 0, devices(6, 3), 2)
    with pytest.raises(InvalidPlanError, match="different numbers"):
        table_row_wise(tables, 0, devices(5, 3), 0)
    plan = ShardingPlan((replace(table_row_wise(tables, 0, devices(6, 3), 0)),))
    with pytest.raises(InvalidPlanError, match="5 devices in hosts of 3"):
        check_plan(plan, tables, devices(5, 3))


@pytest.mark.parametrize(
    ("shards", "says"),
    [
        ([(0, 0, 9, 0, 8), (1, 0, 9, 12, 4)], "columns 8 to 11 in no shard"),
        ([(0, 0, 9, 0, 8), (1, 0, 9, 4, 12)], "columns 4 to 7 in 2 shards"),
        ([(0, 0, 9, 0, 10), (1, 0, 9, 10, 6)], "columns 0 to 9, whose width 10 is not a multiple of 4"),
        ([(0, 0, 9, 0, 8), (1, 0, 8, 8, 8)], "all 9 rows, but that of columns 8 to 15 has rows 0 to 7"),
        ([(0, 0, 9, 0, 8), (7, 0, 9, 8, 8)], "device 7, but the devices are 0 to 1"),
        ([(0, 0, 9, 0, 8), (1, 0, 9, 8, 12)], "a shard beyond"),
        ([(0, 0, 9, 0, 8), (1, 0, 9, 8, 0)], "no cells"),
        ([], "has no shards"),
    ],
)
def test_wrong_columns_are_named(random_tables: Any, shards: Any, says: str) -> None:
    tables = few_rows(random_tables(np.random.default_rng(0), 1, dims=(16,)), 9)
    plan = ShardingPlan((TableSharding("column_wise", tuple(Shard(*shard) for shard in shards)),))
    with pytest.raises(InvalidPlanError, match=says):
        check_plan(plan, tables, devices(2))


def test_integers_of_numpy_are_checked_as_integers(random_tables: Any) -> None:
    """They overflow: 2**63 - 4 + 4 columns are negative, and 128 + 128 of eight bits are none."""
    tables = random_tables(np.random.default_rng(0), 1, dims=(256,))
    rows, halves = int(tables.num_embeddings[0]), column_wise(tables, 0, [0, 1])
    narrow = Shard(1, 0, rows, np.uint8(128), np.uint8(128))
    check_plan(ShardingPlan((replace(halves, shards=(halves.shards[0], narrow)),)), tables, devices(4))
    beyond = Shard(0, 0, rows, np.int64(2**63 - 4), np.int64(4))
    with pytest.raises(InvalidPlanError, match="a shard beyond them"):
        check_plan(ShardingPlan((replace(halves, shards=(*halves.shards, beyond)),)), tables, devices(4))


def test_what_is_no_plan_is_refused(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 2)
    one = table_wise(tables, 0, 0)
    check_plan(ShardingPlan((one, table_wise(tables, 1, 0))), tables, devices(2))  # what equals it may still be wrong
    wrong: Any
    for wrong, says in (
        ([one, one], "is a ShardingPlan"),
        (ShardingPlan((one,)), "1 sharding, but there are 2 tables"),
        (ShardingPlan((one, None)), r"Table 1 \(table_1\) needs a TableSharding"),  # type: ignore[arg-type]
        (ShardingPlan((one, replace(one, sharding_type="grid"))), "'grid'; known are table_wise"),
        (ShardingPlan((one, replace(one, shards=[(0, 0, 1, 0, 4)]))), "not a Shard of integers"),  # type: ignore[arg-type]
        (ShardingPlan((one, replace(one, shards=(Shard(0, 0, 1.5, 0, 4),)))), "integers"),  # type: ignore[arg-type]
        (ShardingPlan((replace(one, shards=(one.shards[0]._replace(device=False),)), one)), "integers"),
        (ShardingPlan((replace(one, shards=(one.shards[0]._replace(first_row=0.0),)), one)), "integers"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidPlanError, match=says):
            check_plan(wrong, tables, devices(2))


def test_a_plan_of_whole_tables_is_a_placement(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 3, dims=(16,))
    plan = plan_of_placement([1, 0, 1], tables)
    placement = plan.placement
    assert placement is not None
    assert placement.tolist() == [1, 0, 1]
    assert (plan.split_tables, plan.num_shards) == ([], 3)
    split = ShardingPlan((*plan.tables[:2], column_wise(tables, 2, [0, 0, 1, 1])))
    assert split.placement is None
    assert (split.split_tables, split.num_shards) == ([2], 6)
    assert [s.first_column for s in split.tables[2].shards] == [0, 4, 8, 12]
    assert column_wise(tables, 0, np.array([0, 1]), np.array([12, 4])) == column_wise(tables, 0, [0, 1], [12, 4])
    assert data_parallel(tables, 1, devices(3)).devices == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda tables: table_wise(tables, 0, 1.7), None),
        (lambda tables: column_wise(tables, 0, 3), None),
        (lambda tables: column_wise(tables, 0, [0.5, 1.5]), None),
        (lambda tables: column_wise(tables, 0, [0, 1], 64), None),
        (lambda tables: column_wise(tables, 0, [0, 1], [8, 4]), "multiples of 4 that add up to 16"),
        (lambda tables: column_wise(tables, 0, [0, 1], [6, 10]), "multiples of 4 that add up to 16"),
        (lambda tables: column_wise(tables, 0, [0, 1], [16, 0]), "multiples of 4 that add up to 16"),
        (lambda tables: column_wise(tables, 0, [0, 1], [16]), "multiples of 4 that add up to 16"),
        (lambda tables: column_wise(tables, 0, [0, 1, 0]), "not 3 shards"),
        (lambda tables: plan_of_placement(None, tables), None),
        (lambda tables: plan_of_placement([0.9] * 4, tables), None),
        (lambda tables: check_plan(ShardingPlan("abcd"), tables, devices(4)), None),
    ],
)
def test_what_makes_no_plan_is_refused(make: Any, says: str | None, four_tables: Tables) -> None:
    with pytest.raises((InvalidOptionError, InvalidPlanError), match=says):
        make(four_tables.with_dims(16))
