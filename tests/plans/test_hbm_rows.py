"""Rows of plans in HBM: the split against a sorted one of every row, its bytes, and the check of given ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidPlanError, MemoryExceededError, StatesExceedHbmError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import (
    Shard,
    ShardingPlan,
    TableSharding,
    check_plan,
    column_wise,
    data_parallel,
    plan_from_json,
    plan_to_json,
    read_plan,
    row_wise,
    table_wise,
    write_plan,
)
from shard_gym.plans.caps import most_state_bytes
from shard_gym.plans.files import hbm_rows_from_json
from shard_gym.plans.hbm_rows import check_hbm_rows, host_bytes, split_of_plan
from shard_gym.plans.placement import check_placement
from shard_gym.tables import RowPopularity, Tables, Workload
from shard_gym.tasks import load_suite, suite_names

ROWS = (400, 300, 200, 160)


def tables_of(optimizer: str = "rowwise_adagrad") -> Tables:
    return Tables.from_popularity(
        num_embeddings=ROWS,
        embedding_dim=[16, 32, 8, 4],
        pooling_factor=[2.0, 1.0, 3.0, 1.0],
        popularity=RowPopularity.zipf([1.2, 0.8, 0.0, 1.0]),
        workload=Workload(64, "fp32", optimizer),
    )


def with_host(hbm_bytes: int, devices: int = 2) -> Topology:
    profile = hardware_profile("a100-dgx")
    return replace(profile.topology(devices), host=profile.host_memory(hbm_bytes))


def every_type(tables: Tables, topology: Topology) -> ShardingPlan:
    return ShardingPlan(
        (
            row_wise(tables, 0, topology),
            column_wise(tables, 1, [1, 0], [24, 8]),
            table_wise(tables, 2, 1),
            data_parallel(tables, 3, topology),
        )
    )


def all_rows(tables: Tables, shard: Shard, table: int, blocks: int) -> np.ndarray:
    """The probability that a batch reads each row of a shard; of a block every `blocks`-th row."""
    assert isinstance(tables.popularity, RowPopularity)
    law = (np.arange(1, tables.num_embeddings[table] // blocks + 1) + 0.0) ** -tables.popularity.s[table]
    reads = law / law.sum() * tables.lookups_per_batch[table] / blocks
    return np.asarray(-np.expm1(-reads)[: shard.num_rows])


@settings(deadline=None, max_examples=30)
@given(hbm=st.integers(1_500, 60_000), optimizer=st.sampled_from(["sgd", "rowwise_adagrad", "adam"]))
def test_rows_in_hbm_are_those_of_a_sort_of_all_rows(hbm: int, optimizer: str) -> None:
    tables, topology = tables_of(optimizer), with_host(hbm)
    plan = every_type(tables, topology)
    split = split_of_plan(plan, tables, topology)
    each = 4 + {"sgd": 0, "rowwise_adagrad": 0, "adam": 8}[optimizer]
    for device in range(2):
        shards = [
            (number, table, shard)
            for number, (table, *shard) in enumerate(plan.shard_arrays().tolist())
            if shard[0] == device
        ]
        read, size, owner = [], [], []
        free = hbm
        for number, table, numbers in shards:
            shard = Shard(*numbers)
            chances = all_rows(tables, shard, table, 2 if table == 0 else 1)
            read.append(np.ones(len(chances)) if table == 3 else chances)  # a dense gradient updates every row
            size.append(np.full(len(chances), each * shard.num_columns))
            owner.append(np.full(len(chances), number))
            free -= 4 * shard.num_rows * (optimizer == "rowwise_adagrad")
        order = np.argsort(-np.concatenate(read), kind="stable")
        fits = np.cumsum(np.concatenate(size)[order]) <= max(free, 0)
        kept = np.bincount(np.concatenate(owner)[order][fits], minlength=len(split.hbm_rows))
        read_there = np.concatenate(read)[order][~fits] * np.concatenate(size)[order][~fits]
        for number, _, numbers in shards:
            # Rows that are read as often as others may be those of any table; a row at the end may be cut.
            if numbers[4] != tables.embedding_dim[2]:
                assert abs(int(split.hbm_rows[number]) - int(kept[number])) <= 1
        own = [number for number, *_ in shards]
        columns = np.array([numbers[4] for _, _, numbers in shards])
        bytes_there = float((split.host_reads[own] * columns * each).sum())
        assert bytes_there == pytest.approx(read_there.sum(), abs=1.01 * each * 32)


def test_a_plan_that_fits_has_all_rows_in_hbm() -> None:
    tables = tables_of()
    plan = every_type(tables, with_host(10**6))
    for topology in (with_host(10**6), hardware_profile("a100-dgx").topology(2)):
        split = split_of_plan(plan, tables, topology)
        assert split.hbm_rows.tolist() == plan.shard_arrays()[:, 3].tolist()
        assert not host_bytes(split.hbm_rows, plan, tables).any()


def test_the_split_reads_what_the_cost_model_says() -> None:
    """From below: the thresholds of the model are a grid."""
    tables, topology = tables_of("sgd"), with_host(12_000)
    plan = every_type(tables, topology)
    split = split_of_plan(plan, tables, topology)
    columns = plan.shard_arrays()[:, 5]
    read = np.bincount(plan.shard_arrays()[:, 1], split.host_reads * columns * 4) / (16.0 * 1e6)
    model = AnalyticalShardingModel()
    more = model.estimate(plan, tables, topology).phases_ms[:, 0]
    more = more - model.estimate(plan, tables, replace(topology, host=None)).phases_ms[:, 0]
    assert (more <= read * (1 + 1e-6)).all()
    assert more.tolist() == pytest.approx(read.tolist(), rel=0.05)


def test_a_file_says_the_rows_in_hbm_and_they_are_checked(tmp_path: Path) -> None:
    tables, topology = tables_of(), with_host(12_000)
    plan, path = every_type(tables, topology), tmp_path / "plan.json"
    expected = split_of_plan(plan, tables, topology).hbm_rows.tolist()
    value = plan_to_json(plan, tables, topology)
    assert [number for entry in value for number in entry["hbm_rows"]] == expected
    found = hbm_rows_from_json(value, plan, tables, topology)
    assert found is not None
    assert found.tolist() == expected
    write_plan(path, plan, tables, topology)
    assert read_plan(path, tables, topology) == plan_from_json(value, tables, topology) == plan
    with pytest.raises(InvalidPlanError, match="in host memory, but the devices have none for tables"):
        read_plan(path, tables, hardware_profile("a100-dgx").topology(2))
    with pytest.raises(MemoryExceededError, match=r"of rows and their states in HBM, but tables may take"):
        read_plan(path, tables, with_host(8_000))
    assert "hbm_rows" not in plan_to_json(plan, tables)[0]
    assert hbm_rows_from_json(plan_to_json(plan, tables), plan, tables, topology) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hbm_rows": [1]}, "needs hbm_rows, an integer for each of its 2 shards"),
        ({"hbm_rows": [1, 2.5]}, "needs hbm_rows"),
        ({"hbm_rows": "12"}, "needs hbm_rows"),
        ({"hbm_rows": None}, "needs hbm_rows"),
        ({"hbm_rows": [0, 201]}, "on device 1 has 200 rows, of which 201 cannot be in HBM"),
        ({"hbm_rows": [-1, 0]}, "of which -1 cannot be in HBM"),
        ({"more": 1}, "is an object with the keys"),
    ],
)
def test_impossible_rows_in_hbm_are_refused(change: dict[str, Any], says: str) -> None:
    tables, topology = tables_of(), with_host(12_000)
    value = plan_to_json(every_type(tables, topology), tables, topology)
    value[0] |= change
    with pytest.raises(InvalidPlanError, match=says):
        plan_from_json(value, tables, topology)
    with pytest.raises(InvalidPlanError, match="an integer for each of 7 shards"):
        check_hbm_rows([1, 2], every_type(tables, topology), tables, topology)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam", "sgd"])
def test_states_of_rows_beyond_the_hbm_are_refused(optimizer: str) -> None:
    """The states of the most rows that a device has are 4 bytes each; Adam's moments are where their rows are."""
    tables = tables_of(optimizer)
    plan = every_type(tables, with_host(10**6))
    _, device, _, rows, _, _ = plan.shard_arrays().T
    most = 4 * int(np.bincount(device, rows).max())
    placement = np.array([0, 0, 1, 1])
    assert check_plan(plan, tables, with_host(most)) is plan
    assert check_placement(placement, tables, with_host(4 * (400 + 300))).tolist() == placement.tolist()
    for check in (
        lambda: check_plan(plan, tables, with_host(most - 1)),
        lambda: check_placement(placement, tables, with_host(4 * (400 + 300) - 1)),
    ):
        if optimizer == "rowwise_adagrad":
            with pytest.raises(StatesExceedHbmError, match="of states of rowwise_adagrad, which are in HBM for all"):
                check()
        else:
            check()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dims=st.lists(st.sampled_from([4, 8, 16, 32, 128]), min_size=1, max_size=7))
