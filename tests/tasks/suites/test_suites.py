"""The shipped suites: what their names promise, disjoint splits, solvable tasks, memory that matters."""

from __future__ import annotations

import re

import numpy as np
import pytest

from shard_gym.common.io.files import read_index, read_json
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.placement import memory_used
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.tables import Workload, load_pool
from shard_gym.tasks import Task, TaskSuite, load_suite, suite_info, suite_names
from shard_gym.tasks.suites import SPLITS, SuiteInfo
from shard_gym.tasks.suites.info import DATA

NAMES = [name for name in suite_names() if name not in suite_names("replanning")]
DLRM = {
    name: tuple(int(number) for number in match.groups())
    for name in NAMES
    if (match := re.fullmatch(r"dlrm-(\d+)x(\d+)", name))
}
SAMPLED = [*DLRM, *(name for name in NAMES if "mixdim-" in name or name == "generalize")]
MEASURED = suite_names("measured")
SPLIT = [name for name in NAMES if suite_info(name).problem == "sharding"]
TIERED = [name for name in suite_names() if name.startswith("tier-")]
CONSTRAINED = [name for name in NAMES if "constrained" in name]
WHOLE = [name for name in NAMES if name not in [*SAMPLED, *MEASURED] and list(suite_info(name).tasks) == ["test"]]


def splits(name: str) -> dict[str, TaskSuite]:
    return {split: load_suite(name, split) for split in suite_info(name).tasks}


def tasks_of(name: str) -> list[Task]:
    return [task for suite in splits(name).values() for task in suite]


# Every suite


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_says_what_it_is(name: str) -> None:
    info, parts = suite_info(name), splits(name)
    assert isinstance(info, SuiteInfo)
    for split, suite in parts.items():
        assert (suite.name, suite.split, suite.version) == (name, split, info.version)
        assert suite.sha256 == info.sha256 == read_index(DATA)[name]
        assert len(suite) == info.tasks[split]
        assert suite.description == info.description != ""
        assert [task.name for task in suite] == [f"{name}/{split}/{number}" for number in range(len(suite))]
    tables = [task.num_tables for task in tasks_of(name)]
    devices = [task.num_devices for task in tasks_of(name)]
    assert info.num_tables == (min(tables), max(tables))
    assert info.num_devices == (min(devices), max(devices))
    assert {(suite.max_tables, suite.max_devices) for suite in parts.values()} == {(max(tables), max(devices))}
    assert load_suite(name).split == "test"


# By kind


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sampled_suite_has_fifty_different_tasks_in_each_split(name: str) -> None:
    assert {split: len(suite) for split, suite in splits(name).items()} == dict.fromkeys(SPLITS, 50)
    for task in tasks_of(name):
        assert len(set(task.tables.names)) == task.num_tables  # drawn without replacement
    assert len({task.tables.names for task in tasks_of(name)}) == 100


@pytest.mark.parametrize("name", MEASURED)
def test_suites_to_be_measured_fit_a_machine(name: str) -> None:
    info = suite_info(name)
    kind, size = name.removeprefix("shard-").split("-")
    hardware, batch_size = {"cpu": ("cpu", 2_048), "gpu": ("h200-dgx", 65_536)}[kind]
    assert (info.track, info.hardware, dict(info.tasks)) == ("measured", hardware, {"train": 50, "test": 20})
    for task in tasks_of(name):
        assert f"{task.num_tables}x{task.num_devices}" == size
        assert batch_size % task.num_devices == 0  # so that blocks of rows can be executed
        assert task.tables.workload == Workload(batch_size, "fp32", "rowwise_adagrad")
        # A CPU holds all devices, a GPU one at a time. Plans may have replicas, which fill the memory caps.
        caps = task.topology.memory_cap_bytes
        held = caps if task.splittable else task.tables.memory_bytes
        assert (held.sum() if hardware == "cpu" else caps.max()) < (6.2 if hardware == "cpu" else 15) * 2**30
    pool = load_pool("dlrm-2021").tables
    task = load_suite(name)[0]
    rows = [pool.names.index(table) for table in task.tables.names]
    restated = pool.select(rows).at_batch_size(batch_size)
    assert np.array_equal(task.tables.distinct_rows, restated.distinct_rows)
    assert np.array_equal(task.tables.reuse_histogram, restated.reuse_histogram)


@pytest.mark.parametrize("name", DLRM)
def test_dlrm_suites_are_dreamshards_setting(name: str) -> None:
    for task in tasks_of(name):
        assert (task.num_tables, task.num_devices) == DLRM[name]
        assert set(task.tables.embedding_dim.tolist()) == {16}
        workload = task.tables.workload
        assert (workload.batch_size, workload.weight_dtype, workload.optimizer) == (65536, "fp16", "sgd")
        assert task.topology.device.name == "GeForce RTX 2080 Ti"
        assert len(set(task.topology.memory_cap_bytes.tolist())) == 1


