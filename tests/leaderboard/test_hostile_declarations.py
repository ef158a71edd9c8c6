"""Declarations and copies that mislead readers, or stop the verifier."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from shard_gym.agents import make_agent
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard.boards import boards, contestants
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.replay import can_replay, replay
from shard_gym.leaderboard.store import Place
from shard_gym.leaderboard.submit import submit
from shard_gym.leaderboard.verify import verify_all, verify_entry

SUITE = "dlrm-20x4"


def said(entry) -> list[str]:
    return [str(finding) for finding in verify_entry(entry.place)[1]]


DECLARED = {
    "a Cyrillic letter": ("The random agent", "The r\u0430ndom agent", "name is refused: it must be made of Latin"),
    "an invisible letter": ("The random agent", "The random agent\u3164", "name is refused: it must be made of Latin"),
    "a blank of braille": ("The random agent", "\u2800", "name is refused"),
    "a tower of accents": ("The random agent", "Z" + "\u0301\u0302" * 40, "name is refused"),
    "an integer without end": ("search_budget = 0", f"search_budget = 0x{'f' * 20_000}", "search_budget is refused"),
    "a schema without end": ("schema = 1", f"schema = 0x{'f' * 20_000}", "It is of schema a int too large to show"),
    "keys in keys in keys": ("options = {}", f"options{'.x' * 3_000} = 1", "agent.options.x"),
    "an option with a line break": ("options = {}", 'options = {"x\\n::stop-commands::" = 1}', "options.x"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_what_misleads_or_has_no_end_is_refused_on_one_line(random_entry, case: str) -> None:
    old, new, expected = DECLARED[case]
    random_entry.toml(old, new)
    found = said(random_entry)
    assert any(re.match(f"simulated/dlrm-20x4/random/entry.toml: .*{expected}", each) for each in found), found
    assert not any("\n" in each for each in found)


def test_letters_with_accents_are_letters(random_entry) -> None:
    random_entry.toml("The random agent", "Größe zuerst, naïve")
    assert said(random_entry) == []


def test_an_agent_that_learns_says_so(random_entry) -> None:
    random_entry.toml('name = "random"', 'name = "ppo"')
    assert any("agent.learns is false, but ShardGym's agent 'ppo' learns" in each for each in said(random_entry))


def test_an_agent_that_does_not_learn_says_so_too(random_entry) -> None:
    random_entry.toml("learns = false", "learns = true")
    random_entry.toml("data = []", 'data = ["other: logs"]')
    assert any("agent.learns is true, but ShardGym's agent 'random' does not" in each for each in said(random_entry))


def test_a_copy_of_another_entry_is_refused(root: Path, random_entry) -> None:
    copy = random_entry.folder.with_name("my-own")
    shutil.copytree(random_entry.folder, copy)
    toml = copy / "entry.toml"
    toml.write_text(toml.read_text().replace("The random agent", "My own").replace('name = "random"', 'name = "own"'))
    (finding,) = verify_all(root)[1]
    assert str(finding) == (
        "simulated/dlrm-20x4/random/placements.json: The placements are those of simulated/dlrm-20x4/my-own, on every "
        "task and for every seed. An entry has placements of its own."
    )


def test_a_folder_name_taken_by_somebody_else_is_not_counted_for_both(root: Path, add_entry) -> None:
    add_entry(root, "size-greedy", "mlperf-x8", authors=["Mallory"])
    add_entry(root, "dim-greedy", "mlperf-x8", slug="random")
    assert contestants(boards(verify_all(root)[0]))[1] == []


def test_a_name_that_is_taken_is_refused_before_anything_is_written(root: Path, declare) -> None:
    place = Place(root, "simulated", SUITE, "mine")
    (finding,) = submit(
        place, [evaluate(make_agent("dim-greedy"), SUITE)], declare("dim-greedy", name="THE random-agent")
    )
    assert "is that of simulated/dlrm-20x4/random, 'The random agent'. Choose another." in str(finding)
    assert not place.folder.exists()


def test_half_of_a_character_is_no_name(root: Path, declare) -> None:
    place = Place(root, "simulated", SUITE, "mine")
    with pytest.raises(InvalidOptionError, match="which is no text"):
        submit(place, [evaluate(make_agent("dim-greedy"), SUITE)], declare("dim-greedy", authors=["\ud800"]))


def test_findings_stay_on_their_line() -> None:
    assert "\n" not in str(Finding("a\n::stop-commands::x", "It is.", "t\r\n1 entry holds."))


# Replaying


def verified(root: Path, slug: str):
    return next(each for each in verify_all(root)[0] if each.place.slug == slug)


@pytest.mark.parametrize("option", ['cost_model = "analytical"', 'name = "random"'])
def test_options_that_every_agent_is_made_with_are_no_options_of_one(root: Path, random_entry, option: str) -> None:
    random_entry.toml("options = {}", f"options = {{{option}}}")
    (finding,) = replay(verified(root, "random"), 2).findings
    assert "The agent cannot be made as declared: no agent has the option" in str(finding)


def test_only_local_search_may_depend_on_the_machine(root: Path, random_entry) -> None:
    random_entry.toml("options = {}", "options = {max_seconds = 1}")
    assert can_replay(verified(root, "random"))
    assert replay(verified(root, "random"), 2).findings


def test_no_seed_is_somebody_elses(root: Path, random_entry) -> None:
    greedy = evaluate(make_agent("lookup-greedy"), SUITE)
    by_task = {result.task: result.placement for result in greedy.tasks}

    def borrow(rows) -> None:
        for row in rows:
            if row["seed"] == 3:
                row["placement"] = by_task[row["task"]]

    random_entry.rows(borrow)
    claim = next(each for each in said(random_entry) if "scores.mean_cost_ms" in each)
    old, new = re.findall(r"[0-9.]+[0-9]", claim.split("mean_cost_ms is ")[1])
    random_entry.toml(f"mean_cost_ms = {old}", f"mean_cost_ms = {new}")
    findings = replay(verified(root, "random"), 5).findings
    assert [finding.seed for finding in findings] == [3]


def test_a_budget_that_is_not_the_agents_is_found(root: Path, random_entry) -> None:
    random_entry.toml("search_budget = 0", "search_budget = 7")
    (finding,) = replay(verified(root, "random"), 1).findings
    assert "planning.search_budget is 7, but the agent's is 0" in str(finding)
