from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.plans.placement import check_placement
from shard_gym.tables import Pool, RowPopularity, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool


@pytest.fixture
def tables() -> Tables:
    chosen = load_pool("dlrm-2021").tables.select(np.arange(24)).with_dims(np.repeat([16, 64], 12))
    return replace(chosen, names=tuple(f"feature {i} [bold]" for i in range(24)))


@pytest.fixture
def file(tables: Tables, tmp_path: Path) -> Path:
    path = tmp_path / "my_tables.json"
    save_pool(Pool("mine", replace(tables, popularity=None), load_pool("dlrm-2021").card), path)
    return path


def arguments(file: Path | str, **options: object) -> list[object]:
    given = {"hardware": "a100-dgx", "num-devices": 4, "agent": "cost-greedy", **options}
    return ["place", "--tables", file, *(part for key, value in given.items() for part in (f"--{key}", value))]


def test_the_plan_is_valid_and_costs_what_it_says(run, file: Path, tables: Tables, tmp_path: Path) -> None:
    cap = 2.5
    out = run.ok(*arguments(file, **{"memory-cap-gib": cap, "out": tmp_path / "plan.json"})).out
    assert "feature" in out
    assert not {"best known", "lower bound"} & {line.rstrip(" -") for line in out.splitlines()}  # nobody knows them
    plan = json.loads((tmp_path / "plan.json").read_text())
    keys = ["agent", "cost_model", "cost_ms", "index_exchange_ms", "held_out_errors", "placement", "devices", "hosts"]
    assert list(plan) == [*keys, "sent_mib"]
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
    run.refused("(table_0) is 1. FBGEMM trains 4 columns at a time", *arguments("dlrm-2022", **{"embedding-dim": 1}))
    run.refused("Give it dim 132 here and in the model", *arguments("dlrm-2022", **{"embedding-dim": 130}))
    run.refused("is 0; it must be a multiple of 4 from 4", *arguments("dlrm-2022", **{"embedding-dim": 0}))
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
        ({"memory-cap-gib": "1e300"}, "--memory-cap-gib must be a positive number"),
        ({"memory-cap-gib": 1000}, "--memory-cap-gib is 1,000, but a device (A100-SXM4-80GB) has 80.00 GiB of memory."),
        ({"num-devices": 100_000}, "--num-devices must be an integer from 1 to 4096, not 100000."),
        ({"num-devices": 1000}, "has 24 tables: the other devices would stay empty. Give at most 24."),
        (
            {"memory-cap-gib": 0.01, "host-memory": 0},
            "and 4 devices (A100-SXM4-80GB) have 40.96 MiB for both: 4.44 GiB are missing.",
        ),
        ({"memory-cap-gib": 0.01}, "which has 10.24 MiB for them and for rows; host memory is for rows alone."),
        ({"embedding-dim": 16}, "have embedding dims of their own"),
        ({"weight-dtype": "fp64"}, "weight dtype must be one of"),
    ],
)
def test_what_cannot_be_placed_is_a_sentence(run, file: Path, options: dict[str, object], says: str) -> None:
    run.refused(says, *arguments(file, **options))


def placements_of(record: dict[str, Any]) -> set[str]:
    """Where the shards of a plan in TorchRec's JSON are."""
    entries = record["plan"][""].values()
    return {shard["placement"] for entry in entries for shard in entry.get("shards", [])}


def test_plans_for_torchrec_have_the_device_type_of_the_hardware_or_the_one_asked_for(run, file: Path) -> None:
    torchrec = {"hardware": "cpu", "num-devices": 2, "format": "torchrec"}
    found = [json.loads(run.ok(*arguments(file, **torchrec, **more)).out) for more in ({}, {"device-type": "cuda"})]
    assert [placements_of(each) for each in found] == [{"rank:0/cpu", "rank:1/cpu"}, {"rank:0/cuda:0", "rank:1/cuda:1"}]
    gpus = {"num-devices": 2, "format": "torchrec", "device-type": "cpu"}
    assert placements_of(json.loads(run.ok(*arguments(file, **gpus)).out)) == {"rank:0/cpu", "rank:1/cpu"}
    run.refused("give --format torchrec", *arguments(file, **{"device-type": "cpu"}))


