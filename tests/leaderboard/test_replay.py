from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shard_gym.agents import LocalSearchAgent
from shard_gym.common.system import instruction_set
from shard_gym.leaderboard import EntryFolder, VerifiedEntry, load_leaderboards, verify_all
from shard_gym.leaderboard.entry import ReplayRow, can_replay
from shard_gym.leaderboard.replay import MARGIN, how_compared, read_replays, replay, write_replays
from shard_gym.leaderboard.training_data import recorded_training

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("slug", ["random", "size-greedy"])
def test_agents_of_shard_gym_repeat_their_placements(made: Path, verified, slug: str) -> None:
    entry = verified(made, slug)
    assert can_replay(entry)
    row, findings = replay(entry, 3)
    assert row is not None
    assert (row.tasks, row.placements, findings) == (3, entry.sha256, [])
    assert row.seconds > 0
    assert not can_replay(verified(made, "measured-greedy"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "size-greedy"', 'name = "dim-greedy"', "Replayed, the agent's placement costs"),
        ("search_budget = 0", "search_budget = 7", "planning.search_budget is 7, but the agent's is 0"),
    ],
)
def test_a_wrong_declaration_of_the_agent_is_found(
    root: Path, greedy_entry, verified, old: str, new: str, message: str
) -> None:
    greedy_entry.toml(old, new)
    entry = verified(root, "size-greedy")
    assert can_replay(entry)
    _, findings = replay(entry, 5)
    assert message in str(findings[0])


def test_the_placements_of_every_seed_are_compared(made: Path, verified) -> None:
    entry = verified(made, "random")
    costs = entry.costs_ms.copy()
    costs[3] += 1.0
    _, (finding,) = replay(replace(entry, costs_ms=costs), 5)
    assert finding.seed == 3
    assert "placements.json, task dlrm-20x4/test/" in str(finding)


@pytest.mark.parametrize(
    ("max_queries", "message"),
    [
        (9_000_000_000_000_000, "max_queries must be an integer from 1 to 10000000, not 9000000000000000"),
        (10_000_000, "planning.search_budget is 50000, but the agent's is 10000000"),
    ],
)
def test_a_search_that_takes_longer_than_declared_does_not_run(
    made: Path, verified, monkeypatch: pytest.MonkeyPatch, max_queries: int, message: str
) -> None:
    monkeypatch.setattr(LocalSearchAgent, "place", lambda *_: pytest.fail("it runs"))
    found = verified(made, "random")
    options = {"name": "local-search", "options": {"max_queries": max_queries}}
    agent = found.entry.agent.model_copy(update=options)
    planning = found.entry.planning.model_copy(update={"search_budget": 50_000})
    hostile = replace(found, entry=found.entry.model_copy(update={"agent": agent, "planning": planning}))
    assert can_replay(hostile)
    row, findings = replay(hostile, 1)
    assert row is None
    assert message in str(findings[0])


def test_an_agent_trained_elsewhere_is_not_the_shipped_one(made: Path, verified) -> None:
    shipped = recorded_training("dreamshard", "dlrm-20x4")
    assert shipped is not None
    verified_entry = verified(made, "random")

    def declares(queries: int) -> VerifiedEntry:
        entry = verified_entry.entry
        agent = entry.agent.model_copy(update={"name": "dreamshard"})
        training = entry.training.model_copy(update={"data": list(shipped.data), "queries": queries})
        return replace(verified_entry, entry=entry.model_copy(update={"agent": agent, "training": training}))

    assert can_replay(declares(shipped.queries))
    assert not can_replay(declares(shipped.queries - 1))


# Replays with other instructions than those that made the entry

ELSEWHERE = "NumPy SSE2, OpenBLAS Prescott"  # not those of a machine that runs this


