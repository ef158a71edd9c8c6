"""Constraints: what plans they forbid, their files, and what no task can have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidPlacementError,
    InvalidPlanError,
    StatesExceedHbmError,
    UnknownNameError,
)
from shard_gym.hardware import HostMemory, hardware_profile
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_row_wise, table_wise
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.constraints_json import as_constraints, constraints_from_json, constraints_from_numbers
from shard_gym.plans.plan import SHARDING_TYPES, plan_of_placement
from shard_gym.tables import Tables, Workload
from shard_gym.tables.tables import ANYWHERE, CACHED, IN_HBM, IN_HOST
from shard_gym.tasks import Task, problem_of

TABLES = Tables.from_zipf(
    num_embeddings=np.full(6, 1_000),
    embedding_dim=np.full(6, 64),
    pooling_factor=np.full(6, 4.0),
    workload=Workload(1024),
    exponent=np.ones(6),
    names=("a", "b", "c", "d", "e", "f"),
)
TOPOLOGY = hardware_profile("a100-dgx").topology(4, devices_per_host=2)
NONE = Constraints.none(6, 4)
WHOLE = [table_wise(TABLES, table, table % 4) for table in range(6)]  # a 0, b 1, c 2, d 3, e 0, f 1


def _plan(**others: Any) -> ShardingPlan:
    """The plan of `WHOLE` but for some tables, by name."""
    return ShardingPlan(tuple(others.get(name, WHOLE[n]) for n, name in enumerate(TABLES.names)))


def _read(**record: Any) -> Constraints:
    return constraints_from_json(record, TABLES, 4)


@pytest.mark.parametrize(
    ("record", "kept", "broken", "says"),
    [
        (
            {"tables": {"a": {"sharding_types": ["row_wise"]}}},
            {"a": row_wise(TABLES, 0, TOPOLOGY)},
            {},
            "Table 'a' is table_wise, but may be row_wise only.",
        ),
        (
            {"tables": {"a": {"sharding_types": ["column_wise"]}}},  # a whole table is one column shard
            {},
            {"a": data_parallel(TABLES, 0, TOPOLOGY)},
            "Table 'a' is data_parallel, but may be column_wise only.",
        ),
        (
            {"tables": {"b": {"min_partition": 32}}},
            {"b": column_wise(TABLES, 1, [0, 1])},
            {"b": column_wise(TABLES, 1, [0, 1, 2, 3])},
            "A shard of table 'b' has 16 columns, but none may have below 32.",
        ),
        (
            {"tables": {"c": {"devices": [2, 3]}}},
            {"c": table_row_wise(TABLES, 2, TOPOLOGY, 1)},
            {"c": table_row_wise(TABLES, 2, TOPOLOGY, 0)},
            "Table 'c' is on device 0, but it may be on devices 2, 3 only.",
        ),
        (
            {"together": [["a", "e"]]},
            {},
            {"e": table_wise(TABLES, 4, 1)},
            "Tables 'a', 'e' must be whole on one device",
        ),
        ({"together": [["a", "e"]]}, {}, {"a": column_wise(TABLES, 0, [0, 0])}, "must be whole on one device"),
        (
            {"apart": [["a", "b"]]},
            {"a": column_wise(TABLES, 0, [0, 2])},
            {"a": column_wise(TABLES, 0, [0, 1])},
            "Tables 'a' and 'b' are both on device 1, but must be apart.",
        ),
        ({"apart": [["a", "b"]]}, {}, {"a": row_wise(TABLES, 0, TOPOLOGY)}, "are both on device 1, but must be apart."),
    ],
)
def test_a_plan_that_breaks_a_constraint_is_told_which(
    record: dict[str, Any], kept: dict[str, Any], broken: dict[str, Any], says: str
) -> None:
    limits = _read(**record)
    assert limits.problem_of(_plan(**kept), TABLES) == ""
    task = Task("t", TABLES, TOPOLOGY, splittable=True, constraints=limits)
    problem = problem_of(task)
    problem.checked(_plan(**kept), task)
    with pytest.raises(InvalidPlanError, match=re.escape(says)):
        problem.checked(_plan(**broken), task)
    with pytest.raises(InvalidPlanError, match=re.escape(says)):  # entries of leaderboards are read this way
        problem.from_json(problem.to_json(_plan(**broken)), task)
    problem.checked(_plan(**broken), replace(task, constraints=None))


def test_placements_are_checked_as_plans_of_whole_tables() -> None:
    task = Task("t", TABLES, TOPOLOGY, constraints=_read(apart=[["a", "b"]]))
    problem = problem_of(task)
    good, bad = np.array([0, 1, 0, 0, 0, 0]), np.zeros(6, np.int64)
    assert np.array_equal(problem.checked(good, task), good)
    for read in (problem.checked, problem.from_json):
        with pytest.raises(InvalidPlacementError, match="both on device 0, but must be apart"):
            read(bad.tolist(), task)


def test_constraints_survive_their_files(tmp_path: Path) -> None:
    record = {
        "tables": {
            "a": {"sharding_types": ["row_wise", "data_parallel"]},
            "b": {"min_partition": 16, "devices": [1, 3]},
        },
        "together": [["c", "d"]],
        "apart": [["b", "e", "f"]],
    }
    limits = _read(**record)
    assert limits.to_json(TABLES) == record
    path = tmp_path / "constraints.json"
    path.write_text(json.dumps(record))
    others = [
        as_constraints(path, TABLES, 4),
        as_constraints(limits, TABLES, 4),
        constraints_from_numbers(json.loads(json.dumps(limits.to_numbers()))),
    ]
    for other in others:
        assert other.to_json(TABLES) == record
        assert other.to_numbers() == limits.to_numbers()


def test_patterns_name_many_tables_and_a_name_comes_first() -> None:
    limits = _read(tables={"b": {"min_partition": 0}, "*": {"min_partition": 16}, "?": {"devices": [0]}})
    assert limits.min_columns.tolist() == [16, 0, 16, 16, 16, 16]
    assert (limits.devices == np.array([True, False, False, False])).all()
    with pytest.raises(UnknownNameError, match="no table named"):
        _read(tables={"[ab]*": {"min_partition": 16}})  # no pattern of brackets


def test_kernels_keep_tables_in_hbm_or_leave_them_free() -> None:
    assert _read(tables={"a": {"compute_kernels": ["fused", "fused_uvm", "dense"]}}).to_json(TABLES) == {}
    no_replicas = ["table_wise", "column_wise", "row_wise", "table_row_wise"]
    fused = {"tables": {"a": {"sharding_types": no_replicas, "compute_kernels": ["fused"]}}}
    assert _read(tables={"a": {"compute_kernels": ["fused"]}}).to_json(TABLES) == fused  # replicas are dense
    for limits in (_read(**fused), constraints_from_numbers(_read(**fused).to_numbers())):
        assert limits.in_hbm == (0,)
        assert limits.to_json(TABLES) == fused
        assert limits.num_constrained == 1
    dense = {"tables": {"a": {"sharding_types": ["data_parallel"], "compute_kernels": ["dense"]}}}
    assert _read(tables={"a": {"compute_kernels": ["dense"]}}).to_json(TABLES) == dense
    assert _read(**dense).to_json(TABLES) == dense
    both = _read(tables={"*": {"compute_kernels": ["dense"]}, "a": {"compute_kernels": ["fused", "dense"]}})
    assert both.sharding_types.sum(axis=1).tolist() == [5, 1, 1, 1, 1, 1]  # its own name comes first
    uvm = {"tables": {"a": {"compute_kernels": ["fused_uvm_caching"]}}}
    with pytest.raises(InvalidConstraintsError, match="keeps rows in host memory, and these devices have none"):
        _read(**uvm)


@pytest.mark.parametrize(
    ("types", "host_memory", "in_host", "replicas", "others"),
    [
        (None, True, (0,), False, True),
        (None, False, (), True, False),
        (["data_parallel"], True, (), True, False),
        (["row_wise"], True, (0,), False, True),
    ],
)
def test_beside_kernels_of_host_memory_alone_dense_keeps_no_sharded_table_in_hbm(
    types: list[str] | None, host_memory: bool, in_host: tuple[int, ...], replicas: bool, others: bool
) -> None:
    """A plan with the table sharded and in HBM would have the kernel fused, which was not asked for."""
    own = {"compute_kernels": ["fused_uvm", "dense"]} | ({} if types is None else {"sharding_types": types})
    limits = constraints_from_json({"tables": {"a": own}}, TABLES, 4, host_memory=host_memory)
    assert limits.in_host == in_host
    assert limits.in_hbm == (() if in_host else (0,))
    may = dict(zip(SHARDING_TYPES, limits.sharding_types[0].tolist(), strict=True))
    assert may.pop("data_parallel") is replicas
    assert any(may.values()) is others
    own = {"compute_kernels": ["fused_uvm", "dense"], "sharding_types": ["row_wise"]}
    with pytest.raises(InvalidConstraintsError, match="'a' may have the kernel fused_uvm only, which keeps rows"):
        constraints_from_json({"tables": {"a": own}}, TABLES, 4)


def test_kernels_say_in_which_memory_the_rows_of_a_task_are() -> None:
    kernels = {
        **{"a": ["fused"], "b": ["fused_uvm"], "c": ["fused_uvm_caching"], "d": ["quant_uvm", "fused_uvm_caching"]},
        "e": ["fused", "fused_uvm"],
    }
    record = {"tables": {name: {"compute_kernels": own} for name, own in kernels.items()}}
    limits = constraints_from_json(record, TABLES, 4, host_memory=True)
    assert (limits.in_hbm, limits.in_host, limits.cached) == ((0,), (1,), (2, 3))
    assert limits.num_constrained == 5  # replicas of the last one have a kernel of their own
    again = constraints_from_json(limits.to_json(TABLES), TABLES, 4, host_memory=True)
    for other in (again, constraints_from_numbers(limits.to_numbers())):
        assert other.to_numbers() == limits.to_numbers()
        assert (other.in_hbm, other.in_host, other.cached) == ((0,), (1,), (2, 3))
    host = replace(TOPOLOGY, host=HostMemory(2**17, 16.0, 20.0))
    task = Task("t", TABLES, host, constraints=limits)
    assert task.tables.rows_in is not None
    assert task.tables.rows_in.tolist() == [IN_HBM, IN_HOST, CACHED, CACHED, ANYWHERE, ANYWHERE]
    assert Task("t", TABLES, host).tables.rows_in is None
    with pytest.raises(InvalidConstraintsError, match="'b' of task 't' must have rows in host memory, and its devices"):
        Task("t", TABLES, TOPOLOGY, constraints=limits)
    small = replace(host, host=HostMemory(2**16, 16.0, 20.0))  # half a table
    with pytest.raises(
        InvalidConstraintsError,
        match=r"'a' of task 't' may be .* which no device has HBM for. Allow compute kernels of host memory",
    ):
        Task("t", TABLES, small, constraints=limits)
    every = replace(limits, in_hbm=(0, 1, 2, 3, 4), in_host=(), cached=())
    Task("t", TABLES, replace(host, host=HostMemory(160_000, 16.0, 20.0)), constraints=every)
    with pytest.raises(InvalidConstraintsError, match=r"in HBM need 0\.61 MiB, but tables may take 0\.51 MiB of it"):
        Task("t", TABLES, replace(host, host=HostMemory(134_000, 16.0, 20.0)), constraints=every)
    dense = {"tables": {name: {"compute_kernels": ["dense"]} for name in "abc"}}
    copies = constraints_from_json(dense, TABLES, 4, host_memory=True)
    with pytest.raises(InvalidConstraintsError, match=r"in HBM need 1\.46 MiB, but tables may take 1\.22 MiB of it"):
        Task("t", TABLES, replace(host, host=HostMemory(320_000, 16.0, 20.0)), splittable=True, constraints=copies)
    with pytest.raises(InvalidConstraintsError, match="Table 1 is in two of in_hbm, in_host, cached"):
        replace(limits, cached=(1, 2))


def test_tables_that_are_kept_must_fit_the_memory_that_they_are_kept_in() -> None:
    """Each has 128,000 bytes; a device has room for two in HBM and for three in its part of the host's memory."""
    size = int(TABLES.memory_bytes[0])
    host = replace(TOPOLOGY, host=HostMemory(2 * size, 16.0, 20.0)).with_caps(np.full(4, 5 * size))
    for kernel, most, says in (("fused", 2, "must be in its HBM"), ("fused_uvm", 3, "must be in host memory")):
        record = {"tables": {"*": {"compute_kernels": [kernel]}}}
        limits = constraints_from_json(record, TABLES, 4, host_memory=True)
        task = Task("t", TABLES, host, splittable=True, constraints=limits)
        problem = problem_of(task)
        fits, over = (np.array([0] * some + [1, 2, 3, 1, 2, 3])[:6] for some in (most, most + 1))
        for check, answers in (
            (problem.checked, [plan_of_placement(each, TABLES) for each in (fits, over)]),
            (problem_of(replace(task, splittable=False)).checked, [fits, over]),
        ):
            check(answers[0], task)
            with pytest.raises(StatesExceedHbmError, match=says):
                check(answers[1], task)
    of_two = replace(host.host, total_bytes=4 * size)
    shared = replace(host.with_caps(np.full(4, 4 * size)), host=of_two)
    task = Task("t", TABLES, shared, splittable=True, constraints=limits)
    problem_of(task).checked(plan_of_placement(np.array([0, 0, 0, 0, 2, 2]), TABLES), task)
    with pytest.raises(StatesExceedHbmError, match=says):
        problem_of(task).checked(plan_of_placement(np.array([0, 0, 0, 2, 1, 1]), TABLES), task)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ([], "Constraints are an object with the keys tables, together, apart"),
        ({"table": {}}, "got ['table']"),
        ({"tables": []}, "tables must map names to constraints"),
        ({"tables": {"z": {}}}, "There is no table named 'z'"),
        ({"tables": {"z*": {}}}, "There is no table named 'z*'"),
        ({"tables": {"a": []}}, "A table's constraints have the keys"),
        ({"tables": {"a": {"pinned": [0]}}}, "'a' has ['pinned']"),
        ({"tables": {"a": {"sharding_types": "row_wise"}}}, "must be a list of sharding types"),
        ({"tables": {"a": {"sharding_types": []}}}, "must be a list of sharding types"),
        ({"tables": {"a": {"sharding_types": ["rowwise"]}}}, "There is no sharding type of 'a' named 'rowwise'"),
        ({"tables": {"a": {"sharding_types": ["grid_shard"]}}}, "may be grid_shard only, which no search"),
        ({"tables": {"a": {"min_partition": 1.5}}}, "must be an integer"),
        ({"tables": {"a": {"min_partition": -4}}}, "must be an integer"),
        ({"tables": {"a": {"devices": []}}}, "must be a list of device numbers"),
        ({"tables": {"a": {"devices": [4]}}}, "must be numbers from 0 to 3"),
        ({"tables": {"a": {"devices": [True]}}}, "must be numbers from 0 to 3"),
        (
            {"tables": {"a": {"compute_kernels": ["key_value"]}}},
            "There is no compute kernel of 'a' that ShardGym models",
        ),
        ({"tables": {"a": {"compute_kernels": ["dense"], "sharding_types": ["row_wise"]}}}, "Allow another kernel"),
        (
            {"tables": {"a": {"compute_kernels": ["fused"], "sharding_types": ["data_parallel"]}}},
            "kernel of data_parallel",
        ),
        ({"tables": {"*": {"compute_kernels": ["dense"]}, "a": {"sharding_types": ["row_wise"]}}}, "'a' may have the"),
        ({"tables": {"a": {1: 1, "b": 2}}}, "'a' has [1, 'b']"),
        ({1: 2, "x": 3}, "got [1, 'x']"),
        ({"tables": {"a": {"devices": [True, 0]}}}, "must be numbers from 0 to 3"),
        ({"together": "ab"}, "together must be a list of lists of names"),
        ({"together": [["a"]]}, "Each set in together names two or more different tables; ['a'] does not"),
        ({"apart": [["a", 3]]}, "A table is named by a text"),
        ({"together": [["a", "b"], ["b", "c"]]}, "Table 'b' is in two sets of together"),
        ({"together": [["a", "b"]], "apart": [["b", "a"]]}, "Tables 'a' and 'b' cannot be both together and apart"),
    ],
)
def test_a_record_that_is_none_is_a_sentence(record: Any, says: str) -> None:
    with pytest.raises((InvalidConstraintsError, UnknownNameError), match=re.escape(says)):
        constraints_from_json(record, TABLES, 4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"devices": np.zeros((6, 4), np.bool_)}, "Table 0 may have no device"),
        ({"sharding_types": np.zeros((6, 5), np.bool_)}, "Table 0 may have no sharding type"),
        ({"sharding_types": np.ones((6, 4), np.bool_)}, "sharding_types of Constraints must be truth values"),
        ({"devices": np.ones((6, 4))}, "devices of Constraints must be truth values"),
        ({"min_columns": np.full(6, -1)}, "must not be negative"),
        ({"together": ((0, 9),)}, "different tables of 0 to 5"),
        ({"apart": (0, 1)}, "must be lists of table numbers"),
        ({"least_bytes": np.zeros((6, 5), np.int64)}, "least_bytes of Constraints must be integers"),
    ],
)
def test_impossible_fields_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConstraintsError, match=re.escape(says)):
        replace(NONE, **changes)