@pytest.mark.parametrize(
    ("name", "low", "high", "devices", "hardware", "dtype"),
    [
        ("mixdim-4", 10, 60, 4, "a100-dgx", "fp32"),
        ("mixdim-8", 20, 120, 8, "a100-dgx", "fp32"),
        ("mixdim-v100-4", 10, 60, 4, "v100-nvlink", "fp32"),
        ("dlrm-mixdim-4", 20, 100, 4, "a100-dgx", "fp16"),
    ],
)
def test_mixdim_suites_are_neuroshards_setting(
    name: str, low: int, high: int, devices: int, hardware: str, dtype: str
) -> None:
    assert suite_info(name).hardware == hardware
    tasks = tasks_of(name)
    assert {task.num_devices for task in tasks} == {devices}
    sizes = [task.num_tables for task in tasks]
    assert low <= min(sizes) < low + (high - low) / 5
    assert high - (high - low) / 5 < max(sizes) <= high
    dims = np.concatenate([task.tables.embedding_dim for task in tasks])
    assert set(dims.tolist()) == {4, 8, 16, 32, 64, 128}
    assert np.unique(dims, return_counts=True)[1] == pytest.approx(np.full(6, len(dims) / 6), rel=0.15)
    assert {task.tables.workload for task in tasks} == {Workload(65_536, dtype, "sgd")}


def test_generalize_has_all_sizes() -> None:
    tasks = tasks_of("generalize")
    tables, devices = [task.num_tables for task in tasks], [task.num_devices for task in tasks]
    assert 10 <= min(tables) < 30
    assert 180 < max(tables) <= 200
    assert min(devices) == 2
    assert max(devices) == 16
    assert len(set(devices)) > 10
    assert any(task.num_devices > task.topology.devices_per_host for task in tasks)  # more than one host
    assert {dim for task in tasks for dim in task.tables.embedding_dim.tolist()} == {4, 8, 16, 32, 64, 128}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_model_is_one_task_with_all_tables_of_its_pool(name: str) -> None:
    """The column shards of a table have all its columns together."""
    (task,) = tasks_of(name)
    assert list(suite_info(name).tasks) == ["test"]
    assert task.num_devices == int(name.rpartition("-x")[2])
    pool = load_pool(suite_info(name).pool).tables
    widths: dict[str, int] = {}
    for table, dim in zip(task.tables.names, task.tables.embedding_dim.tolist(), strict=True):
        widths[table] = widths.get(table, 0) + dim
    assert widths == dict(zip(pool.names, pool.embedding_dim.tolist(), strict=True))


