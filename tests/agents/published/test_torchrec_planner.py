"""TorchRec's planner: what it is told of a task, that it answers the same in every process, and its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec")

from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

from shard_gym.agents import make_agent
from shard_gym.agents.published import torchrec_calls
from shard_gym.common.errors import NoPlacementFoundError, UnknownNameError
from shard_gym.hardware import hardware_profile
from shard_gym.plans.constraints_json import constraints_from_json
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

NAMES = ("torchrec", "torchrec-tuned")


def plain(rows: list[int], dims: list[int], pooling: list[float], workload: Workload) -> Tables:
    return Tables.from_zipf(rows, dims, pooling, 1.05, workload)


def task(tables: Tables, devices: int, caps: Any = None) -> Task:
    options = {} if caps is None else {"memory_cap_bytes": caps}
    topology = hardware_profile("a100-dgx").topology(devices, **options)
    return Task("task", tables, topology, splittable=True)


@pytest.mark.parametrize("name", NAMES)
def test_devices_may_have_unequal_memory(name: str) -> None:
    """The table of 16 MB fits the second device alone."""
    tables = plain([4000, 1000, 1000], [1024, 64, 64], [3.0, 2.0, 2.0], Workload(1024, "fp32"))
    assert make_agent(name).place(task(tables, 2, np.array([600_000, 17_000_000])))[0] == 1


def test_blocks_of_rows_are_equal_where_memory_is_not() -> None:
    """TorchRec would make blocks like the memory of the devices, and train wrongly with them."""
    tables = plain([4000, 1000, 1000], [1024, 64, 64], [3.0, 2.0, 2.0], Workload(1024, "fp32"))
    agent = make_agent("torchrec", sharding_types="table_wise,row_wise")
    split = agent.plan(task(tables, 2, np.array([9_000_000, 12_000_000]))).tables[0]
    assert [shard.num_rows for shard in split.shards] == [2000, 2000]


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_the_optimizer_counts(name: str) -> None:
    """By their time five tables would share a device: 8 MB of weights, and 10 MB with the state of the rows."""
    tables = plain([100_000] * 6, [4] * 6, [200.0] + 5 * [1.0], Workload(256, "fp32", "rowwise_adagrad"))
    placement = make_agent(name).place(task(tables, 2, 9_000_000))
    assert sorted(np.bincount(placement, minlength=2)) == [2, 4]


@pytest.mark.parametrize(("dtype", "weight_bytes"), [("bf16", 2), ("fp32", 4)])
def test_the_moments_of_adam_count_in_fp32(dtype: str, weight_bytes: int) -> None:
    """Two tables fit each device, and by their time five of six would share one."""
    tables = plain([100_000] * 6, [4] * 6, [200.0] + 5 * [1.0], Workload(256, dtype, "adam"))
    table = 100_000 * 4 * (weight_bytes + 8)
    for name in NAMES:
        placement = make_agent(name).place(task(tables, 2, 4 * table + 1000))
        assert sorted(np.bincount(placement, minlength=2)) == [2, 4]


@pytest.mark.parametrize("sort_by", ["storage", "perf"])
def test_answers_do_not_depend_on_the_order_of_its_sets(
    sort_by: str, monkeypatch: pytest.MonkeyPatch, random_tables: Any
) -> None:
    """TorchRec intersects sets of names; their order changes with the seed of Python's hashes."""
    tables, agent = (
        random_tables(np.random.default_rng(3), 6),
        make_agent("torchrec", min_partition=4, sort_by=sort_by),
    )
    expected = agent.plan(task(tables, 4))
    filtered = EmbeddingEnumerator._filter_sharding_types
    for order in (sorted, lambda kinds: sorted(kinds)[::-1]):
        monkeypatch.setattr(
            EmbeddingEnumerator, "_filter_sharding_types", lambda *given, by=order: by(filtered(*given))
        )
        assert agent.plan(task(tables, 4)) == expected


@pytest.mark.parametrize("least", [32, 128])
def test_columns_are_split_down_to_the_least_width(least: int) -> None:
    tables = plain([10**6] * 4, [32, 64, 128, 256], [100.0] * 4, Workload(65536))
    agent = make_agent("torchrec", sharding_types="table_wise,column_wise", min_partition=least, sort_by="perf")
    widths = [{shard.num_columns for shard in each.shards} for each in agent.plan(task(tables, 8)).tables]
    assert widths == [{min(dim, least)} for dim in (32, 64, 128, 256)]


