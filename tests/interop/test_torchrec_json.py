"""Plans of TorchRec that ShardGym would misread are refused, as JSON and as TorchRec's objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidPlanError, MemoryExceededError
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.interop.torchrec import from_torchrec, hbm_shares_of_torchrec, plan_from_torchrec_json
from shard_gym.interop.torchrec_json import from_torchrec_json, hbm_shares_of_json, torchrec_json
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, plan_of_placement, row_wise, table_wise
from shard_gym.plans.hbm_rows import split_of_plan
from shard_gym.tables import Tables
from shard_gym.tables.tables import ANYWHERE, CACHED, IN_HOST


def written(four_tables: Tables) -> tuple[dict[str, Any], Tables, Topology]:
    """A plan in JSON, with its tables and topology."""
    tables, topology = (
        replace(four_tables, names=("user", "item", "tag", "city")),
        hardware_profile("a100-dgx").topology(2),
    )
    value = torchrec_json(plan_of_placement([1, 0, 0, 1], tables), tables, topology, "m")
    assert from_torchrec_json(value, tables, topology) == plan_of_placement([1, 0, 0, 1], tables)
    return value, tables, topology


def both_ways(value: dict[str, Any], tables: Tables, topology: Topology, message: str) -> None:
    """A plan is refused as JSON, and as an object of TorchRec."""
    with pytest.raises(InvalidPlanError, match=message):
        from_torchrec_json(value, tables, topology)
    if find_spec("torchrec") is None:
        return
    with pytest.raises(InvalidPlanError, match=message):
        from_torchrec(plan_from_torchrec_json(value), tables, topology)


@pytest.mark.parametrize("kernel", ["key_value", "quant_uvm", "no such"])
def test_kernels_that_are_not_known_are_refused_by_name(kernel: str, four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["m"]["item"]["compute_kernel"] = kernel
    both_ways(value, tables, topology, f"Table 'item' has the compute kernel '{kernel}'")


def test_tables_of_a_plan_that_are_none_of_the_tables_are_refused_by_name(four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["another"] = {"extra": value["plan"]["m"]["user"]}
    both_ways(value, tables, topology, "The plan has a table 'extra', but the tables are")
    value["plan"]["another"] = {"user": value["plan"]["m"]["user"]}
    both_ways(value, tables, topology, "The plan has a table 'user' twice, one in 'another'")


@pytest.mark.parametrize("ranks", [[99], [0], [0, 1], []])
def test_ranks_that_differ_from_those_of_the_shards_are_refused(ranks: list[int], four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["m"]["user"]["ranks"] = ranks  # its shard is on rank 1
    both_ways(value, tables, topology, r"Table 'user' has ranks \[.*\], but its shards are on ranks \[1\]")


@pytest.mark.parametrize("ranks", [[1, 0], [0, 0, 1], [0, 1, 1], [0, 1, 0, 1]])
def test_ranks_are_those_of_the_shards_in_their_order(ranks: list[int], four_tables: Tables) -> None:
    _, tables, topology = written(four_tables)
    halves = column_wise(tables, 0, [0, 1])
    plan = ShardingPlan((halves, *(table_wise(tables, table, 0) for table in range(1, 4))))
    value = torchrec_json(plan, tables, topology, "m")
    assert from_torchrec_json(value, tables, topology) == plan
    value["plan"]["m"][tables.names[0]]["ranks"] = ranks
    both_ways(value, tables, topology, r"has ranks \[.*\], but its shards are on ranks \[0, 1\]")


def test_ranks_beyond_the_devices_are_refused(four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    entry = value["plan"]["m"]["user"]
    entry["ranks"] = [99]
    entry["shards"][0]["placement"] = "rank:99/cuda:3"
    both_ways(value, tables, topology, "99")


# Rows in host memory


def sizes(rows: Sequence[int]) -> Tables:
    """Tables of 64 columns, each a quarter as popular as the one before; FP32 and SGD, so a row has 256 bytes."""
    from shard_gym.tables import Workload

    pooling = 4.0 ** -np.arange(len(rows))
    return Tables.from_zipf(rows, 64, pooling, 1.0, Workload(1024, "fp32", "sgd"))


def with_host(hbm_rows: int, host_rows: int = 10**6, devices: int = 2) -> Topology:
    """Devices whose HBM has room for so many rows of `sizes`, and whose parts of the host for so many more."""
    profile = hardware_profile("a100-dgx")
    topology = profile.topology(devices, memory_cap_bytes=256 * (hbm_rows + host_rows))
    return replace(topology, host=profile.host_memory(256 * hbm_rows))


def test_kernels_and_load_factors_say_which_rows_are_in_hbm_and_come_back() -> None:
    """The first table is read most and stays in HBM; the second has some rows there, the last none."""
    tables, topology = sizes([100, 4_000, 500_000]), with_host(1_100, devices=2)
    plan = ShardingPlan(
        (data_parallel(tables, 0, topology), row_wise(tables, 1, topology), column_wise(tables, 2, [0, 1]))
    )
    value = torchrec_json(plan, tables, topology, "m")
    entries = value["plan"]["m"]
    assert [entry["compute_kernel"] for entry in entries.values()] == [
        "dense",
        "fused_uvm_caching",
        "fused_uvm_caching",
    ]
    split, shards = split_of_plan(plan, tables, topology).hbm_rows, plan.shard_arrays()
    expected = [1.0, *(split[shards[:, 0] == table].sum() / shards[shards[:, 0] == table, 3].sum() for table in (1, 2))]
    assert 0 < expected[2] < expected[1] < 1
    assert "cache_params" not in entries["table_0"]
    shares = hbm_shares_of_json(value, tables)
    assert shares.tolist() == pytest.approx(expected, rel=1e-12)
    assert from_torchrec_json(value, tables, topology) == plan
    if find_spec("torchrec") is not None:
        there = plan_from_torchrec_json(value)
        assert from_torchrec(there, tables, topology) == plan
        assert hbm_shares_of_torchrec(there, tables).tolist() == shares.tolist()
        assert there.plan["m"]["table_2"].cache_params.load_factor == shares[2]
        assert there.plan["m"]["table_0"].cache_params is None


def test_tables_without_rows_in_hbm_are_fused_uvm_and_those_with_all_are_fused() -> None:
    tables, topology = sizes([1_000, 3_000]), with_host(1_000)
    for placement, kernels in (([0, 1], ["fused", "fused_uvm_caching"]), ([0, 0], ["fused_uvm_caching"] * 2)):
        value = torchrec_json(plan_of_placement(placement, tables), tables, topology, "m")
        assert [entry["compute_kernel"] for entry in value["plan"]["m"].values()] == kernels
    nothing = replace(topology, host=hardware_profile("a100-dgx").host_memory(1))
    value = torchrec_json(plan_of_placement([0, 1], tables), tables, nothing, "m")
    assert [entry["compute_kernel"] for entry in value["plan"]["m"].values()] == ["fused_uvm"] * 2
    assert hbm_shares_of_json(value, tables).tolist() == [0.0, 0.0]
    assert from_torchrec_json(value, tables, nothing) == plan_of_placement([0, 1], tables)


def test_tables_that_must_have_a_cache_have_one_with_all_rows_in_hbm_too() -> None:
    tables, topology = sizes([1_000, 3_000, 3_000]), with_host(4_000)
    kept = tables.with_rows_in(np.array([CACHED, IN_HOST, ANYWHERE]))
    plan = plan_of_placement([0, 0, 1], tables)
    entries = torchrec_json(plan, kept, topology, "m")["plan"]["m"]
    assert [entry["compute_kernel"] for entry in entries.values()] == ["fused_uvm_caching", "fused_uvm", "fused"]
    assert entries["table_0"]["cache_params"] == {"load_factor": 1.0}
    nothing = replace(topology, host=hardware_profile("a100-dgx").host_memory(1))
    entries = torchrec_json(plan, kept, nothing, "m")["plan"]["m"]
    assert entries["table_0"]["cache_params"] == {"load_factor": 0.001}
    assert from_torchrec_json({"plan": {"m": entries}}, tables, topology) == plan


@pytest.mark.parametrize(("hardware", "own", "other"), [("cpu", "cpu", "cuda"), ("h100-dgx", "cuda", "cpu")])
def test_the_device_type_is_that_of_the_devices_unless_another_is_named(hardware: str, own: str, other: str) -> None:
    tables, topology = sizes([1_000, 3_000]), hardware_profile(hardware).topology(2)
    placements = {}
    for named in (None, own, other):
        value = torchrec_json(plan_of_placement([0, 1], tables), tables, topology, "m", named)
        shards = [entry["shards"][0]["placement"] for entry in value["plan"]["m"].values()]
        placements[named] = shards
    assert placements[None] == placements[own] != placements[other]
    assert placements["cpu"] == ["rank:0/cpu", "rank:1/cpu"]
    assert placements["cuda"] == ["rank:0/cuda:0", "rank:1/cuda:1"]
    with pytest.raises(InvalidPlanError, match="device_type must be 'cuda', 'cpu' or None, not 'gpu'"):
        torchrec_json(plan_of_placement([0, 1], tables), tables, topology, "m", "gpu")


@pytest.mark.parametrize(("of_host", "of_domain", "count"), [(4, 8, 8), (4, 72, 72), (2, 6, 12)])
def test_placements_count_the_devices_of_a_host_not_those_of_its_domain(
    of_host: int, of_domain: int, count: int
) -> None:
    tables = sizes([1_000] * count)
    topology = hardware_profile("h100-dgx").topology(count, devices_per_host=of_host, devices_per_domain=of_domain)
    value = torchrec_json(plan_of_placement(range(count), tables), tables, topology, "m")
    shards = [entry["shards"][0]["placement"] for entry in value["plan"]["m"].values()]
    assert shards == [f"rank:{rank}/cuda:{rank % of_host}" for rank in range(count)]


def test_what_torchrec_cannot_train_is_not_written() -> None:
    tables = sizes([1_000, 3_000])
    replicas = ShardingPlan((data_parallel(tables, 0, with_host(500)), table_wise(tables, 1, 1)))
    with pytest.raises(InvalidPlanError, match="'table_0' is data_parallel with rows in host memory"):
        torchrec_json(replicas, tables, with_host(500), "m")
    whole = plan_of_placement([0, 1], tables)
    with pytest.raises(MemoryExceededError, match=r"in host memory, here .* on host 0, which has"):
        torchrec_json(whole, tables, with_host(2_000, 1_100), "m")  # 2,200 rows on the host, where 3,000 are needed
    with pytest.raises(InvalidPlanError, match="device_type must be 'cuda'"):
        torchrec_json(whole, tables, with_host(500), "m", "cpu")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (5, "cache_params of table 'item' must be an object, not 5"),
        *(
            ({"load_factor": factor}, "load_factor of table 'item' must be a number above 0, and 1 at most")
            for factor in (0, -1, 1.5, "0.5", True, float("nan"))
        ),
    ],
)
def test_impossible_load_factors_are_refused(params: Any, says: str, four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["m"]["item"] |= {"compute_kernel": "fused_uvm_caching", "cache_params": params}
    with pytest.raises(InvalidPlanError, match=says):
        hbm_shares_of_json(value, tables)
    with pytest.raises(InvalidPlanError, match=says):
        from_torchrec_json(value, tables, topology)


@pytest.mark.parametrize("kernel", ["fused_uvm", "fused_uvm_caching"])
def test_kernels_in_host_memory_need_some(kernel: str, four_tables: Tables) -> None:
    value, tables, topology = written(four_tables)
    value["plan"]["m"]["item"]["compute_kernel"] = kernel
    both_ways(value, tables, topology, "Table 'item' has rows in host memory, and the devices have none for tables")
    some = hardware_profile("a100-dgx").topology(2, host_memory_bytes=2**40)
    assert from_torchrec_json(value, tables, some) == plan_of_placement([1, 0, 0, 1], tables)
    assert hbm_shares_of_json(value, tables)[1] == {"fused_uvm": 0.0, "fused_uvm_caching": 0.2}[kernel]