@pytest.mark.parametrize(("devices", "of_host", "of_domain"), [(8, 4, 8), (12, 2, 6)])
def test_hosts_and_domains_are_options(
    run, file: Path, tmp_path: Path, devices: int, of_host: int, of_domain: int
) -> None:
    options = {"num-devices": devices, "devices-per-host": of_host, "devices-per-domain": of_domain}
    one = json.loads(run.ok(*arguments(file, **{"num-devices": devices, "devices-per-host": of_domain})).out)
    plan = tmp_path / "plan.json"
    out = run.ok(*arguments(file, **options, out=plan)).out
    both = json.loads(plan.read_text())
    assert (both["cost_ms"], both["placement"]) == (one["cost_ms"], one["placement"])
    assert both["hosts"] == [device // of_host for device in range(devices)]
    assert both["domains"] == one["hosts"]
    assert "inside its domain" in " ".join(out.split())
    torchrec = run.ok(*arguments(file, **options, format="torchrec")).out
    assert placements_of(json.loads(torchrec)) == {f"rank:{rank}/cuda:{rank % of_host}" for rank in range(devices)}
    shown = options | {"tables": file, "plan": plan, "hardware": "a100-dgx"}
    said = run.ok("show", *(part for key, value in shown.items() for part in (f"--{key}", value))).out
    assert "inside its domain" in " ".join(said.split())
    wrong = options | {"devices-per-domain": of_host + 1}
    run.refused(f"must be a multiple of the {of_host} devices", *arguments(file, **wrong))


def test_processes_of_a_cpu_may_take_more_than_the_share_that_is_assumed(run, file: Path) -> None:
    out = run.ok(*arguments(file, **{"hardware": "cpu", "memory-cap-gib": 40, "out": file.with_name("p.json")})).out
    assert "Memory of a training step, GiB of 40.00" in " ".join(out.split())
    most = "--memory-cap-gib must be at most 1,048,576 of a process of a CPU, not 2e+06."
    run.refused(most, *arguments(file, **{"hardware": "cpu", "memory-cap-gib": 2e6}))


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


# Recorded lookups

ROWS, DIMS = {"user": 1000, "item": 50, "page": 200}, [64, 16, 32]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Three tables whose lookups are assumed, in batches of 128."""
    tables = Tables.from_zipf(list(ROWS.values()), DIMS, 4.0, [1.2, 0.0, 0.9], Workload(128), names=tuple(ROWS))
    law = RowPopularity.zipf([1.2, 0.0, 0.9])
    save_pool(Pool("own", tables, load_pool("dlrm-2021").card, law), tmp_path / "own.json")
    return tmp_path / "own.json"


def log(path: Path, seed: int = 0, samples: int = 300, **changes: Any) -> Path:
    """Uniform lookups, one of a user, two of items and five of pages, and a column that no table reads."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "user": rng.integers(0, 1000, samples),
        "item": rng.integers(0, 50, (samples, 2)),
        "page": rng.integers(0, 200, (samples, 5)),
        "clicked": rng.random(samples),
    }
    np.savez(path, **{name: rows for name, rows in (columns | changes).items() if rows is not None})
    return path


def test_recorded_lookups_take_the_place_of_assumed_ones(run, own: Path, tmp_path: Path) -> None:
    files = [log(tmp_path / f"day_{day}.npz", day) for day in range(2)]
    given = [part for file in files for part in ("--lookups", file)]
    outcome = run.ok(*arguments(own, **{"num-devices": 2}), *given, columns=300)
    content = json.loads(outcome.out)
    counts: dict[str, list[Counter[int]]] = {name: [] for name in ROWS}
    for file in files:
        read = np.load(file)
        for first in (0, 128):  # 44 samples at the end fill no batch
            for name in ROWS:
                counts[name].append(Counter(read[name][first : first + 128].ravel().tolist()))
    tables = load_pool(own).tables
    reads = [[number for count in counts[name] for number in count.values()] for name in ROWS]
    edges = [0, *(2**power for power in range(16)), np.inf]
    columns = [np.histogram(np.array(each) - 0.5, edges)[0] for each in reads]
    sums = [np.histogram(np.array(each) - 0.5, edges, weights=each)[0] for each in reads]
    counted = replace(
        tables,
        pooling_factor=np.array([1.0, 2.0, 5.0]),
        distinct_rows=np.array([len(each) / 4 for each in reads]),
        reuse_histogram=np.array([each / each.sum() for each in columns]),
        access_histogram=np.array([each / each.sum() for each in sums]),
    )
    placement = list(content["placement"].values())
    topology = hardware_profile("a100-dgx").topology(2)
    costs = AnalyticalCostModel()
    assert content["cost_ms"] == pytest.approx(costs.estimate(placement, counted, topology).total_ms, rel=1e-12)
    assert content["cost_ms"] != pytest.approx(costs.estimate(placement, tables, topology).total_ms, rel=1e-6)
    for file in files:
        assert f"{file}: no table reads 1 column: clicked." in outcome.err
        assert f"{file}: 44 samples at the end fill no batch of 128 and are not counted." in outcome.err
    assert "assumed" not in outcome.err


