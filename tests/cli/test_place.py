from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.placement import check_placement
from shard_gym.pools import Pool, load_pool, save_pool
from shard_gym.tables import Tables


@pytest.fixture
def tables() -> Tables:
    chosen = load_pool("dlrm-2021").tables.select(np.arange(24)).with_dims(np.repeat([16, 64], 12))
    return replace(chosen, names=tuple(f"feature {i} [bold]" for i in range(24)))


@pytest.fixture
def file(tables: Tables, tmp_path: Path) -> Path:
    path = tmp_path / "my_tables.json"
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)
    return path


def arguments(file: Path | str, **options: object) -> list[object]:
    given = {"hardware": "a100-dgx", "num-devices": 4, "agent": "cost-greedy", **options}
    return ["place", "--tables", file, *(part for key, value in given.items() for part in (f"--{key}", value))]


def test_the_plan_is_valid_and_costs_what_it_says(run, file: Path, tables: Tables, tmp_path: Path) -> None:
    cap = 2.5
    out = run.ok(*arguments(file, **{"memory-cap-gib": cap, "out": tmp_path / "plan.json"})).out
    assert "feature" in out
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert list(plan) == ["agent", "cost_model", "cost_ms", "held_out_errors", "placement", "devices"]
    assert list(plan["placement"]) == list(tables.names)
    topology = hardware_profile("a100-dgx").topology(4, memory_cap_bytes=int(cap * 2**30))
    placement = check_placement(list(plan["placement"].values()), tables, topology)
    assert AnalyticalCostModel().estimate(placement, tables, topology).total_ms == plan["cost_ms"]
    assert len(plan["devices"]) == 4
    for device, names in enumerate(plan["devices"]):
        assert names == [name for name in tables.names if plan["placement"][name] == device]


def test_without_a_file_the_plan_is_all_that_is_printed(run, file: Path, tmp_path: Path) -> None:
    run(*arguments(file, out=tmp_path / "plan.json"))
    plain, wide = (json.loads(run(*arguments(file, **more)).out) for more in ({}, {"weight-dtype": "fp32"}))
    assert plain == json.loads((tmp_path / "plan.json").read_text())
    assert wide["cost_ms"] > plain["cost_ms"]


def test_tables_without_dims_need_one(run) -> None:
    run.refused("choose one for all with --embedding-dim", *arguments("dlrm-2022"))
    out = run.ok(*arguments("dlrm-2022", **{"embedding-dim": 8, "agent": "size-greedy"})).out
    assert len(json.loads(out)["placement"]) == 788


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hardware": "a100"}, "There is no hardware profile named 'a100'."),
        ({"agent": "nobody"}, "There is no agent named 'nobody'."),
        ({"num-devices": 0}, "--num-devices must be an integer from 1 to 4096, not 0."),
        ({"memory-cap-gib": "-1"}, "--memory-cap-gib must be a positive number"),
        ({"memory-cap-gib": "1e-30"}, "--memory-cap-gib must be a positive number"),
        ({"memory-cap-gib": 1000}, "--memory-cap-gib is 1,000, but a device (A100-SXM4-80GB) has 80.00 GiB of memory."),
        ({"num-devices": 100_000}, "has 24 tables: the other devices would stay empty. Give at most 24."),
        ({"memory-cap-gib": 0.01}, "and 4 devices (A100-SXM4-80GB) have 40.96 MiB for both: 4.44 GiB are missing."),
        ({"embedding-dim": 16}, "have embedding dims of their own"),
        ({"weight-dtype": "fp64"}, "weight_dtype must be one of"),
    ],
)
def test_what_cannot_be_placed_is_a_sentence(run, file: Path, options: dict[str, object], says: str) -> None:
    run.refused(says, *arguments(file, **options))


@pytest.mark.parametrize("name", ["tables.csv", "folder/tables"])
def test_a_path_that_does_not_end_in_json_is_told_apart_from_an_unknown_pool(run, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    err = run.refused(
        f"{tmp_path}/{name} is not a pool file: the name of one ends in .json.", *arguments(f"{tmp_path}/{name}")
    ).err
    assert "There is no pool" not in err


def test_capitals_in_the_suffix_do_not_matter(run, file: Path) -> None:
    capital = file.with_suffix(".JSON")
    file.rename(capital)
    assert run(*arguments(capital)).code == 0
    run.refused("none.JSON cannot be read", *arguments(file.with_name("none.JSON")))


def test_a_file_that_is_no_pool_or_names_a_table_twice_is_refused(run, file: Path, tables: Tables) -> None:
    save_pool(Pool("twice", replace(tables, names=("a",) * 24), load_pool("dlrm-2021").card), file)
    run.refused("are named 'a'", *arguments(file))
    file.write_text("{}")
    run.refused("my_tables.json", *arguments(file))