@pytest.mark.parametrize(
    ("record", "splittable", "says"),
    [
        ({"tables": {"a": {"sharding_types": ["row_wise"]}}}, False, "may be row_wise only, but must be whole"),
        (
            {"tables": {"a": {"sharding_types": ["row_wise"], "devices": [0]}}},
            True,
            "on device 0 only, and has no such",
        ),
        ({"tables": {"a": {"sharding_types": ["row_wise"]}}, "apart": [["a", "b"]]}, True, "and has no such form"),
        ({"together": [["a", "b"]], "tables": {"a": {"sharding_types": ["row_wise"]}}}, True, "and has no such form"),
        (
            {"together": [["a", "b"]], "tables": {"a": {"devices": [0]}, "b": {"devices": [1]}}},
            True,
            "there is none that",
        ),
        ({"apart": [list("abcde")]}, True, "too few devices"),
        (
            {"apart": [["a", "c"]], "together": [["a", "b"]], "tables": {name: {"devices": [0]} for name in "bc"}},
            False,
            "device 0. Table 'a' stays together with 'b'.",
        ),
        ({"apart": [["a", "b"]], "tables": {"?": {"devices": [0]}}}, False, "may be on: device 0."),
        (
            {"apart": [list("abcd")], "tables": {name: {"devices": [0, 3]} for name in "abc"}},
            True,
            "Tables 'a', 'b', 'c' must be apart, but there are too few devices that they may be on: devices 0, 3.",
        ),
    ],
)
def test_a_task_refuses_what_no_answer_can_meet(record: dict[str, Any], splittable: bool, says: str) -> None:
    with pytest.raises(InvalidConstraintsError, match=re.escape(says)):
        Task("t", TABLES, TOPOLOGY, splittable=splittable, constraints=_read(**record))