def test_batch_size_is_that_of_the_recorded_batches(run, own: Path, tmp_path: Path) -> None:
    file = log(tmp_path / "day.npz", clicked=None)
    costs = {
        size: json.loads(run.ok(*arguments(own, lookups=file, **{"num-devices": 2, "batch-size": size})).out)["cost_ms"]
        for size in (100, 300)
    }
    assert costs[100] < costs[300]
    assert run(*arguments(own, lookups=file, **{"num-devices": 2, "batch-size": 100})).err == ""
    run.refused("--batch-size says how costs are measured", *arguments(own, **{"num-devices": 2, "batch-size": 100}))


def test_where_nothing_is_recorded_a_note_says_what_is_assumed(run, own: Path, file: Path) -> None:
    err = run.ok(*arguments(own, **{"num-devices": 2}), columns=300).err
    assert "Lookup statistics are assumed, not recorded" in err
    assert "~ k^-s with s 0 to 1.2. --lookups counts recorded ones." in err
    shifted = run.ok(*arguments("dlrm-2021", **{"embedding-dim": 16, "num-devices": 64}), columns=300).err
    assert "~ (k + q)^-s with q 0.4794 to 9.856e+05 and s 0.9705 to 2.604." in shifted
    says = run.ok(*arguments(file), columns=2000).err  # a file without a law
    assert f"Lookup statistics are those of {file}, whose card says: {load_pool('dlrm-2021').card.how_made}" in says


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({"item": None}, {}, "day.npz has no feature 'item'; it has ['clicked', 'page', 'user']."),
        ({"item": np.full(300, -3)}, {}, "day.npz: Table 'item' has 50 rows, but row -3 is read."),
        ({"item": np.full(300, 50)}, {}, "day.npz: Table 'item' has 50 rows, but row 50 is read."),
        ({"item": np.ones(300)}, {}, "The values of feature 'item' have shape (300,) and dtype float64"),
        ({"item": np.ones(7, int)}, {}, "day.npz: Feature 'item' has 7 samples, but 'user' has 300."),
        ({}, {"batch-size": 301}, "day.npz: A batch of 301 samples cannot be taken from 300 recorded ones"),
        ({}, {"batch-size": 0}, "day.npz: A batch of 0 samples cannot be taken"),
    ],
)
def test_lookups_that_do_not_fit_the_tables_are_a_sentence(
    run, own: Path, tmp_path: Path, changes: dict[str, Any], options: dict[str, object], says: str
) -> None:
    file = log(tmp_path / "day.npz", **changes)
    err = run(*arguments(own, lookups=file, **{"num-devices": 2}, **options), columns=300)
    assert (err.code, err.out) == (2, "")
    assert says in err.err


def test_lookups_in_other_files_are_refused(run, own: Path, tmp_path: Path) -> None:
    run.refused("are read from .npz and .parquet files", *arguments(own, lookups=own, **{"num-devices": 2}))
    run.refused("There is no file", *arguments(own, lookups=tmp_path / "no.npz", **{"num-devices": 2}))


# The default answer


