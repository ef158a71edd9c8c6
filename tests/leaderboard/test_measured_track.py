"""The measured track: entries are placements, and races that were edited or are out of date are refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cli import main
from shard_gym.cli.race import _from_leaderboard, race
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.markdown import END, begin
from shard_gym.cost_models.measured import model as measured_model
from shard_gym.envs.real.tasks import as_measured
from shard_gym.leaderboard import load_leaderboards, verify_all, write_pages
from shard_gym.leaderboard.entry import can_replay
from shard_gym.leaderboard.markdown import outdated
from shard_gym.leaderboard.measured_track import read_races
from shard_gym.leaderboard.race import load_race
from shard_gym.leaderboard.ranking import competitors
from shard_gym.leaderboard.site import site_files
from shard_gym.leaderboard.store import TABLES
from shard_gym.tasks import load_suite

pytest.importorskip("pyarrow")

SUITE, AGENTS = "cpu-20x2", ("lookup-greedy", "random", "size-greedy")
RACED = f"measured/{SUITE}/races/a-machine"
ENTRY = f"measured/{SUITE}/random"
JSON = f"{RACED}/race.json"


@pytest.fixture(scope="module", autouse=True)
def _machine(new_machine: Any) -> Iterator[None]:
    """Races are measured on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_model, "MeasuredCostModel", lambda *_, **options: new_machine(iterations=10))
        yield


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory, add_entry: Any) -> Path:
    """Leaderboards with three entries of the measured track, two of them raced; tests must not change it."""
    root = tmp_path_factory.mktemp("measured") / "leaderboards"
    root.mkdir()
    for agent in AGENTS[:2]:
        add_entry(root, agent, SUITE, track="measured")
    race(SUITE, root / RACED, leaderboard=root, rounds=3)
    add_entry(root, AGENTS[2], SUITE, track="measured")
    return root


@pytest.fixture
def root(raced: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(raced, tmp_path / "leaderboards"))


def findings_of(root: Path) -> list[str]:
    entries, findings = verify_all(root)
    return [str(each) for each in (*findings, *read_races(root, entries)[1])]


def test_a_race_is_a_leaderboard_and_entries_can_wait_for_theirs(raced: Path) -> None:
    assert findings_of(raced) == []
    (leaderboard,) = load_leaderboards(raced)
    assert leaderboard.race is not None
    race = leaderboard.race.race
    assert (leaderboard.track, leaderboard.hardware, leaderboard.best) == ("measured", race.hardware, None)
    assert leaderboard.scorer.suite[0].tables.workload.batch_size == 2048
    for ranked, result in zip(leaderboard.entries, race.results(), strict=True):
        assert ranked.verified.folder.slug == result.entry
        assert (ranked.mean_cost_ms, ranked.interval_ms) == (result.mean_ms, result.interval_ms)
        assert (ranked.ratio, ranked.ratio_interval) == (result.ratio, result.ratio_interval)
        assert ranked.verified.costs_ms.mean() == pytest.approx(result.mean_ms)
        assert ranked.verified.failures == result.failures
        assert not can_replay(ranked.verified)
    assert [each.folder.slug for each in leaderboard.not_raced] == ["size-greedy"]
    assert competitors([leaderboard]) == ((), [])


def test_a_placement_that_could_not_be_measured_is_a_failure_in_the_tables(
    root: Path, monkeypatch: pytest.MonkeyPatch, new_machine: Any
) -> None:
    (leaderboard,) = load_leaderboards(root)
    assert leaderboard.race is not None
    bad = leaderboard.race.race.answers["random"][3].tolist()
    failing = new_machine(fails=lambda tables, placement: placement == bad)
    shutil.rmtree(root / RACED)
    monkeypatch.setattr(measured_model, "MeasuredCostModel", lambda *_, **options: failing)
    race(SUITE, root / RACED, leaderboard=root, rounds=3)
    assert findings_of(root) == []
    (leaderboard,) = load_leaderboards(root)
    ranked = {each.verified.folder.slug: each.verified for each in leaderboard.entries}
    assert {name: each.failures for name, each in ranked.items()} == {"lookup-greedy": 0, "random": 1, "size-greedy": 0}
    assert ranked["random"].costs_ms.argmax() == 3