def test_the_tuned_settings_leave_to_the_shipped_ones_what_they_cannot_do() -> None:
    """A table of few columns is larger than a device, so only rows can be split."""
    tables = plain([100_000, 100], [32, 32], [1.0, 1.0], Workload(256, "fp32"))
    plan = make_agent("torchrec-tuned").plan(task(tables, 4, 8_000_000))
    assert plan == make_agent("torchrec").plan(task(tables, 4, 8_000_000))
    assert plan.tables[0].sharding_type == "row_wise"


def test_an_unknown_order_is_a_named_error() -> None:
    with pytest.raises(UnknownNameError, match=r"no order of TorchRec's partitioner named 'prf'.*perf"):
        make_agent("torchrec", sort_by="prf")


def tiered(tables: Tables, devices: int, hbm: int, host: int) -> Task:
    """A task with so many bytes of HBM, and of host memory, for each device."""
    topology = hardware_profile("a100-dgx").topology(devices, memory_cap_bytes=hbm, host_memory_bytes=devices * host)
    return Task("tiered", tables, topology, splittable=True)


HOST_NAMES = (*NAMES, "torchrec-offload")


@pytest.mark.parametrize("name", HOST_NAMES)
def test_tables_that_are_not_in_hbm_must_fit_the_host(name: str) -> None:
    """By their time five of the six tables of 1.6 MB would share a device; its host has room for three."""
    tables = plain([100_000] * 6, [4] * 6, [200.0] + 5 * [1.0], Workload(256, "fp32"))
    placement = make_agent(name).place(tiered(tables, 2, 200_000, 5_000_000))
    assert np.bincount(placement, minlength=2).tolist() == [3, 3]


@pytest.mark.parametrize("name", HOST_NAMES)
def test_the_planner_knows_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topology has HBM, host memory and the bandwidth between them; caches have the statistics of the tables."""
    told = {}

    class Told(torchrec_calls.EmbeddingShardingPlanner):
        def plan(self, *given: Any, **named: Any) -> Any:
            told["topology"], told["constraints"] = self._topology, self._constraints
            return super().plan(*given, **named)

    monkeypatch.setattr(torchrec_calls, "EmbeddingShardingPlanner", Told)
    tables = plain([100_000] * 4, [16] * 4, [20.0, 5.0, 3.0, 1.0], Workload(256, "fp32"))
    make_agent(name).plan(tiered(tables, 2, 2_000_000, 24_000_000))
    assert told["topology"].hbm_to_ddr_mem_bw == 16e6
    for device in told["topology"].devices:
        assert device.storage.ddr == 24_000_000
        assert 2_000_000 < device.storage.hbm < 4_000_000, "with room for buffers and the maps of caches"
    caches = [each.cache_params for each in told["constraints"].values()]
    if name == "torchrec-offload":
        assert [each.stats.expected_lookups for each in caches] == pytest.approx(tables.distinct_rows, rel=1e-3)
    else:
        assert caches == [None] * 4, "it ships without"


def test_without_host_memory_there_are_no_caches(random_tables: Any) -> None:
    drawn = task(random_tables(np.random.default_rng(3), 6), 2)
    assert np.array_equal(make_agent("torchrec-offload").place(drawn), make_agent("torchrec").place(drawn))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("hardware", "device_type", "memory", "per_host"),
    [("cpu", "cpu", "ddr", 2), ("a100-dgx", "cuda", "hbm", 4), ("a100-dgx", "cuda", "hbm", 2)],
)
def test_the_planner_knows_what_devices_are_and_how_many_a_host_has(
    name: str, hardware: str, device_type: str, memory: str, per_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a domain of fast links has two hosts. Five of six tables would share a device by their time."""
    told, plans = [], []

    class Told(torchrec_calls.EmbeddingShardingPlanner):
        def plan(self, *given: Any, **named: Any) -> Any:
            told.append(self._topology)
            plans.append(super().plan(*given, **named))
            return plans[-1]

    monkeypatch.setattr(torchrec_calls, "EmbeddingShardingPlanner", Told)
    profile = hardware_profile(hardware)
    tables = plain([100_000] * 6, [4] * 6, [200.0] + 5 * [1.0], Workload(256, "fp32", "sgd"))
    topology = profile.topology(
        4, devices_per_host=per_host, devices_per_domain=4, memory_cap_bytes=2 * int(tables.memory_bytes[0])
    )
    placement = make_agent(name).place(Task("task", tables, topology, splittable=True))
    assert np.bincount(placement, minlength=4).max() == 2
    assert (told[-1].compute_device, told[-1].local_world_size) == (device_type, per_host)
    assert getattr(told[-1], f"{memory}_mem_bw") == profile.device.dram_gb_per_s * 1e6
    assert all(getattr(each.storage, memory) >= topology.memory_cap_bytes[0] for each in told[-1].devices)
    [module] = plans[-1].plan.values()
    devices = {shard.placement.device() for each in module.values() for shard in each.sharding_spec.shards}
    assert {device.type for device in devices} == {device_type}
    assert all(device.index is None or device.index < per_host for device in devices)