def mlperf(tmp_path: Path) -> Path:
    """The 26 tables of MLPerf's DLRM-DCNv2, in batches of 16,384, with lookups by Zipf's law."""
    pool = load_pool("mlperf-dlrm-dcnv2").tables
    workload = Workload(16_384, "fp32", "rowwise_adagrad")
    tables = Tables.from_zipf(pool.num_embeddings, 128, pool.pooling_factor, 1.05, workload, names=pool.names)
    save_pool(Pool("dcn", tables, load_pool("dlrm-2021").card, RowPopularity.zipf([1.05] * 26)), tmp_path / "dcn.json")
    return tmp_path / "dcn.json"


def test_by_default_plans_are_searched_and_the_output_says_how(run, tmp_path: Path) -> None:
    """Whole tables cost 3.487 ms; a search with 200,000 evaluations finds 1.947."""
    path = mlperf(tmp_path)
    command = ("place", "--tables", path, "--hardware", "v100-nvlink", "--num-devices", 8)
    quick = ("--option", "max_queries=3000", "--seed", 7)
    found = run.ok(*command, *quick, "--out", tmp_path / "plan.json", columns=300)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["agent"] == "plan-search"
    assert plan["cost_ms"] < 2.3
    assert "lower bound" not in found.out
    seeds, evaluations = plan["search"]["seeds"], plan["search"]["evaluations"]
    assert seeds == list(range(7, 7 + len(seeds)))
    assert len(seeds) > 1
    assert evaluations >= 3_000 * len(seeds)
    assert plan["search"]["ended_by"] == "budget"
    says = f"plan-search, {len(seeds)} seeds, {evaluations:,} evaluations: the budget ended the search; --option "
    assert f"{says}max_queries=15000 searches longer." in found.err
    whole = run.ok(*command, "--whole", "--out", tmp_path / "whole.json", columns=300)
    placed = json.loads((tmp_path / "whole.json").read_text())
    assert placed["agent"] == "local-search"
    assert placed["cost_ms"] == pytest.approx(3.487, abs=1e-3)
    assert "search" not in placed
    (bound,) = [line for line in whole.out.splitlines() if line.startswith("lower bound")]
    assert bound.endswith("; split tables may cost less")


def test_a_search_that_no_budget_stopped_says_so(run, own: Path) -> None:
    """Three tables take 20,000 evaluations, whatever the option allows."""
    command = ("place", "--tables", own, "--hardware", "a100-dgx", "--num-devices", 2, "--balance", "no")
    found = run.ok(*command, columns=300)
    search = json.loads(found.out)["search"]
    assert search["ended_by"] == "few tables"
    seeds = len(search["seeds"])
    assert seeds > 1
    assert (
        f"plan-search, {seeds} seeds, {search['evaluations']:,} evaluations: more bring nothing new for so few tables."
        in found.err
    )


@pytest.mark.parametrize("form", ["--{}", "--{}="])
@pytest.mark.parametrize(
    ("option", "bad"),
    [
        *((name, bad) for name in ("devices-per-host", "devices-per-domain") for bad in (-3, 0, 10**23)),
        *(("sync-every", bad) for bad in (-3, 10**23)),
        *(("cross-host-ratio", bad) for bad in (-3, 0, "nan", 1e30)),
    ],
)
def test_an_error_of_an_option_names_the_option(run, file: Path, option: str, bad: object, form: str) -> None:
    given = form.format(option)
    command = arguments(file, agent="lane-greedy" if option != "sync-every" else "plan-search")
    outcome = run(*command, f"{given}{bad}") if given.endswith("=") else run(*command, given, bad)
    assert outcome.code == 2
    assert f"--{option}" in outcome.err
    assert option.replace("-", "_") not in outcome.err


def test_place_keeps_to_a_file_of_constraints(run, file: Path, tables: Tables, tmp_path: Path) -> None:
    first, second = tables.names[:2]
    limits = tmp_path / "constraints.json"
    limits.write_text(json.dumps({"tables": {first: {"devices": [3]}}, "apart": [[first, second]]}))
    given = arguments(file, constraints=limits, out=tmp_path / "plan.json")
    assert "The plan keeps to the constraints of 2 tables." in run.ok(*given).err
    placement = json.loads((tmp_path / "plan.json").read_text())["placement"]
    assert placement[first] == 3 != placement[second]
    limits.write_text(json.dumps({"apart": [[first, "feature 99"]]}))
    assert "There is no table named 'feature 99'" in run.refused("constraints.json", *given).err
    limits.write_text("{")
    run.refused("constraints.json", *given)