@pytest.mark.parametrize("name", CONSTRAINED)
def test_every_task_of_a_constrained_suite_has_constraints_of_the_kinds_that_people_have(name: str) -> None:
    """Pins to 1, 2 or 4 devices, sets together and apart; where tables may be split, sharding types and widths too."""
    pins, sets = set(), {"together": 0, "apart": 0}
    for task in tasks_of(name):
        limits = task.constraints
        assert limits is not None
        pinned = np.flatnonzero(~limits.devices.all(axis=1))
        assert len(pinned) == task.num_tables // 10
        for table in pinned.tolist():
            held = np.flatnonzero(limits.devices[table])
            assert held.tolist() == list(range(held[0], held[0] + len(held)))
            assert held[0] % len(held) == 0
            pins.add(len(held))
        assert len(limits.together) <= 2
        assert {len(each) for each in limits.together} <= {2, 3}
        assert len(limits.apart) <= 1
        assert all(2 <= len(each) <= 4 for each in limits.apart)
        for kind in sets:
            sets[kind] += len(getattr(limits, kind))
        members = [table for each in (*limits.together, *limits.apart) for table in each]
        assert len({*pinned.tolist(), *members}) == len(pinned) + len(members)  # a table has one of these
        if not task.splittable:
            assert task.known_placement is not None
            limits.require(task.known_placement, task.tables)  # so that there is an answer
            assert (limits.sharding_types.all(), limits.min_columns.any()) == (True, False)
            continue
        kinds = [
            tuple(kind for kind, yes in zip(SHARDING_TYPES, row, strict=True) if yes) for row in limits.sharding_types
        ]
        rows, copies, whole = (
            np.array([table for table in range(task.num_tables) if kinds[table] == only], np.int64)
            for only in ((ROW_WISE, TABLE_ROW_WISE), (DATA_PARALLEL,), (TABLE_WISE,))
        )
        narrow = np.flatnonzero(limits.min_columns)
        free = task.num_tables - len(pinned) - len(members)
        tenth = len(rows)
        assert tenth in (free // 10, (free - 1) // 10)  # one that is read most has no other on another device
        assert (len(copies), len(whole), len(narrow)) == (tenth, 2 * tenth, 2 * tenth)
        assert {int(limits.min_columns[table]) for table in narrow} <= {16, 32, 64}
        assert limits.sharding_types.all(axis=1).sum() == task.num_tables - 4 * tenth
        if tenth:
            size = task.tables.memory_bytes
            assert size[copies].max() <= np.median(size) <= size[rows].min()
    assert pins == {1, 2, 4}
    assert min(sets.values()) > 50


@pytest.mark.parametrize(
    ("name", "low", "high", "devices"), [("shard-128", 600, 1_200, 128), ("shard-512", 2_000, 4_000, 512)]
)
def test_large_suites_have_tables_of_the_pool_several_times(name: str, low: int, high: int, devices: int) -> None:
    """With dims of their own; answers and files stay small by few tasks."""
    tasks = tasks_of(name)
    assert {task.num_devices for task in tasks} == {devices}
    assert low <= min(task.num_tables for task in tasks) <= max(task.num_tables for task in tasks) <= high
    assert max(len(suite) for suite in splits(name).values()) <= 20
    for task in tasks:
        names = np.array(task.tables.names)
        assert len(set(names)) < task.num_tables
        assert len(set(zip(names, task.tables.embedding_dim.tolist(), strict=True))) > len(set(names))
        assert set(task.tables.embedding_dim.tolist()) == {4, 8, 16, 32, 64, 128}


# Splits


def test_no_table_of_a_pool_is_in_train_and_in_test_of_any_suite() -> None:
    """Across suites too: whoever trains on one and is tested on another meets no known table."""
    seen: dict[str, dict[str, set[int]]] = {}
    for name in [*SAMPLED, *MEASURED, *(name for name in SPLIT if "train" in suite_info(name).tasks)]:
        pool = seen.setdefault(suite_info(name).pool, {split: set() for split in SPLITS})
        for split, tasks in read_json(DATA / f"{name}.json")["splits"].items():
            pool[split].update(index for task in tasks for index in task["tables"])
    assert set(seen) == {"dlrm-2021", "dlrm-2022"}
    assert not set(seen) & {suite_info(name).pool for name in WHOLE}
    for pool_name, used in seen.items():
        assert used["train"] & used["test"] == set(), pool_name
        size = len(load_pool(pool_name).tables)
        assert all(len(used[split]) > 0.45 * size for split in SPLITS)  # nearly all of each half is used


# Memory


@pytest.mark.parametrize("name", [name for name in SPLIT if not name.startswith(("tier-", "inference-"))])
def test_tables_of_a_tenth_of_the_tasks_that_split_fit_no_device_whole(name: str) -> None:
    """Of sampled suites; whole models have all the memory of the devices, and need splits of one table at most."""
    tasks = tasks_of(name)
    assert all(task.topology.host is None for task in tasks)
    assert all(task.splittable for task in tasks)
    large = [(task.tables.memory_bytes > task.topology.memory_cap_bytes.max()).any() for task in tasks]
    if name in CONSTRAINED:
        assert not any(large)  # sharding types are what keeps some of their tables from being whole
    elif "train" in suite_info(name).tasks and not tasks[0].sync_every:
        assert sum(large) == sum(len(suite) // 10 for suite in splits(name).values())
        if re.fullmatch(r"shard-\d", name):
            filled = [task.tables.memory_bytes.sum() / task.topology.memory_cap_bytes.sum() for task in tasks]
            assert 0.4 < np.mean(filled) < 1.0
    else:
        assert all((task.topology.memory_cap_bytes == task.topology.device.memory_bytes).all() for task in tasks)


@pytest.mark.parametrize("name", TIERED)
def test_the_hbm_of_a_suite_with_host_memory_is_short_and_its_hosts_have_room(name: str) -> None:
    drawn = "train" in suite_info(name).tasks
    for task in tasks_of(name):
        topology = task.topology
        assert topology.host is not None
        share = topology.host.hbm_bytes * topology.num_devices / task.tables.memory_bytes.sum()
        assert (0.049 if drawn else 0.3) < share < (0.52 if drawn else 1.0)
        assert topology.host.hbm_bytes <= topology.device.memory_bytes
        assert topology.memory_cap_bytes.sum() > task.tables.memory_bytes.sum()
        assert task.tables.popularity is not None


@pytest.mark.parametrize("name", SAMPLED)
def test_memory_matters(name: str) -> None:
    """A placement that ignores the caps often breaks them, and still most of the memory is not needed."""
    rng = np.random.default_rng(0)
    broken = []
    for task in load_suite(name):
        placements = rng.integers(task.num_devices, size=(20, task.num_tables))
        caps = task.topology.memory_cap_bytes
        broken += [(memory_used(placement, task.tables, task.num_devices) > caps).any() for placement in placements]
        assert caps.sum() > task.tables.memory_bytes.sum()
    assert 0.05 < np.mean(broken) < 1.0