@pytest.fixture(params=["where it was made", "elsewhere"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the replay has other instructions than the entry."""
    if request.param == "elsewhere":
        monkeypatch.setattr("shard_gym.leaderboard.replay.instruction_set", lambda: ELSEWHERE)
    return bool(request.param == "elsewhere")


def costing(entry: VerifiedEntry, changes: object) -> VerifiedEntry:
    return replace(entry, costs_ms=entry.costs_ms * changes)


def test_an_entry_says_what_it_was_made_with(made: Path, verified) -> None:
    assert verified(made, "random").entry.hardware.instructions == instruction_set()
    text = EntryFolder(made, "simulated", "dlrm-20x4", "random").path.joinpath("entry.toml").read_text()
    assert f'instructions = "{instruction_set()}"' in text


def test_one_that_does_not_say_it_was_made_as_avx2(root: Path, random_entry, verified) -> None:
    random_entry.toml(f'instructions = "{instruction_set()}"\n', "")
    assert random_entry.findings() == []
    assert verified(root, "random").entry.hardware.instructions == "NumPy AVX2, OpenBLAS Haswell"


def test_other_instructions_may_give_other_costs_within_the_margin(made: Path, verified, elsewhere: bool) -> None:
    entry = verified(made, "random")
    alternating = 1.0 + 0.9 * MARGIN * (-1.0) ** np.arange(50)
    row, findings = replay(costing(entry, alternating), 10)
    assert row is not None
    if not elsewhere:
        assert len(findings) == 10
        return
    assert findings == []
    assert row.deviation == pytest.approx(1 / (1 - 0.9 * MARGIN) - 1)
    assert how_compared(entry, row) == (
        f"Made with {instruction_set()}, replayed with {ELSEWHERE}: costs agree within 9.89 %; only with the same must "
        "they be equal."
    )


def test_equal_costs_are_said_to_be_equal(made: Path, verified, elsewhere: bool) -> None:
    entry = verified(made, "size-greedy")
    row, findings = replay(entry, 3)
    assert row is not None
    assert (findings, row.deviation) == ([], pytest.approx(0.0, abs=1e-9))
    assert ("costs are equal" in how_compared(entry, row)) == elsewhere
    assert row.instructions == (ELSEWHERE if elsewhere else instruction_set())


def test_answers_of_a_better_agent_under_another_name_are_found(
    root: Path, add_entry, verified, elsewhere: bool
) -> None:
    add_entry(root, "lane-greedy", slug="forged", as_agent="size-lookup-greedy")
    forged = verified(root, "forged")
    assert can_replay(forged)
    row, findings = replay(forged, 10)
    assert row is not None
    assert findings
    assert ("with others" in str(findings[0])) == elsewhere


@pytest.mark.parametrize("share", [0.95, 1.05])
def test_costs_that_all_differ_one_way_are_found(made: Path, verified, elsewhere: bool, share: float) -> None:
    """Each may differ by more, but not the mean of ten; of one it may."""
    entry = costing(verified(made, "size-greedy"), share)
    found = [str(each) for each in replay(entry, 10)[1]]
    if elsewhere:
        (finding,) = found
        assert f"10 placements cost {5.26 if share < 1 else 4.76} % {'more' if share < 1 else 'less'}" in finding
        assert "the mean of so many may differ by 3.16 %" in finding
        assert replay(entry, 1)[1] == []
    else:
        assert len(found) == 10


@pytest.mark.parametrize(("declared", "message"), [(0.001, "the agent took 5 s for a task"), (0.06, "")])
def test_a_declared_time_that_no_cpu_reaches_is_found(
    made: Path, verified, monkeypatch: pytest.MonkeyPatch, declared: float, message: str
) -> None:
    found = verified(made, "size-greedy")
    planning = found.entry.planning.model_copy(update={"seconds": declared})
    monkeypatch.setattr("shard_gym.leaderboard.replay.np.median", lambda _: 5.0)
    findings = replay(replace(found, entry=found.entry.model_copy(update={"planning": planning})), 3)[1]
    assert [message in str(each) for each in findings] == ([True] if message else [])


AS_AVX2 = {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR"}
AS_SSE = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"}


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the variables are of x86")
@pytest.mark.parametrize(
    ("environment", "entry", "said"),
    [
        (
            AS_AVX2,
            "sharding/shard-mlperf-x8/dreamshard",
            "Its costs are the entry's, made with NumPy AVX2, OpenBLAS Haswell as here.",
        ),
        (
            AS_SSE,
            "sharding/shard-mlperf-x8/dreamshard",
            "Made with NumPy AVX2, OpenBLAS Haswell, replayed with NumPy SSE4, OpenBLAS Nehalem: costs agree ",
        ),
    ],
)
def test_a_search_under_a_network_is_confirmed_with_either_instructions(
    environment: dict[str, str], entry: str, said: str
) -> None:
    command = ["shard_gym", "leaderboard", "verify", entry, "--replay", "1"]
    where = {**os.environ, **environment, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, env=where, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in " ".join(done.stdout.split())


# The file of replayed times


@pytest.fixture
def times(root: Path, verified) -> Path:
    """The file with the time of one entry."""
    entry = verified(root, "random")
    row = ReplayRow(placements=entry.sha256, tasks=3, seconds=0.25, machine="a laptop")
    return write_replays(root, {entry.folder.id: row})


def findings_of(root: Path) -> list[str]:
    return [str(finding) for finding in read_replays(root, verify_all(root)[0])[1]]


def test_the_leaderboard_has_the_replayed_times(root: Path, times: Path) -> None:
    assert findings_of(root) == []
    seconds = {each.verified.folder.slug: each.replayed_seconds for each in load_leaderboards(root)[0].entries}
    assert seconds == {"random": 0.25, "size-greedy": None}
    times.unlink()
    assert read_replays(root, []) == ({}, [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema": 1', '"schema": 2', "It has schema 2"),
        ('"tasks": 3', '"tasks": 0', "entries.simulated/dlrm-20x4/random.tasks is refused"),
        ('"tasks": 3', '"tasks": 51', "taken with 51 tasks, but there are 50"),
        ("0.25", "NaN", "It is not readable JSON"),
        ("dlrm-20x4/random", "dlrm-20x4/gone", "which does not exist"),
        ("dlrm-20x4/random", "dlrm-20x4/size-greedy", "but the time was taken with other answers"),
    ],
)
def test_times_that_cannot_be_of_an_entry_are_found(root: Path, times: Path, old: str, new: str, message: str) -> None:
    text = times.read_text()
    assert text.count(old) == 1
    times.write_text(text.replace(old, new))
    found = findings_of(root)
    assert any(each.startswith("replayed.json: ") and message in each for each in found), found


def test_an_invalid_entry_is_not_reported_twice(root: Path, times: Path, random_entry) -> None:
    random_entry.rows(lambda rows: rows.pop(3))
    assert findings_of(root) == []


def test_a_link_to_a_file_of_times_is_not_read(root: Path, times: Path, tmp_path: Path) -> None:
    times.rename(tmp_path / "elsewhere.json")
    times.symlink_to(tmp_path / "elsewhere.json")
    rows, findings = read_replays(root, verify_all(root)[0])
    assert rows == {}
    assert [str(finding) for finding in findings] == ["replayed.json: It is a link; put the file itself there."]


def test_the_page_names_the_entries_whose_instructions_are_unknown() -> None:
    board = ROOT / "leaderboards"
    found = [each.parent for each in board.glob("*/*/*/entry.toml") if '"unknown instructions"' in each.read_text()]
    page = (ROOT / "docs" / "results" / "leaderboard-checks.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"The two entries with unknown\ninstructions are not among these: (.*?)\.\n", page, re.DOTALL)
    assert set(re.findall(r"`([\w-]+)`", said)) == {name for each in found for name in (each.name, each.parent.name)}
    assert len(found) == 2