@given(data=st.data())
def test_tables_are_crowded_if_and_only_if_they_cannot_all_have_devices_of_their_own(data: st.DataObject) -> None:
    devices = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=4, max_size=4).filter(any), min_size=6, max_size=6))
    )
    limits = replace(
        NONE, devices=devices, apart=((0, 2, 4, 5),), together=((0, 1),) if (devices[0] & devices[1]).any() else ()
    )
    open_to = devices[[0, 2, 4, 5]]
    if limits.together:
        open_to[0] &= devices[1]
    possible = any(open_to[range(4), list(order)].all() for order in permutations(range(4)))
    crowd = limits.crowded()
    assert (crowd is None) == possible
    if crowd is not None:
        tables, on = crowd
        assert len(tables) > len(on)
        assert set(np.flatnonzero(open_to[[(0, 2, 4, 5).index(table) for table in tables]].any(axis=0))) == set(on)


def test_a_task_refuses_tables_that_fit_no_permitted_device() -> None:
    caps = np.array([2**30, 1000, 1000, 1000])
    small = replace(TOPOLOGY, memory_cap_bytes=caps)
    with pytest.raises(InvalidConstraintsError, match="which no device has memory for"):
        Task("t", TABLES, small, constraints=_read(tables={"a": {"devices": [1]}}))
    with pytest.raises(InvalidConstraintsError, match="constraints are of 6 and 4"):
        Task("t", TABLES.select([0, 1]), TOPOLOGY, constraints=NONE)
    known = np.zeros(6, np.int64)
    with pytest.raises(InvalidPlanError, match="must be apart"):
        Task("t", TABLES, TOPOLOGY, known, constraints=_read(apart=[["a", "b"]]))


