from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shard_gym.agents.search import LocalSearchAgent
from shard_gym.leaderboard.ranking import load_leaderboards
from shard_gym.leaderboard.replay import read_replays, replay, write_replays
from shard_gym.leaderboard.schema import ReplayRow
from shard_gym.leaderboard.training_data import recorded_training
from shard_gym.leaderboard.verified import VerifiedEntry, can_replay
from shard_gym.leaderboard.verify import verify_all


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
