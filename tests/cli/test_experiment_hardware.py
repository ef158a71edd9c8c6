"""`shard-gym experiment hardware`, on a machine whose times are made up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.experiments.hardware import CALIBRATED, POLICY
from shard_gym.leaderboard.race_files import load_race
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

for package in ("torch", "sb3_contrib", "scipy", "matplotlib", "pyarrow"):
    pytest.importorskip(package)

SUITE = "cpu-20x2"
TINY = ("--suite", SUITE, "--budgets", 4, 8, "--seeds", 1, "--tasks", 3, "--rounds", 2, "--policy-iterations", 1)


@dataclass(frozen=True, kw_only=True)
class SmallSearch(SearchOptions):
    measurements: int = 4
    cost_updates: int = 30
    queries: int = 500


@dataclass(frozen=True, kw_only=True)
class SmallPaper(PaperOptions):
    measurements: int = 4
    cost_updates: int = 5
    policy_updates: int = 1
    episodes: int = 2


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "dream-search", SmallSearch)
    monkeypatch.setitem(PRESETS, "paper", SmallPaper)


def test_a_study_is_made_once_and_its_page_follows_from_the_raw_rounds(
    run, machine, small, tmp_path: Path, markdown_rows
) -> None:
    out, asked = tmp_path / "out", ("experiment", "hardware", "--out", tmp_path / "out", *TINY)
    outcome = run(*asked, "--runs", tmp_path / "runs")
    assert outcome.code == 0, outcome.err
    page = (out / "hardware-cpu.md").read_text()
    learned = [f"{preset}-{budget}" for preset in ("dream-search", "paper") for budget in (4, 8)]
    rows = markdown_rows(page, "## Costs")
    assert set(rows) == {"random", *PAPER_HEURISTICS, "local-search", *learned, CALIBRATED, POLICY}
    assert [rows[name][0] for name in learned] == ["4", "8", "4", "8"]
    assert rows[POLICY][0] == "0"
    assert f"shard-gym experiment hardware --suite {SUITE} --device cpu --budgets 4 8" in page

    task_suite = load_suite(SUITE)
    race = load_race(out / "hardware-cpu", TaskSuite(SUITE, task_suite.tasks[:3], "test"))
    means = {each.entry: each.mean_ms for each in race.results()}
    assert float(rows["random"][1]) == pytest.approx(means["random"], rel=1e-3)
    assert float(rows["paper-8"][1]) == pytest.approx(means["paper-8-seed0"], rel=1e-3)

    measured = len(machine.jobs)
    raced = 2 * 2 * sum(each is not None for own in race.placements.values() for each in own)
    # dream-search-4 repeats what dream-search-8 measured; of paper-4, whose learning rate falls faster, half is new.
    assert measured - raced <= 2 * (8 + 8 + 4)
    assert run(*asked, "--runs", tmp_path / "runs").code == 0
    assert len(machine.jobs) == measured, "a study that is complete measures nothing"
    (out / "hardware-cpu.md").unlink()
    assert run(*asked, "--report-only").code == 0
    assert (out / "hardware-cpu.md").read_text() == page

    rounds = out / "hardware-cpu" / "rounds.parquet"
    rounds.write_bytes(rounds.read_bytes()[:-9] + b"otherwise")
    outcome = run(*asked, "--report-only")
    assert outcome.code == 2
    assert "rounds.parquet" in outcome.err.replace("\n", "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--budgets", 50), "50 measured placements are no whole number of iterations of dream-search"),
        (("--budgets", 300, 100), "budgets must be ascending numbers of placements"),
        (("--tasks", 21), "tasks must be from 1 to 20, or 0 for all; it is 21"),
        (("--suite", "cpu-40x5"), "There is no suite named 'cpu-40x5'"),
        (("--report-only",), "race.json"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(run, tmp_path: Path, options, says: str) -> None:
    outcome = run("experiment", "hardware", "--runs", tmp_path / "no", "--out", tmp_path / "out", *options)
    assert outcome.code == 2
    assert says in outcome.err.replace("\n", " ")
    assert not (tmp_path / "no").exists()