def test_other_numbers_of_devices_keep_what_names_no_device() -> None:
    limits = _read(tables={"a": {"min_partition": 16}}, apart=[["c", "d"]])
    assert limits.on(8).num_devices == 8
    assert limits.on(8).to_json(TABLES) == limits.to_json(TABLES)
    with pytest.raises(InvalidConstraintsError, match="on device 1 only, of 4; of 8 others may hold it"):
        _read(tables={"a": {"devices": [1]}}).on(8)


def test_a_plan_for_groups_keeps_to_devices_on_all_replicas() -> None:
    limits = _read(tables={"a": {"devices": [0, 2, 3]}})
    assert limits.on_replicas(np.array([[0, 1], [2, 3]])).devices[0].tolist() == [True, False]
    with pytest.raises(InvalidConstraintsError, match="on no device of every one of 2 groups"):
        _read(tables={"a": {"devices": [0]}}).on_replicas(np.array([[0, 1], [2, 3]]))


def test_random_plans_are_judged_as_by_looking_at_every_shard(
    random_task: Callable[..., Task], random_constraints: Callable[..., Constraints], random_plan: Callable[..., Any]
) -> None:
    rng, judged = np.random.default_rng(0), []
    for _ in range(150):
        task = random_task(rng, 2, 4, devices_per_host=2)
        limits = random_constraints(rng, task, types=True)
        plan = random_plan(rng, task.tables, task.topology)
        judged.append(limits.problem_of(plan, task.tables) == "")
        assert judged[-1] == _obeys(plan, limits, task.tables)
    assert 5 < sum(judged) < 145  # both happen


def _obeys(plan: ShardingPlan, limits: Constraints, tables: Tables) -> bool:
    kinds = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
    held: dict[int, set[int]] = {}
    for table, sharding in enumerate(plan.tables):
        held[table] = {shard.device for shard in sharding.shards}
        names = {sharding.sharding_type}
        if names <= {"table_wise", "column_wise"} and len(sharding.shards) == 1:
            names = {"table_wise", "column_wise"}
        if not any(limits.sharding_types[table, kinds.index(name)] for name in names):
            return False
        for shard in sharding.shards:
            least = min(int(limits.min_columns[table]), int(tables.embedding_dim[table]))
            if not limits.devices[table, shard.device] or shard.num_columns < least:
                return False
    for tables_together in limits.together:
        if any(len(plan.tables[table].shards) > 1 for table in tables_together):
            return False
        if len({frozenset(held[table]) for table in tables_together}) > 1:
            return False
    return not any(
        held[one] & held[other]
        for tables_apart in limits.apart
        for one in tables_apart
        for other in tables_apart
        if one < other
    )
