from __future__ import annotations

from pathlib import Path

from shard_gym.leaderboard.replay import can_replay, replay
from shard_gym.leaderboard.verify import verify_all


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