def test_a_race_of_few_rounds_or_of_another_batch_ranks_nobody(
    root: Path, monkeypatch: pytest.MonkeyPatch, new_machine: Any
) -> None:
    shutil.rmtree(root / RACED)
    race(SUITE, root / RACED, leaderboard=root, rounds=2)
    assert findings_of(root) == [f"{JSON}: It has 2 rounds; the measured track wants at least 3."]
    shutil.rmtree(root / RACED)
    monkeypatch.setattr(measured_model, "MeasuredCostModel", lambda *_, **options: new_machine(batch_size=512))
    race(SUITE, root / RACED, leaderboard=root, rounds=3)
    assert findings_of(root) == [f"{JSON}: It measured batches of 512 samples; race without --batch-size."]


def test_a_race_is_verified_by_its_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify = ["leaderboard", "verify", "--root", str(root)]
    assert main([*verify, RACED]) == 0
    assert capsys.readouterr().out == f"Valid: {RACED}.\n"
    (root / JSON).write_text((root / JSON).read_text().replace('"hardware": "', '"hardware": "other-'))
    assert main([*verify, RACED]) == 1
    assert JSON in capsys.readouterr().out
    assert main([*verify, f"{RACED}-2"]) == 1


def test_races_are_on_the_pages(root: Path) -> None:
    (root / "README.md").write_text(f"{begin(TABLES)}\n{END}\n")
    write_pages(root)
    text = (root / "README.md").read_text()
    assert f"<summary>{SUITE} on a-machine</summary>\n" in text
    assert re.search(r"3 rounds of 10 iterations on .*, layout \w+; .* deviation of \d\.\d%\.\n", text)
    assert re.search(r"\| \[The lookup-greedy agent\]\(.*\| 1.000 \| [01].\d\d \| 0 \|", text)
    assert "Not raced yet: [The size-greedy agent](https://example.org/code)." in text
    assert outdated(root) == []
    ranking = site_files(load_leaderboards(root))[f"data/{RACED}/ranking.js"].decode()
    assert re.findall('"id":"([^"]+)"', ranking) == ["lookup-greedy", "random"]
    shutil.rmtree(root / RACED)
    write_pages(root)
    text = (root / "README.md").read_text()
    assert f"<summary>{SUITE}</summary>\n" in text
    assert text.count("](https://example.org/code)") == 3


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edited(root: Path) -> None:
        record = json.loads((root / JSON).read_text())
        change(record)
        (root / JSON).write_text(json.dumps(record))

    return edited


