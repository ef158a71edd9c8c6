"""`place` and `show` say which tables are replicas and how they are trained, and `--replicas no` plans without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import Agent, make_agent
from shard_gym.common.text import format_ms
from shard_gym.hardware import hardware_profile
from shard_gym.interop.replicas import DENSE_OPTIMIZER, replicas_note, replicated_tables, tables_of_mixed_widths
from shard_gym.planning.answers import without_replicas
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_wise
from shard_gym.tables import Pool, Tables, Workload
from shard_gym.tables.pools import PoolCard, save_pool

FOUR = hardware_profile("v100-nvlink").topology(4)
NAMES = ("user", "item", "query", "brand", "hour", "day")
TYPES = "sharding_types=table_wise,data_parallel"
SMALL = ("--agent", "plan-search", "--option", "max_queries=2000")


def tables_of(optimizer: str = "rowwise_adagrad", pooled: Sequence[bool] = (True,) * 6) -> Tables:
    """Six tables; the smallest two cost least as replicas, if none is split otherwise."""
    rows, reads = [2_000_000, 300_000, 40_000, 5_000, 240, 24], [1, 1, 8, 3, 1, 1]
    return Tables.from_zipf(rows, 64, reads, 1.05, Workload(8192, "fp32", optimizer), names=NAMES, pooled=pooled)


@pytest.fixture
def place(run: Any, tmp_path: Path) -> Any:
    """Runs `place` for some tables, written to a file, on four GPUs."""
    pool, file = tables_of(), tmp_path / "mine.json"

    def placed(*options: object, tables: Tables = pool, command: str = "place") -> Any:
        save_pool(Pool("mine", tables, PoolCard("Mine", source="made up", how_made="here")), file)
        where = ("--tables", file, "--hardware", "v100-nvlink", "--num-devices", 4)
        return run.ok(command, *where, *options)

    placed.file = file
    return placed


def types_of(plan: dict[str, Any]) -> dict[str, str]:
    return {entry["table"]: entry["sharding_type"] for entry in plan["plan"]}


def test_replicas_are_named_with_the_lines_that_train_them(place: Any, tmp_path: Path) -> None:
    """On the terminal by `place` and `show`, in the JSON, and beside the JSON of TorchRec, which has no room for it."""
    out = tmp_path / "plan.json"
    printed = place(*SMALL, "--option", TYPES, "--out", out).out
    plan = json.loads(out.read_text())
    replicas = [name for name, kind in types_of(plan).items() if kind == "data_parallel"]
    note = plan["replicas"]["note"]
    assert 0 < len(replicas) < 6
    assert plan["replicas"]["tables"] == replicas
    assert note.startswith(f"{len(replicas)} of 6 tables, {', '.join(replicas)}, are data_parallel")
    assert all(line in note for line in DENSE_OPTIMIZER)
    assert note in printed
    without = plan["replicas"]["without_ms"]
    told = f"the plan costs {format_ms(without)} ms (+{without / plan['cost_ms'] - 1:.1%})."
    assert told in printed
    assert told in place("--plan", out, command="show").out
    assert note in place("--plan", out, command="show").out

    torchrec = place(*SMALL, "--option", TYPES, "--format", "torchrec", "--module", "bags")
    written = json.loads(torchrec.out)
    assert note in torchrec.err
    assert written.keys() == {"plan"}
    assert [name for name in NAMES if written["plan"]["bags"][name]["sharding_type"] == "data_parallel"] == replicas


def test_nothing_is_said_of_plans_without_replicas_and_of_tables_that_are_served(place: Any, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    served = ("--cost-model", "analytical-inference", "--option", TYPES)
    for options, some in ((("--option", "sharding_types=table_wise,row_wise"), False), (served, True)):
        printed, plan = place(*SMALL, *options, "--out", out).out, json.loads(out.read_text())
        assert ("data_parallel" in types_of(plan).values()) == some
        assert "replicas" not in plan
        assert DENSE_OPTIMIZER[0] not in printed


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        ("sgd", "SGD with the tables' learning rate updates them as the backward would."),
        ("rowwise_adagrad", "give them alone to torchrec.optim.RowWiseAdagrad"),
        ("adam", "torch.optim.Adam also moves their rows that a batch does not read"),
    ],
)
def test_the_note_says_which_optimizer_is_that_of_the_backward(optimizer: str, says: str) -> None:
    tables = tables_of(optimizer)
    plan = ShardingPlan((data_parallel(tables, 0, FOUR), *(table_wise(tables, each, 1) for each in range(1, 6))))
    assert replicas_note(plan, tables).startswith("1 of 6 tables, user, is data_parallel")
    assert says in replicas_note(plan, tables)
    assert "sequences" not in replicas_note(plan, tables)
    sequences = tables_of(optimizer, [False] + 5 * [True])
    assert "adds up the rows of sequences that are replicas" in replicas_note(plan, sequences)
    assert "sequences" not in replicas_note(plan, tables_of(optimizer, 5 * [True] + [False]))


def test_of_many_replicas_the_first_are_named(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(5), 30)
    plan = ShardingPlan(tuple(data_parallel(tables, each, FOUR) for each in range(30)))
    assert "table_7 and 22 more, are data_parallel" in replicas_note(plan, tables)
    assert replicated_tables(plan, tables) == list(tables.names)


@pytest.mark.parametrize("options", [(), ("--option", TYPES), ("--sync-every", 100, "--host-memory", 0)])
def test_plans_without_replicas_are_made_by_agents_that_choose_sharding_types(
    place: Any, tmp_path: Path, options: tuple[object, ...]
) -> None:
    out = tmp_path / "plan.json"
    place(*SMALL, *options, "--out", out)
    with_some = types_of(json.loads(out.read_text()))
    place(*SMALL, *options, "--replicas", "no", "--out", out)
    without = json.loads(out.read_text())
    assert "data_parallel" not in types_of(without).values()
    assert "replicas" not in without
    if options == ("--option", TYPES):
        assert "data_parallel" in with_some.values()


@pytest.mark.parametrize("pooled", [False, True])
def test_sequence_tables_on_cpus_have_replicas_on_demand_alone(run: Any, tmp_path: Path, pooled: bool) -> None:
    """TorchRec reads replicas of them wrongly there, and rightly those of bags."""
    tables = Tables.from_zipf([50_000, 24], 64, [2, 60], 1.05, Workload(8192, "fp32", "sgd"), pooled=[pooled] * 2)
    save_pool(Pool("mine", tables, PoolCard("Mine", source="made up", how_made="here")), tmp_path / "mine.json")
    out, where = tmp_path / "plan.json", ("place", "--tables", tmp_path / "mine.json", "--num-devices", 4)
    where += (*SMALL, "--option", TYPES, "--out", out)
    for options, some in ((("cpu",), pooled), (("cpu", "--replicas", "yes"), True), (("a100-dgx",), True)):
        err = " ".join(run.ok(*where, "--hardware", *options).err.split())
        assert ("data_parallel" in types_of(json.loads(out.read_text())).values()) == some
        assert ("--replicas yes allows them" in err) == (not some)


def test_column_shards_of_sequences_are_equally_wide_on_a_device_or_named(place: Any, tmp_path: Path) -> None:
    tables = tables_of(pooled=(False, False, False, True, True, False))
    whole = [table_wise(tables, each, 3) for each in range(6)]
    halves, uneven = column_wise(tables, 0, [0, 1]), column_wise(tables, 1, [0, 2], [48, 16])
    assert tables_of_mixed_widths(ShardingPlan((halves, *whole[1:])), tables) == []
    assert tables_of_mixed_widths(ShardingPlan((halves, uneven, *whole[2:])), tables) == ["user", "item"]
    apart = column_wise(tables, 1, [2, 3], [48, 16])
    rows = row_wise(tables, 2, FOUR)
    assert tables_of_mixed_widths(ShardingPlan((halves, apart, rows, *whole[3:])), tables) == []
    bags = column_wise(tables, 3, [0, 1], [48, 16])
    assert tables_of_mixed_widths(ShardingPlan((halves, *whole[1:3], bags, *whole[4:])), tables) == []


def test_agents_that_cannot_leave_out_replicas_say_so(run: Any, place: Any) -> None:
    place("--agent", "hugectr", "--out", place.file.with_name("plan.json"))
    where = ("--tables", place.file, "--hardware", "v100-nvlink", "--num-devices", 4)
    refused = run.refused(
        "--replicas no asks for none, but 'hugectr' makes", "place", *where, "--agent", "hugectr", "--replicas", "no"
    )
    assert "Name another agent" in " ".join(refused.err.split())
    assert json.loads(place("--agent", "local-search", "--replicas", "no").out)["placement"]  # it makes none


@pytest.mark.parametrize("name", ["plan-search", "blind-search", "local-search"])
def test_only_the_sharding_type_of_replicas_is_left_out(name: str) -> None:
    agent: Any = make_agent(name)
    able: Any = without_replicas(agent)
    assert isinstance(able, Agent)
    if name == "local-search":
        assert able is agent
        return
    assert able.sharding_types == tuple(each for each in agent.sharding_types if each != "data_parallel")
    assert "data_parallel" in agent.sharding_types