@pytest.mark.parametrize(("pooled", "kinds"), [(True, {"table_wise"}), (False, {"row_wise"})])
def test_a_cpu_has_the_sharding_types_that_torchrec_has_there(pooled: bool, kinds: set[str]) -> None:
    """It lists row_wise for sequences alone; tables of bags stay whole where a GPU would have blocks of them."""
    tables = replace(plain([100_000] * 2, [64] * 2, [10.0, 1.0], Workload(256, "fp32", "sgd")), pooled=[pooled] * 2)
    agent = make_agent("torchrec", sharding_types="table_wise,row_wise", sort_by="perf")
    topology = hardware_profile("cpu").topology(2)
    plan = agent.plan(Task("task", tables, topology, splittable=True))
    assert {each.sharding_type for each in plan.tables} == kinds


def test_constraints_that_torchrec_knows_are_told_and_others_count_as_no_plan() -> None:
    tables = plain([4000, 1000, 1000], [1024, 64, 64], [3.0, 2.0, 2.0], Workload(1024, "fp32"))
    free = task(tables, 2)
    record = {
        "table_0": {"sharding_types": ["column_wise"], "min_partition": 512},
        "table_1": {"sharding_types": ["row_wise"]},
    }

    def constrained(**given: Any) -> Task:
        return replace(free, constraints=constraints_from_json(given, tables, 2))

    agent = make_agent("torchrec", min_partition=32)
    plan = agent.plan(constrained(tables=record))
    assert [sharding.sharding_type for sharding in plan.tables[:2]] == ["column_wise", "row_wise"]
    assert min(shard.num_columns for shard in plan.tables[0].shards) >= 512
    with pytest.raises(NoPlacementFoundError, match="must be whole on one device"):
        agent.plan(constrained(together=[["table_0", "table_1", "table_2"]]))


def test_kernels_that_constraints_leave_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}

    class Told(torchrec_calls.EmbeddingShardingPlanner):
        def plan(self, *given: Any, **named: Any) -> Any:
            told.update(self._constraints)
            return super().plan(*given, **named)

    monkeypatch.setattr(torchrec_calls, "EmbeddingShardingPlanner", Told)
    tables = plain([100_000] * 4, [16] * 4, [20.0, 5.0, 3.0, 1.0], Workload(256, "fp32"))
    kernels = {"table_0": ["fused"], "table_1": ["fused_uvm"], "table_2": ["fused_uvm_caching"]}
    record = {"tables": {name: {"compute_kernels": own} for name, own in kernels.items()}}
    free = tiered(tables, 2, 8_000_000, 24_000_000)
    make_agent("torchrec").plan(replace(free, constraints=constraints_from_json(record, tables, 2, host_memory=True)))
    assert {name: each.compute_kernels for name, each in told.items()} == {
        "table_0": ["fused", "dense"],
        "table_1": ["fused_uvm"],
        "table_2": ["fused_uvm_caching"],
        "table_3": ["fused", "dense", "fused_uvm", "fused_uvm_caching"],
    }
