"""Entries of the track "sharding": plans are submitted, verified and replayed, and bad ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents import make_agent
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.files import write_json
from shard_gym.common.io.markdown import END, begin
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard import EntryFolder, load_leaderboards, verify_entry, write_pages
from shard_gym.leaderboard.entry import can_replay
from shard_gym.leaderboard.evaluations import read_evaluation
from shard_gym.leaderboard.ranking import improvements
from shard_gym.leaderboard.replay import replay
from shard_gym.leaderboard.store import TABLES
from shard_gym.tasks import load_suite

SUITE = "shard-mlperf-x8"
TABLE = 3


@pytest.fixture
def folder(tmp_path: Path, submit_as) -> EntryFolder:
    folder = EntryFolder(tmp_path, "sharding", SUITE, "hugectr")
    assert submit_as(folder, "hugectr", [evaluate(make_agent("hugectr"), SUITE)]) == []
    return folder


def changed(folder: EntryFolder, change: Callable[[list[Any]], None]) -> list[str]:
    """What verification says after `change` of the plan of the first task."""
    path = folder.path / "plans.json"
    content = json.loads(path.read_text())
    change(content["rows"][0]["plan"])
    path.write_text(json.dumps(content))
    return [str(finding) for finding in verify_entry(folder)[1]]


def test_a_plan_is_an_entry(folder: EntryFolder) -> None:
    assert sorted(path.name for path in folder.path.iterdir()) == ["entry.toml", "plans.json"]
    verified, findings = verify_entry(folder)
    assert findings == []
    assert verified is not None
    task, plan = load_suite(SUITE)[0], verified.answers[0][0]
    cost = make_cost_model(additive=True, splits=True).estimate(plan, task.tables, task.topology).total_ms
    assert verified.costs_ms.tolist() == [[pytest.approx(cost, rel=1e-12)]]
    assert verified.league == "zero-query"
    assert plan.split_tables
    assert can_replay(verified)
    assert replay(verified, 1)[1] == []
    (board,) = load_leaderboards(folder.root)
    assert (board.track, board.suite, board.entries[0].mean_cost_ms) == ("sharding", SUITE, pytest.approx(cost))
    assert list(improvements([verified])) in ([SUITE], [])


def test_failures_are_shown_as_such_and_not_as_costs(folder: EntryFolder, add_entry) -> None:
    """The penalty of a task without a plan is no cost: a gap to it would say nothing."""
    add_entry(folder.root, "lookup-greedy", "shard-4", track="sharding")
    page = folder.root / "README.md"
    page.write_text(f"{begin(TABLES)}\n{END}\n")
    write_pages(folder.root)
    boards = {board.suite: board for board in load_leaderboards(folder.root)}
    (greedy,), (planner,) = boards["shard-4"].entries, boards[SUITE].entries
    assert 0 < greedy.verified.failures < 50
    assert greedy.gap_of_answers < greedy.gap
    assert boards["shard-4"].smallest_gap("zero-query") is None
    assert boards[SUITE].smallest_gap("zero-query") == planner.gap
    above, own = page.read_text().split("<summary>shard-4")
    rows = [line.split(" | ") for line in above.splitlines() if "| zero-query" in line]
    assert [(row[1], row[4:]) for row in rows] == [
        ("The hugectr agent", ["", f"{100 * planner.gap:.1f}% |"]),
        (
            "The lookup-greedy agent",
            [f"{100 * greedy.gap_of_answers:.1f}% (fails {greedy.verified.failures} of 50)", " |"],
        ),
    ]
    assert f"|  |  | {greedy.verified.failures} |" in own


def test_an_evaluation_of_plans_is_read_again(tmp_path: Path) -> None:
    evaluation = evaluate(make_agent("hugectr"), SUITE)
    write_json(tmp_path / "0.json", evaluation.to_json())
    assert read_evaluation(tmp_path / "0.json").tasks[0].plan == evaluation.tasks[0].plan


def split(plan: list[Any]) -> list[Any]:
    """The pair of a table with column shards; it has two at least."""
    return next(pair for pair in plan if pair[0] == "column_wise")


def uneven(plan: list[Any]) -> None:
    """Uneven blocks of rows: TorchRec accepts them and computes wrong results."""
    rows = int(load_suite(SUITE)[0].tables.num_embeddings[0])
    first = [[device, device, 1, 0, 128] for device in range(7)]
    plan[0] = ["row_wise", [*first, [7, 7, rows - 7, 0, 128]]]


def all_on_one(plan: list[Any]) -> None:
    tables = load_suite(SUITE)[0].tables
    for table, (rows, dim) in enumerate(
        zip(tables.num_embeddings.tolist(), tables.embedding_dim.tolist(), strict=True)
    ):
        plan[table] = ["table_wise", [[0, 0, rows, 0, dim]]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (uneven, "is row_wise, so device 0 has rows 0 to"),
        (all_on_one, "Device 0 is given 26 shards that need"),
        (lambda plan: split(plan)[1].pop(), r"has columns .* in no shard"),
        (lambda plan: split(plan)[1].append(split(plan)[1][0]), r"has columns .* in 2 shards"),
        (lambda plan: split(plan)[1][0].__setitem__(4, 62), "whose width 62 is not a multiple of 4"),
        (lambda plan: split(plan)[1][0].__setitem__(0, 8), "has a shard on device 8, but the devices are 0 to 7"),
        (lambda plan: split(plan)[1][0].__setitem__(0, True), "must be lists of five integers"),
        (lambda plan: split(plan)[1][0].append(0), "must be lists of five integers"),
        (lambda plan: split(plan).__setitem__(0, "grid_shard"), "has the sharding type 'grid_shard'"),
        (lambda plan: split(plan).__setitem__(0, "row_wise"), "is row_wise, so each of devices 0 to 7 has one block"),
        (lambda plan: plan.pop(), "The plan has 25 tables, but there are 26"),
        (lambda plan: plan.__setitem__(TABLE, None), "Table 3 .* of a plan is a type and its shards"),
    ],
)
def test_a_hostile_plan_is_refused(folder: EntryFolder, change: Callable[[list[Any]], None], message: str) -> None:
    (finding,) = changed(folder, change)
    assert finding.startswith(f"sharding/{SUITE}/hugectr/plans.json, task {SUITE}/test/0, seed 0: ")
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(finding)


def test_a_folder_of_plans_has_no_placements(folder: EntryFolder) -> None:
    (folder.path / "plans.json").rename(folder.path / "placements.json")
    found = [str(finding) for finding in verify_entry(folder)[1]]
    assert any("The folder holds entry.toml, plans.json and nothing else" in each for each in found)


def test_plans_and_placements_have_their_own_tracks(tmp_path: Path, submit_as) -> None:
    for track, suite, right in (("simulated", SUITE, "sharding"), ("sharding", "mlperf-x8", "simulated")):
        evaluation = evaluate(make_agent("hugectr"), suite)
        with pytest.raises(InvalidOptionError, match=f"submit to {right}/{suite}/mine"):
            submit_as(EntryFolder(tmp_path, track, suite, "mine"), "hugectr", [evaluation])
