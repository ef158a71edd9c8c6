"""Files with plans: what was written comes back, whichever form it has, and what is no plan is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import DamagedFileError, InvalidPlanError
from shard_gym.hardware import hardware_profile
from shard_gym.interop.plan_files import GivenPlan, plan_of_file
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.plans import ShardingPlan, plan_of_placement, plan_to_json, write_plan
from shard_gym.tables import Pool, Tables, load_pool
from shard_gym.tables.pools import save_pool

TOPOLOGY = hardware_profile("a100-dgx").topology(4, devices_per_host=2)
SMALL = replace(TOPOLOGY, memory_cap_bytes=np.full(4, 1000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@given(seed=st.integers(0, 2**32 - 1))
def test_plans_come_back_in_every_form_even_if_they_exceed_the_memory(
    random_tables: Any, random_plan: Any, folder: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 4)
    plan: ShardingPlan = random_plan(rng, tables, TOPOLOGY)
    listed = plan_to_json(plan, tables)
    forms: list[Any] = [
        {"plan": listed, "agent": "x"},
        {"plan": [listed[index] for index in rng.permutation(4)]},
        torchrec_json(plan, tables, TOPOLOGY, {name: f"m{index % 2}" for index, name in enumerate(tables.names)}),
    ]
    if plan.placement is not None:
        placed = {name: int(device) for name, device in zip(tables.names, plan.placement, strict=True)}
        forms.append({"placement": dict(reversed(placed.items()))})
    path = folder / "plan.json"
    for form in forms:
        path.write_text(json.dumps(form))
        found = plan_of_file(path, tables, SMALL)
        if "placement" in form:
            assert found == plan_of_placement(plan.placement, tables)
        else:
            assert found == plan
    write_plan(path, plan, tables)
    assert plan_of_file(str(path), tables, SMALL) == plan


def whole(tables: Tables) -> dict[str, Any]:
    return {"placement": dict.fromkeys(tables.names, 0)}


def torchrec(tables: Tables, **entry: Any) -> dict[str, Any]:
    value = torchrec_json(plan_of_placement([0] * len(tables), tables), tables, TOPOLOGY, "m")
    value["plan"]["m"][tables.names[0]].update(entry)
    return value


HOSTILE: list[tuple[Callable[[Tables], Any], str]] = [
    (lambda tables: [], "has no plan. Known are the JSON"),
    (lambda tables: {"pla": 1}, "has no plan"),
    (lambda tables: {"plan": 5}, "Its 'plan' must be a list of tables or an object, not 5"),
    (lambda tables: {"plan": [5]}, "An entry of its 'plan' has no name of a table as 'table': 5"),
    (lambda tables: {"plan": []}, "The plan has no table 'table_0'"),
    (lambda tables: {"plan": [{"table": "table_0"}] * 2}, "It has table 'table_0' twice"),
    (lambda tables: {"plan": [{"table": name} for name in tables.names]}, "is an object with the keys"),
    (lambda tables: whole(tables) | {"plan": {}}, "has both 'placement' and 'plan'"),
    (lambda tables: {"placement": [0, 0]}, "must be an object with a device for each table, not [0, 0]"),
    (lambda tables: {"placement": {"table_0": 0}}, "The plan has no table 'table_1'"),
    (lambda tables: {"placement": whole(tables)["placement"] | {"other": 0}}, "The plan has a table 'other'"),
    *(
        (
            lambda tables, device=device: {"placement": whole(tables)["placement"] | {"table_1": device}},  # type: ignore[misc]
            f"Table 'table_1' is on device {device!r}; the devices are 0 to 3",
        )
        for device in (4, -1, 10**30, True, 1.0, "0", None)
    ),
    (lambda tables: {"plan": {}}, "The plan has no table 'table_0'"),
    (lambda tables: {"plan": {"m": 3}}, "an object for each module"),
    (lambda tables: torchrec(tables, compute_kernel="fused_uvm_caching"), "rows in host memory, and the devices"),
    (lambda tables: torchrec(tables, sharding_type="row_column"), "'row_column', which ShardGym does not know"),
    (lambda tables: torchrec(tables, sharding_type="grid_shard"), "is grid_shard, so each of devices 0 to 1 has one"),
    (lambda tables: torchrec(tables, sharding_type=["x"]), "which ShardGym does not know"),
    (lambda tables: torchrec(tables, compute_kernel={}), "has the compute kernel {}"),
    (lambda tables: torchrec(tables, ranks=[7]), "has ranks [7], but its shards are on ranks [0]"),
    (lambda tables: torchrec(tables, shards=[]), "needs ranks and, unless it is data_parallel, shards"),
    (
        lambda tables: torchrec(
            tables, ranks=[9], shards=[{"shard_offsets": [0, 0], "shard_sizes": [1, 4], "placement": "rank:9/cuda:1"}]
        ),
        "has a shard on device 9, but the devices are 0 to 3",
    ),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_what_is_no_plan_of_these_tables_is_refused_with_the_name_of_the_file(
    number: int, random_tables: Any, tmp_path: Path
) -> None:
    make, says = HOSTILE[number]
    tables, path = random_tables(np.random.default_rng(0), 2), tmp_path / "wrong.json"
    path.write_text(json.dumps(make(tables)))
    with pytest.raises(InvalidPlanError) as caught:
        plan_of_file(path, tables, TOPOLOGY)
    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", pickle.dumps({"plan": []}), b'{"plan": NaN}', b'{"plan": [], "plan": {}}', b"[" * 10**5],
)
def test_what_is_no_json_is_refused(content: bytes, four_tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    with pytest.raises(DamagedFileError, match="cannot be read"):
        plan_of_file(path, four_tables, TOPOLOGY)
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="is not readable JSON"):
        plan_of_file(path, four_tables, TOPOLOGY)


def test_a_changed_file_with_a_checksum_and_one_of_tables_are_refused(random_tables: Any, tmp_path: Path) -> None:
    tables, path = random_tables(np.random.default_rng(0), 2), tmp_path / "plan.json"
    write_plan(path, plan_of_placement([0, 1], tables), tables)
    path.write_text(path.read_text().replace("[1,", "[2,").replace("[1, ", "[2, "))
    with pytest.raises(DamagedFileError, match="SHA-256"):
        plan_of_file(path, tables, TOPOLOGY)
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)
    with pytest.raises(InvalidPlanError, match="has tables, but no plan"):
        plan_of_file(path, tables, TOPOLOGY)


@pytest.mark.parametrize("damage", [("shard-gym plan 1", "shard-oym plan 1"), ('"schema"', '"schfma"')])
def test_a_damaged_schema_does_not_hide_other_damage(
    damage: tuple[str, str], four_tables: Tables, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, plan_of_placement([0, 1, 2, 3], four_tables), four_tables)
    path.write_text(path.read_text().replace(*damage).replace("[[3, 0", "[[2, 0"))
    with pytest.raises(DamagedFileError, match="must have the schema 'shard-gym plan 1'"):
        plan_of_file(path, four_tables, TOPOLOGY)


def entry(kind: str, *devices: int) -> dict[str, Any]:
    """A table of a plan with a shard on each device; what cells these have does not matter here."""
    return {"table": "a", "sharding_type": kind, "ranks": list(devices), "shards": [[d, 0, 2, 0, 8] for d in devices]}


@pytest.mark.parametrize(
    ("value", "number", "is_known"),
    [
        ({"placement": {"a": 3, "b": 0}}, 4, False),
        ({"placement": {"a": 3, "b": 0}, "hosts": [0] * 8}, 8, True),
        ({"plan": [entry("table_wise", 2)]}, 3, False),
        ({"plan": [entry("table_wise", 0), entry("row_wise", 0, 1)]}, 2, True),
        ({"plan": [entry("row_wise", 0)], "groups": [4, "strided"]}, 4, True),
        ({"plan": {"m": {"a": entry("data_parallel", 0, 1, 2)}}}, 3, True),
        ({"plan": {"m": {"a": entry("table_column_wise", 5, 4)}}}, 6, False),
        ({"plan": {"m": {"a": 1}}}, 0, False),
        ({"plan": [1, {"shards": 2}, {"shards": [3, [], ["x"]]}], "groups": "x", "hosts": 5}, 0, False),
        ([], 0, False),
    ],
)
def test_a_file_tells_for_how_many_devices_its_plan_is(value: Any, number: int, is_known: bool, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(value))
    assert GivenPlan.of_file(path).devices == (number, is_known)