def replace_placements(root: Path) -> None:
    """The entry swaps its devices, which changes no score."""
    path = root / ENTRY / "placements.json"
    record = json.loads(path.read_text())
    for row in record["rows"]:
        row["placement"] = [1 - device for device in row["placement"]]
    path.write_text(json.dumps(record))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "an edited result": (
        edit(lambda record: record["results"][0].update(mean_ms=1.0)),
        f"{JSON}: results in .* is not what the raw rounds",
    ),
    "no hardware": (edit(lambda record: record.pop("hardware")), f"{JSON}: It does not describe a race"),
    "a list of batch sizes": (
        edit(lambda record: record["settings"].update(batch_size=[512])),
        f"{JSON}: It does not describe a race",
    ),
    "a batch larger than the suite's": (edit(lambda record: record["settings"].update(batch_size=10**6)), f"{JSON}: "),
    "other placements by now": (replace_placements, f"{JSON}: {ENTRY} has other placements by now; race it again"),
    "an entry without a folder": (
        lambda root: shutil.rmtree(root / ENTRY),
        f"{JSON}: It has an entry 'random', but the suite has no folder",
    ),
    "an entry that is not valid": (
        lambda root: (root / ENTRY / "placements.json").write_text("{}"),
        f"{ENTRY}/placements.json: ",
    ),
    "a race of another suite": (
        lambda root: shutil.move(root / f"measured/{SUITE}", root / "measured/cpu-40x4"),
        "measured/cpu-40x4/races/a-machine/race.json: ",
    ),
    "no raw rounds": (
        lambda root: (root / RACED / "rounds.parquet").unlink(),
        f"{RACED}/rounds.parquet: The file is missing",
    ),
    "a further file": (
        lambda root: (root / RACED / "notes").write_text("x"),
        f"{RACED}/notes: The folder holds race.json, rounds.parquet and nothing else",
    ),
    "a file beside the races": (
        lambda root: (root / RACED).with_name("x").write_text("x"),
        f"measured/{SUITE}/races/x: No file is allowed here",
    ),
    "a name in capitals": (
        lambda root: shutil.move(root / RACED, (root / RACED).with_name("H200")),
        f"measured/{SUITE}/races/H200: The folder of a race is named with",
    ),
    "a link": (
        lambda root: (root / RACED).with_name("other").symlink_to(root / RACED),
        f"measured/{SUITE}/races/other: It is a link",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_race_that_is_not_that_of_the_entries_is_refused(root: Path, case: str) -> None:
    change, expected = REFUSED[case]
    change(root)
    found = findings_of(root)
    assert any(re.match(expected, each) for each in found), found


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            "scores",
            r"\[cost_model] and \[scores] are refused in the measured track, where races score, and required in others",
        ),
        ("cost_model", r"\[cost_model] and \[scores] are refused"),
        ("hardware.gpu", "The key 'hardware.gpu' is not known"),
    ],
)
def test_an_entry_of_the_measured_track_claims_no_score(root: Path, section: str, says: str) -> None:
    path = root / ENTRY / "entry.toml"
    added = {
        "scores": "\n[scores]\nmean_cost_ms = 1.0\nfailures = 0\n",
        "cost_model": f'\n[cost_model]\nname = "measured"\nsha256 = "{"0" * 64}"\n',
        "hardware.gpu": 'gpu = "H200"\n',  # [hardware] is the last section
    }
    path.write_text(path.read_text() + added[section])
    assert any(re.match(f"{ENTRY}/entry.toml: {says}", each) for each in findings_of(root))


def test_a_copy_is_refused_within_the_track_only(root: Path, add_entry: Any) -> None:
    add_entry(root, "size-greedy", SUITE)
    assert findings_of(root) == []
    with pytest.raises(AssertionError, match=f"100% of the placements are those of measured/{SUITE}/size-greedy"):
        add_entry(root, "size-greedy", SUITE, track="measured", slug="copy", as_agent="copy", name="Copy")


def test_only_valid_entries_are_raced_with_the_placements_of_seed_0(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / f"measured/{SUITE}/size-greedy/entry.toml").write_text("")
    placements = _from_leaderboard(root, SUITE)
    assert list(placements) == ["lookup-greedy", "random"]
    rows = json.loads((root / ENTRY / "placements.json").read_text())["rows"]
    assert [each.tolist() for each in placements["random"] if each is not None] == [
        row["placement"] for row in rows if row["seed"] == 0
    ]
    assert f"measured/{SUITE}/size-greedy is not valid" in capsys.readouterr().err.replace("\n", " ")


def test_entries_are_raced_on_all_test_tasks_and_more_entries_may_join(
    root: Path, tmp_path: Path, new_machine: Any
) -> None:
    for options in ({"split": "train"}, {"tasks": 2}):
        with pytest.raises(InvalidOptionError, match="raced on all test tasks; leave out --split and --tasks"):
            race(SUITE, tmp_path / "race", leaderboard=root, **options)
    with pytest.raises(InvalidOptionError, match="Two entries are named 'random'"):
        race(SUITE, tmp_path / "race", ("random",), root)
    race(SUITE, tmp_path / "race", ("dim-greedy",), root, rounds=1)
    done = load_race(tmp_path / "race", as_measured(load_suite(SUITE), new_machine()))
    assert list(done.answers) == ["lookup-greedy", "random", "size-greedy", "dim-greedy"]