def test_the_most_states_are_those_of_no_set_of_tables(data: st.DataObject, dims: list[int]) -> None:
    """Against every set of tables within the bytes; and no more than the set that is found with a part of one."""
    rows = data.draw(st.lists(st.integers(1, 500), min_size=len(dims), max_size=len(dims)))
    keeps = np.array(data.draw(st.lists(st.booleans(), min_size=len(dims), max_size=len(dims))))
    workloads = [Workload(64, "fp32", "sgd"), Workload(64, "fp16", "rowwise_adagrad")]
    tables = Tables.from_zipf(rows, dims, 1.0, 1.0, Workload.mixed(workloads, keeps.astype(np.int64)))
    room = data.draw(st.integers(1, int(tables.memory_bytes.sum()) + 10))
    sets = [np.array(chosen, bool) for chosen in itertools.product([False, True], repeat=len(dims))]
    fitting = [4 * int(tables.num_embeddings[s & keeps].sum()) for s in sets if tables.memory_bytes[s].sum() <= room]
    most = most_state_bytes(tables, room)
    assert max(fitting) <= most <= max(fitting) + 4 * max(rows)


def test_no_answer_of_a_suite_with_host_memory_has_too_many_states() -> None:
    """Masks know the memory caps alone, so the HBM of suites holds the states of any shards within them.

    Column shards of 4 columns have the most states for their bytes.
    """
    for name in suite_names():
        for task in load_suite(name):
            host, caps = task.topology.host, task.topology.memory_cap_bytes
            if host is not None:
                cut = task.tables.embedding_dim // 4 if task.splittable else np.ones(task.num_tables, np.int64)
                shards = task.tables.select(np.repeat(np.arange(task.num_tables), cut))
                shards = shards.with_dims(np.full(len(shards), 4)) if task.splittable else shards
                assert most_state_bytes(shards, int(caps.max())) <= host.hbm_bytes, task.name


def test_a_last_block_has_no_more_rows_in_hbm_than_it_has() -> None:
    tables = replace(tables_of(), num_embeddings=np.array([401, 300, 200, 160]))
    topology = with_host(10**6)
    plan = ShardingPlan((row_wise(tables, 0, topology), *(table_wise(tables, table, 0) for table in (1, 2, 3))))
    assert isinstance(plan.tables[0], TableSharding)
    assert split_of_plan(plan, tables, topology).hbm_rows[:2].tolist() == [201, 200]
