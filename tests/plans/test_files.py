"""Plans as JSON and as files: the same plan comes back, and what was changed is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import DamagedFileError, InvalidPlanError, MemoryExceededError, UnwritablePathError
from shard_gym.hardware import hardware_profile
from shard_gym.plans import plan_from_json, plan_of_placement, plan_to_json, read_plan, write_plan
from shard_gym.plans.files import distinct_names, shardings_from_json, shardings_to_json

TOPOLOGY = hardware_profile("a100-dgx").topology(4, devices_per_host=2)


@given(seed=st.integers(0, 2**32 - 1))
def test_every_plan_survives_json(random_tables: Any, random_plan: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 5)
    plan = random_plan(rng, tables, TOPOLOGY)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan, tables))), tables, TOPOLOGY) == plan


def test_a_file_comes_back_or_names_what_was_changed(tmp_path: Path, random_tables: Any, random_plan: Any) -> None:
    rng = np.random.default_rng(0)
    tables = random_tables(rng, 4)
    plan, path = random_plan(rng, tables, TOPOLOGY), tmp_path / "folder" / "plan.json"
    write_plan(str(path), plan, tables)
    assert read_plan(path, tables, TOPOLOGY) == read_plan(str(path), tables, TOPOLOGY) == plan
    content = json.loads(path.read_text())
    changed = copy.deepcopy(content)
    changed["plan"][0]["shards"][0][0] ^= 1
    for record, says in (
        (changed, "SHA-256"),
        ({**content, "schema": "shard-gym plan 2"}, "update shard-gym"),
        ({**content, "more": 2}, "unknown key 'more'"),
        (content["plan"], "must be an object"),
    ):
        path.write_text(json.dumps(record))
        with pytest.raises(DamagedFileError, match=says):
            read_plan(path, tables, TOPOLOGY)
    path.write_bytes(b"{")
    with pytest.raises(DamagedFileError, match="not readable JSON"):
        read_plan(path, tables, TOPOLOGY)
    with pytest.raises(UnwritablePathError):
        write_plan(tmp_path, plan, tables)


@given(st.lists(st.sampled_from(["a", "b", "a (2)", "a (3)"]), max_size=8))
def test_keys_of_tables_are_their_names_where_these_differ(names: list[str]) -> None:
    keys = distinct_names(names)
    assert len(set(keys)) == len(names)
    assert all(key == name or key.startswith(f"{name} (") for key, name in zip(keys, names, strict=True))
    assert all(keys[names.index(name)] == name for name in set(names))


def test_a_plan_for_other_devices_or_tables_is_refused(tmp_path: Path, random_tables: Any) -> None:
    rng = np.random.default_rng(0)
    tables, others = random_tables(rng, 3), random_tables(rng, 4)
    path = tmp_path / "plan.json"
    write_plan(path, plan_of_placement([0, 3, 3], tables), tables)
    with pytest.raises(InvalidPlanError, match="device 3, but the devices are 0 to 1"):
        read_plan(path, tables, hardware_profile("a100-dgx").topology(2))
    with pytest.raises(InvalidPlanError, match="3 tables, but there are 4"):
        read_plan(path, others, TOPOLOGY)
    with pytest.raises(InvalidPlanError, match=r"Table 0 of the plan is 'table_0', but it should be 'table_2'"):
        read_plan(path, tables.select([2, 1, 0]), TOPOLOGY)
    small = hardware_profile("a100-dgx").topology(4, memory_cap_bytes=int(tables.memory_bytes.max()))
    with pytest.raises(MemoryExceededError, match="Device 3 is given 2 shards"):
        read_plan(path, tables, small)


def test_json_from_strangers_is_refused_with_a_sentence(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 1)
    good = plan_to_json(plan_of_placement([0], tables), tables)
    rows = int(tables.num_embeddings[0])
    wrong: Any
    for wrong, says in (
        ({"table_0": 0}, "is a list"),
        ([], "0 tables, but there are 1"),
        ([[0]], "needs? the keys|object with the keys"),
        ([{**good[0], "more": 1}], "object with the keys"),
        ([{**good[0], "sharding_type": ["table_wise"]}], "object with the keys"),
        ([{**good[0], "sharding_type": "rowwise"}], "'rowwise'; known are"),
        ([{**good[0], "shards": [[0, 0, rows, 0]]}], "five integers"),
        ([{**good[0], "shards": [[0, 0, rows, 0, True]]}], "five integers"),
        ([{**good[0], "shards": [[0, -1, rows, 0, 4]]}], "five integers"),
        ([{**good[0], "shards": [[0, 0, 10**30, 0, 4]]}], "five integers"),
        ([{**good[0], "shards": [[0, 0, 2**61, 2**61, 4]]}], "a shard beyond"),
    ):
        with pytest.raises(InvalidPlanError, match=says):
            plan_from_json(wrong, tables, TOPOLOGY)


@given(seed=st.integers(0, 2**32 - 1))
def test_every_answer_survives_json_and_one_wrong_value_in_it_is_named(
    random_tables: Any, random_plan: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 5)
    plan = random_plan(rng, tables, TOPOLOGY)
    value = json.loads(json.dumps(shardings_to_json(plan)))
    assert shardings_from_json(value, tables, TOPOLOGY) == plan
    table = int(rng.integers(5))
    shards = value[table][1]
    place = int(rng.integers(len(shards)))
    wrongs: list[Any] = [True, float(shards[place][4]), "4", None, -1, 2**62, [4]]
    for wrong in wrongs:
        changed = copy.deepcopy(value)
        changed[table][1][place][4] = wrong
        with pytest.raises(InvalidPlanError, match=rf"shards of table {table} \(table_{table}\) must be lists of five"):
            shardings_from_json(changed, tables, TOPOLOGY)
    others: list[Any] = [[], {}, "table_wise", [shards], ["table_wise"], [1, shards], ["table_wise", shards, 0]]
    for other in others:
        with pytest.raises(InvalidPlanError, match=rf"Table {table} \(table_{table}\) of a plan is a type"):
            shardings_from_json([*value[:table], other, *value[table + 1 :]], tables, TOPOLOGY)
