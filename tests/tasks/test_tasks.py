"""Tasks, suites and samplers: what cannot be solved is refused by name, and what is drawn can be solved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidPlacementError,
    InvalidTaskError,
    ShardGymError,
    TableTooLargeError,
    UnknownNameError,
)
from shard_gym.hardware import hardware_profile
from shard_gym.plans.placement import check_placement, memory_used, pack_by_memory
from shard_gym.tables import Tables, load_pool
from shard_gym.tasks import Task, TaskSampler, TaskSource, TaskSuite, capped_task
from shard_gym.tasks.task import MIB

PROFILE = hardware_profile("a100-dgx")
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture
def tables(random_tables: Any) -> Tables:
    return random_tables(np.random.default_rng(0), 5)


@pytest.fixture(scope="module")
def pool(random_tables: Any) -> Tables:
    return random_tables(np.random.default_rng(1), 80)


# Task


def test_a_table_that_fits_no_device_is_named(tables: Tables) -> None:
    largest = int(tables.memory_bytes.argmax())
    needed = int(tables.memory_bytes[largest])
    caps = np.array([needed - 1, 10])
    says = (
        rf"Table {largest} \(table_{largest}\) of task 'x' needs {needed} bytes.*{needed - 1} bytes.*Raise memory_cap"
    )
    with pytest.raises(TableTooLargeError, match=says):
        Task("x", tables, PROFILE.topology(2, memory_cap_bytes=caps))


def test_a_table_that_fits_no_device_is_allowed_if_it_may_be_split_so_that_it_fits(tables: Tables) -> None:
    """On two devices halves fit; of 15 times four columns only blocks of rows do; at last a part of four columns."""
    wide = tables.select([0]).with_dims([64])
    needed = int(wide.memory_bytes[0])
    enough = PROFILE.topology(2, memory_cap_bytes=needed // 2)
    for dim in (64, 60):
        with pytest.raises(TableTooLargeError, match="splittable=True"):
            Task("x", wide.with_dims([dim]), enough)
        assert Task("x", wide.with_dims([dim]), enough, splittable=True).num_tables == 1
    uneven = PROFILE.topology(2, memory_cap_bytes=np.array([needed - 1, needed // 16 - 1]))
    with pytest.raises(TableTooLargeError, match="no split of it fits"):
        Task("x", wide, uneven, splittable=True)
    assert Task("x", wide, PROFILE.topology(2, memory_cap_bytes=[needed - 1, needed // 16]), splittable=True)
    with pytest.raises(InvalidTaskError, match="splittable of a Task must be a bool"):
        Task("x", wide, enough, splittable=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_column_shards_of_any_width_count_where_a_table_may_be_split(tables: Tables, optimizer: str) -> None:
    """Two small devices leave too little for blocks of rows, and states of rows too little for narrow shards."""
    odd = tables.select([0]).with_dims([100]).with_training(optimizer=optimizer)
    room = (odd.num_embeddings * odd.workload.row_bytes(np.array([44, 36, 20, 4, 4]))).astype(np.int64)
    room[3:] -= 1
    assert Task("x", odd, PROFILE.topology(5, memory_cap_bytes=room), splittable=True)
    for device in range(3):
        less = room - (np.arange(5) == device)
        with pytest.raises(TableTooLargeError, match="no split of it fits"):
            Task("x", odd, PROFILE.topology(5, memory_cap_bytes=less), splittable=True)


def test_tables_that_need_more_than_all_devices_have_are_refused(tables: Tables) -> None:
    largest, total = int(tables.memory_bytes.max()), int(tables.memory_bytes.sum())
    fits = np.array([largest, total - largest])
    assert Task("x", tables, PROFILE.topology(2, memory_cap_bytes=fits)).num_tables == 5
    says = "Task 'x' needs .* for 5 tables, but has .* on 2 devices. Add devices"
    with pytest.raises(InvalidTaskError, match=says) as error:
        Task("x", tables, PROFILE.topology(2, memory_cap_bytes=fits - np.array([0, 1])))
    assert not isinstance(error.value, TableTooLargeError)


@pytest.mark.parametrize("cap", [2**62, 2**63 - 1])
def test_a_cap_that_means_no_cap_does_not_overflow(tables: Tables, cap: int) -> None:
    task = Task("x", tables, PROFILE.topology(4, memory_cap_bytes=cap))
    assert (task.num_tables, task.num_devices) == (5, 4)
    assert check_placement(np.zeros(5, int), task.tables, task.topology).tolist() == [0] * 5


def test_a_known_placement_is_checked_and_kept_read_only(tables: Tables) -> None:
    with pytest.raises(InvalidPlacementError, match=r"shape \(5,\)"):
        Task("x", tables, PROFILE.topology(2), np.zeros(4, int))
    known = np.array([0, 1, 0, 1, 0])
    task = Task("x", tables, PROFILE.topology(2), known)
    known[0] = 1
    assert task.known_placement is not None
    assert task.known_placement.tolist() == [0, 1, 0, 1, 0]
    assert not task.known_placement.flags.writeable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 3}, "name of a Task must be a str, not 3"),
        ({"tables": load_pool("dlrm-2021")}, r"tables of a Task must be a Tables, not Pool\('dlrm-2021'"),
        ({"topology": "a100-dgx"}, "topology of a Task must be a Topology, not 'a100-dgx'"),
    ],
)
def test_a_task_of_other_things_is_refused(tables: Tables, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        Task(**{"name": "x", "tables": tables, "topology": PROFILE.topology(2), **arguments})


# TaskSuite


@pytest.fixture
def suite(tables: Tables) -> TaskSuite:
    return TaskSuite("s", [Task(f"s/{i}", tables.select(np.arange(i + 1)), PROFILE.topology(4 - i)) for i in range(4)])


def test_a_suite_is_an_ordered_list_with_names(suite: TaskSuite) -> None:
    assert len(suite) == 4
    assert [task.name for task in suite] == ["s/0", "s/1", "s/2", "s/3"]
    assert suite[2] is suite.task(2) is suite.task("s/2") is suite.task(np.int64(2))
    assert (suite.max_tables, suite.max_devices) == (4, 4)
    assert isinstance(suite, TaskSource)
    with pytest.raises(UnknownNameError, match=r"no task in 's' .*'s/22'. Did you mean 's/2'\?.* names like 's/0'"):
        suite.task("s/22")


def test_brackets_take_indices_and_names_and_refuse_others_by_name(suite: TaskSuite) -> None:
    assert suite[-1] is suite.tasks[-1]
    assert suite[suite[0].name] is suite[0]
    assert suite[:1] == suite.tasks[:1]
    for index in (99, -99):
        with pytest.raises(IndexError, match=f"there is no task {index}") as caught:
            suite[index]
        assert isinstance(caught.value, ShardGymError)
    key: Any
    for key in ("none", 1.5, None):
        with pytest.raises(ShardGymError, match=r"there is no task|There is no task"):
            suite[key]
    for key in (4, -1, 1.0, True, None):
        with pytest.raises(InvalidOptionError, match="tasks 0 to 3; there is no task "):
            suite.task(key)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda tasks: [1, 2], "tasks of suite 'x' must be a list of Tasks.*got 1"),
        (lambda tasks: 5, "got 5"),
        (lambda tasks: tasks[0], r"a list of Tasks, such as \[task\]; got Task\('s/0'"),
        (lambda tasks: (), "'x' has no tasks"),
        (lambda tasks: (tasks[0], tasks[0]), "two tasks of the same name"),
    ],
)
def test_a_suite_of_other_things_is_refused(suite: TaskSuite, choose: Any, message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        TaskSuite("x", choose(suite.tasks))
    assert TaskSuite("x", suite).tasks == suite.tasks  # type: ignore[arg-type]


def test_padding_is_never_below_the_tasks_own_sizes(suite: TaskSuite) -> None:
    for padding, expected in (((9, 3), (9, 4)), ((3, 9), (4, 9)), ((9, 9), (9, 9))):
        padded = TaskSuite("s", suite.tasks, padding=padding)
        assert (padded.max_tables, padded.max_devices) == expected


def test_a_suite_samples_every_task_equally_often(suite: TaskSuite) -> None:
    rng = np.random.default_rng(0)
    names = [suite.sample(rng).name for _ in range(4000)]
    assert all(names.count(f"s/{i}") == pytest.approx(1000, abs=120) for i in range(4))


# Packing and caps


@given(seed=SEEDS, slack=st.floats(1.01, 3.0))
def test_caps_follow_the_tables(random_tables: Any, seed: int, slack: float) -> None:
    """The known placement packs the largest table first, each on the emptiest device."""
    rng = np.random.default_rng(seed)
    tables, count = random_tables(rng, int(rng.integers(3, 20))), int(rng.integers(1, 4))
    task = capped_task("x", tables, count, PROFILE, slack)
    placement, used, needed = pack_by_memory(tables, count), [0] * count, tables.memory_bytes.tolist()
    for table in sorted(range(len(tables)), key=lambda t: -needed[t]):
        assert placement[table] == used.index(min(used))
        used[placement[table]] += needed[table]
    packed = int(memory_used(placement, tables, count).max())
    (cap,) = set(task.topology.memory_cap_bytes.tolist())
    assert cap % MIB == 0
    assert slack * packed - 1 <= cap < slack * packed + MIB
    assert np.array_equal(task.known_placement, placement)


def test_tables_the_devices_cannot_hold_are_refused(tables: Tables) -> None:
    bins = np.eye(17)[[0]]
    big = Tables([2**28], [64], [1.0], [1.0], bins, bins, tables.workload).select([0, 0, 0])  # 32 GiB each
    with pytest.raises(InvalidTaskError, match=r"No placement was found for task 'x': 3 tables with 96\.00 GiB on 1 x"):
        capped_task("x", big, 1, PROFILE, 1.4)
    assert capped_task("x", big, 2, PROFILE, 1.4).topology.memory_cap_bytes.tolist() == [80 * 2**30] * 2


# TaskSampler


@given(seed=SEEDS)
def test_every_sampled_task_lies_in_the_ranges_and_can_be_solved(pool: Tables, seed: int) -> None:
    sampler = TaskSampler(pool, (4, 30), (2, 6), embedding_dims=(8, 128), memory_slack=1.3, name="mine")
    task = sampler.sample(np.random.default_rng(seed))
    assert 4 <= task.num_tables <= 30 == sampler.max_tables
    assert 2 <= task.num_devices <= min(6, task.num_tables)
    assert sampler.max_devices == 6
    assert set(task.tables.embedding_dim.tolist()) <= {8, 128}
    assert len(set(task.tables.names)) == task.num_tables  # without replacement
    assert task.name.startswith("mine-")
    assert task.known_placement is not None
    check_placement(task.known_placement, task.tables, task.topology)


def test_samples_repeat_with_their_generator_and_differ_otherwise(pool: Tables) -> None:
    sampler = TaskSampler(pool, (5, 9), (2, 3))

    def sampled(seed: int) -> list[Any]:
        rng = np.random.default_rng(seed)
        return [(t.name, t.tables.names, t.num_devices) for t in (sampler.sample(rng) for _ in range(20))]

    assert sampled(0) == sampled(0)
    assert sampled(0) != sampled(1)
    assert len({name for name, *_ in sampled(0)}) == 20
    assert {len(names) for _, names, _ in sampled(0)} == {5, 6, 7, 8, 9}
    shipped = load_pool("dlrm-2021")
    samplers = [
        TaskSampler(each, (5, 9), (2, 3), embedding_dims=np.array([4, 64])) for each in (shipped, shipped.tables)
    ]
    one, other = (each.sample(np.random.default_rng(0)).tables for each in samplers)
    assert one.names == other.names


@given(seed=SEEDS)
def test_a_sampler_draws_hbm_and_as_much_host_memory_as_the_tables_need(pool: Tables, seed: int) -> None:
    sampler = TaskSampler(pool, (5, 30), (2, 6), memory_slack=1.3, hbm_share=(0.1, 0.4))
    task = sampler.sample(np.random.default_rng(seed))
    assert sampler.host_memory
    assert not TaskSampler(pool, (5, 30), (2, 6)).host_memory
    assert task.topology.host is not None
    assert task.known_placement is not None
    even, hbm = task.tables.memory_bytes.sum() / task.num_devices, task.topology.host.hbm_bytes
    assert 0.1 * even - 1 <= hbm <= 0.4 * even + MIB
    assert hbm % MIB == 0
    known = memory_used(task.known_placement, task.tables, task.num_devices).max()
    assert max(1.3 * known - 1, hbm) <= task.topology.memory_cap_bytes.max() <= max(1.3 * known + MIB, hbm)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_tables": (0, 5)}, InvalidTaskError, r"num_tables.*1 <= smallest.*got \(0, 5\)"),
        ({"num_devices": (2, 3.0)}, InvalidTaskError, "num_devices .*two integers"),
        ({"embedding_dims": 16}, InvalidTaskError, r"such as \(16, 32\), not 16"),
        ({"num_tables": (5, 81)}, InvalidTaskError, r"<= 80, the tables of the pool; got \(5, 81\)"),
        ({"num_devices": (3, 2)}, InvalidTaskError, r"num_devices of a TaskSampler.*got \(3, 2\)"),
        ({"memory_slack": 1.0}, InvalidTaskError, "memory_slack must be a number above 1, not 1.0"),
        ({"num_tables": 10}, InvalidTaskError, r"num_tables .*two integers.*not 10\..*such as \(8, 8\)"),
        ({"pool": "dlrm-2021"}, InvalidTaskError, r"Tables or a Pool, such as load_pool.*, not 'dlrm-2021'"),
        ({"profile": "a100"}, UnknownNameError, "Did you mean 'a100-dgx'"),
        ({"profile": None}, InvalidOptionError, "profile must be a HardwareProfile or the name of one.*not None"),
        ({"embedding_dims": (6,)}, InvalidTaskError, r"embedding_dims .*multiples of 4.*not \(6,\)"),
        ({"embedding_dims": [[4], [4, 8]]}, InvalidTaskError, "not \\[\\[4"),
        ({"hbm_share": 0.5}, InvalidTaskError, r"hbm_share .*such as \(0.05, 0.5\), not 0.5"),
        ({"hbm_share": (0.5, 0.05)}, InvalidTaskError, r"\(smallest, largest\) shares above 0.*not \(0.5, 0.05\)"),
        ({"hbm_share": (0.0, 0.5)}, InvalidTaskError, "hbm_share of a TaskSampler must be"),
        ({"hbm_share": (0.1, 0.2), "profile": "cpu"}, InvalidOptionError, "'cpu' has no host memory for tables"),
    ],
)
def test_a_sampler_that_makes_no_sense_is_refused(
    pool: Tables, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        TaskSampler(**{"pool": pool, "num_tables": (5, 9), "num_devices": (2, 3), **arguments})
