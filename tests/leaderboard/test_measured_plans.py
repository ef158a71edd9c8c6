"""The measured track of a suite of plans: entries are plans, and races of them rank."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents import make_agent
from shard_gym.cli import main
from shard_gym.cli.race import race
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.markdown import END, begin
from shard_gym.cost_models.measured import model as measured_model
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard import EntryFolder, load_leaderboards, verify_all, verify_entry, write_pages
from shard_gym.leaderboard.markdown import outdated
from shard_gym.leaderboard.measured_track import read_races
from shard_gym.leaderboard.ranking import improvements
from shard_gym.leaderboard.site import site_files
from shard_gym.leaderboard.store import TABLES, read_files
from shard_gym.plans import ShardingPlan

pytest.importorskip("pyarrow")

SUITE = "shard-cpu-20x2"
PLANNER, PLACER = "hugectr", "lookup-greedy"
RACED = f"measured/{SUITE}/races/a-machine"
ENTRY = f"measured/{SUITE}/{PLANNER}"


@pytest.fixture(scope="module", autouse=True)
def _machine(new_machine: Any) -> Iterator[None]:
    """Races are measured on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_model, "MeasuredCostModel", lambda *_, **options: new_machine(iterations=10))
        yield


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory, add_entry: Any) -> Path:
    """Leaderboards with an entry that splits tables, one that does not, and one that was not raced; read only."""
    root = tmp_path_factory.mktemp("measured") / "leaderboards"
    root.mkdir()
    for agent in (PLANNER, PLACER):
        add_entry(root, agent, SUITE, track="measured")
    race(SUITE, root / RACED, leaderboard=root, rounds=3)
    add_entry(root, "size-greedy", SUITE, track="measured")
    return root


@pytest.fixture
def root(raced: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(raced, tmp_path / "leaderboards"))


def findings_of(root: Path) -> list[str]:
    entries, findings = verify_all(root)
    return [str(each) for each in (*findings, *read_races(root, entries)[1])]


def test_plans_are_entries_and_a_race_of_them_ranks(raced: Path) -> None:
    assert sorted(path.name for path in (raced / ENTRY).iterdir()) == ["entry.toml", "plans.json"]
    assert findings_of(raced) == []
    (board,) = load_leaderboards(raced)
    assert board.race is not None
    results = board.race.race.results()
    assert [each.verified.folder.slug for each in board.entries] == [each.entry for each in results]
    assert {each.entry for each in results} == {PLANNER, PLACER}
    ranked = {each.verified.folder.slug: each.verified for each in board.entries}
    plans = {name: [plan for plan in each.answers[0] if plan is not None] for name, each in ranked.items()}
    assert all(isinstance(plan, ShardingPlan) for own in plans.values() for plan in own)
    assert any(plan.split_tables for plan in plans[PLANNER])
    assert not any(plan.split_tables for plan in plans[PLACER])
    failures = {each.entry: each.failures for each in results}  # some tasks have no placement of whole tables
    assert {name: each.failures for name, each in ranked.items()} == failures
    assert failures[PLANNER] == 0 < failures[PLACER] < len(board.scorer.suite)
    assert [each.folder.slug for each in board.not_raced] == ["size-greedy"]
    assert improvements(verify_all(raced)[0]) == {}


def test_races_of_plans_are_on_the_pages(root: Path) -> None:
    (root / "README.md").write_text(f"{begin(TABLES)}\n{END}\n")
    write_pages(root)
    text = (root / "README.md").read_text()
    assert f"<summary>{SUITE} on a-machine</summary>\n" in text
    assert re.search(r"; the measurements of a plan have a standard deviation of \d\.\d%\.\n", text)
    assert outdated(root) == []
    files = {name: content.decode() for name, content in site_files(load_leaderboards(root)).items() if "data" in name}
    sheets = json.loads(files[f"data/{RACED}/entries/{PLANNER}.js"].partition(" = ")[2].rstrip(";\n"))["sheets"]
    assert all(sheet["shards"] and len(sheet["types"]) == 20 for sheet in sheets)
    assert '"answers":"Plans"' in files["data/index.js"]


def test_a_race_is_refused_where_an_entry_has_other_plans_by_now(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = ["leaderboard", "verify", "--root", str(root), RACED]
    assert main(verify) == 0
    assert capsys.readouterr().out == f"Valid: {RACED}.\n"
    path = root / ENTRY.replace(PLANNER, PLACER) / "plans.json"
    record = json.loads(path.read_text())
    for row in record["rows"]:
        for _, shards in row["plan"] or ():
            shards[0][0] = 1 - shards[0][0]  # the devices are alike, so it changes no score
    path.write_text(json.dumps(record))
    assert findings_of(root) == [f"{RACED}/race.json: measured/{SUITE}/{PLACER} has other plans by now; race it again."]
    assert main(verify) == 1


def test_an_entry_has_the_file_of_the_problem_of_its_suite(root: Path) -> None:
    folder = EntryFolder(root, "measured", SUITE, PLANNER)
    (folder.path / "plans.json").rename(folder.path / "placements.json")
    found = [str(each) for each in verify_entry(folder)[1]]
    assert f"{ENTRY}/placements.json: The folder holds entry.toml, plans.json and nothing else; remove it." in found
    assert f"{ENTRY}/plans.json: The file is missing." in found
    for suite, name in (("cpu-20x2", "placements.json"), (SUITE, "plans.json"), ("none", "placements.json")):
        assert EntryFolder(root, "measured", suite, "mine").answers == name
    assert EntryFolder(root, "sharding", "cpu-20x2", "mine").answers == "plans.json"  # which has a finding
    unknown = EntryFolder(root, "measured", "none", PLANNER)
    shutil.copytree(folder.path, unknown.path)
    assert sorted(read_files(unknown)[0]) == ["entry.toml", "placements.json"]
    assert any("'none' cannot be loaded" in str(each) for each in verify_entry(unknown)[1])


def test_drifting_tables_are_not_measured_and_plans_are_no_placements(tmp_path: Path, submit_as: Any) -> None:
    evaluation = evaluate(make_agent(PLANNER), SUITE)
    with pytest.raises(InvalidOptionError, match=f"submit to measured/{SUITE}/mine"):
        submit_as(EntryFolder(tmp_path, "simulated", SUITE, "mine"), PLANNER, [evaluation])
    with pytest.raises(InvalidOptionError, match="submit to replanning/drift-strong-600/mine"):
        submit_as(EntryFolder(tmp_path, "measured", "drift-strong-600", "mine"), PLANNER, [evaluation])
