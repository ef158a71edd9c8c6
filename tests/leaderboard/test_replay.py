from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shard_gym.leaderboard.boards import boards
from shard_gym.leaderboard.data import verified_boards
from shard_gym.leaderboard.replay import can_replay, replay
from shard_gym.leaderboard.replays import keep_replays, read_replays
from shard_gym.leaderboard.schema import ReplayRow
from shard_gym.leaderboard.sources import known_training
from shard_gym.leaderboard.verify import Verified, verify_all


def test_agents_of_shard_gym_are_placed_again(made: Path) -> None:
    entries = {each.place.slug: each for each in verify_all(made)[0]}
    assert [slug for slug, each in entries.items() if can_replay(each)] == ["random", "size-greedy"]
    for slug in ("random", "size-greedy"):
        done = replay(entries[slug], 3)
        assert (done.tasks, done.findings) == (3, ())
        assert done.seconds > 0


def test_placements_that_are_not_the_agents_own_are_found(root: Path, greedy_entry) -> None:
    greedy_entry.toml('name = "size-greedy"', 'name = "dim-greedy"')
    (entry,) = (each for each in verify_all(root)[0] if each.place.slug == "size-greedy")
    said = [str(finding) for finding in replay(entry, 5).findings]
    assert said
    assert "placements.json, task dlrm-20x4/test/" in said[0]
    assert "Replayed, the agent's placement costs" in said[0]


def test_options_that_the_agent_does_not_have_are_found(root: Path, greedy_entry) -> None:
    greedy_entry.toml("options = {}", "options = {speed = 9}")
    (entry,) = (each for each in verify_all(root)[0] if each.place.slug == "size-greedy")
    (finding,) = replay(entry, 5).findings
    assert "entry.toml: The agent cannot be made as declared" in str(finding)


def test_an_agent_that_was_trained_elsewhere_is_not_taken_for_the_shipped_one(made: Path) -> None:
    shipped = known_training("dreamshard")
    assert shipped is not None
    (entry,) = (each for each in verify_all(made)[0] if each.place.slug == "random")

    def declares(queries: int) -> Verified:
        said = entry.entry
        agent = said.agent.model_copy(update={"name": "dreamshard"})
        training = said.training.model_copy(update={"data": list(shipped.data), "queries": queries})
        return replace(entry, entry=said.model_copy(update={"agent": agent, "training": training}))

    assert can_replay(declares(shipped.queries))
    assert not can_replay(declares(shipped.queries - 1))


# Times that are kept


@pytest.fixture
def kept(root: Path) -> Path:
    """The file with the time of one entry."""
    (entry,) = (each for each in verify_all(root)[0] if each.place.slug == "random")
    row = ReplayRow(placements=entry.sha256, tasks=3, seconds=0.25, machine="a laptop")
    return keep_replays(root, {entry.place.id: row})


def test_a_kept_time_stands_on_the_board(root: Path, kept: Path) -> None:
    board = verified_boards(root)[0]
    seconds = {each.verified.place.slug: each.replayed_seconds for each in board.entries}
    assert seconds == {"random": 0.25, "size-greedy": None}
    assert boards(verify_all(root)[0])[0].entries[0].replayed_seconds is None


def test_without_a_file_nothing_was_replayed(root: Path) -> None:
    assert read_replays(root, []) == ({}, [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema": 1', '"schema": 2', "It is of schema 2"),
        ('"tasks": 3', '"tasks": 0', "entries.simulated/dlrm-20x4/random.tasks is refused"),
        ('"tasks": 3', '"tasks": 3, "by": "me"', "is not known"),
        ("0.25", "NaN", "It is not readable JSON"),
        ("dlrm-20x4/random", "dlrm-20x4/gone", "whose placements are not those it was taken with"),
        ("simulated/dlrm-20x4/random", "../x", "whose placements are not those it was taken with"),
    ],
)
def test_times_that_cannot_be_are_found(root: Path, kept: Path, old: str, new: str, message: str) -> None:
    text = kept.read_text()
    assert text.count(old) == 1
    kept.write_text(text.replace(old, new))
    said = [str(finding) for finding in read_replays(root, verify_all(root)[0])[1]]
    assert any(each.startswith("replayed.json: ") and message in each for each in said), said


def test_times_of_other_placements_are_found(root: Path, kept: Path, random_entry) -> None:
    random_entry.text(lambda text: text.replace('{"task"', ' {"task"', 1))
    (finding,) = read_replays(root, verify_all(root)[0])[1]
    assert "'simulated/dlrm-20x4/random', whose placements are not those" in str(finding)


def test_a_link_in_place_of_the_times_is_not_read(root: Path, kept: Path, tmp_path: Path) -> None:
    kept.rename(tmp_path / "elsewhere.json")
    kept.symlink_to(tmp_path / "elsewhere.json")
    rows, findings = read_replays(root, verify_all(root)[0])
    assert rows == {}
    assert [str(finding) for finding in findings] == ["replayed.json: It is a link; put the file itself there."]
