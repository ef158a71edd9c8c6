from __future__ import annotations

from pathlib import Path

import pytest

from shard_gym.agents import AGENTS, AgentEntry
from shard_gym.agents.registry.options import placing_options
from shard_gym.agents.training import LEARNERS, LearnerEntry
from shard_gym.leaderboard.leagues import GUIDED, SEARCH, ZERO_QUERY


def test_it_lists_every_agent_on_a_line(run) -> None:
    """Its name, its league as in the leaderboards, and what it is, whole and in no other line."""
    out = run.ok("agents", columns=80).out
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line.startswith("  ")]
    listed = [name for name, _ in lines]
    assert sorted(listed) == sorted([*AGENTS, *LEARNERS])
    assert "…" not in out
    assert all(len(line) <= 80 for line in out.splitlines() if line.startswith("  "))
    about = dict(lines)
    assert about["plan-search"].startswith(f"{SEARCH}  ")
    assert about["cost-greedy"].startswith(f"{GUIDED}  ")
    assert about["torchrec"].startswith(f"{ZERO_QUERY}  ")
    assert about["ridge"] == "forecasts by a ridge regression"
    assert len(set(about.values())) == len(about)
    assert "Options of an agent: shard-gym agents NAME" in out


def test_every_agent_that_is_named_has_its_options(run) -> None:
    code, out, err = run("agents", *{**AGENTS, **LEARNERS}, columns=200)
    assert (code, err) == (0, "")
    for name in (*AGENTS, *LEARNERS):
        assert f"\n{name}: " in out or f"\n{name}, preset=" in out
    assert "queries=200000 " in out
    assert "cost_features=true" in out
    assert "iterations=120 " in out  # dqn's own default
    assert "iterations=93 " in out.partition("\nppo: ")[2].partition("\na2c: ")[0]  # that of ppo on replanning
    assert "learns replanning" in out


def test_it_lists_the_agents_that_are_named(run) -> None:
    out = run.ok("agents", "local-search", columns=200).out
    assert [line for line in out.splitlines() if "=" in line and "--" not in line] == [
        line
        for line in out.splitlines()
        if line.startswith(tuple(f"  {o.name}=" for o in placing_options("local-search")))
    ]
    assert "ppo" not in out
    run.refused("There is no agent named 'local-serch'. Did you mean 'local-search'?", "agents", "local-serch")


def test_agents_of_replanning_say_what_they_are_tuned_on_and_what_tells_them_apart(run) -> None:
    out = " ".join(run("agents", "ski-last-day", "adwin", columns=200).out.split())
    assert "plans are for the last day factor=tuned" in out
    assert "value=(required)" in out
    run.refused("only shard-gym show takes it", "agents", "oracle")


def test_an_agent_whose_extra_is_missing_says_so(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ppo_of_absent.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(LEARNERS, "ppo", AgentEntry(learners=(LearnerEntry("ppo_of_absent:Ppo", "x:y", "sb3"),)))
    for names in ((), ("ppo",)):
        assert "pip install -e '.[sb3]'" in run.ok("agents", *names, columns=200).out


def test_an_entry_that_leads_nowhere_does_not_keep_the_others_from_being_listed(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "lost", AgentEntry("nomod:Mine"))
    monkeypatch.setitem(LEARNERS, "stray", AgentEntry(learners=(LearnerEntry("json:Nope", "json:loads"),)))
    out = run.ok("agents", columns=200).out
    assert "The entry of agent 'lost' names 'nomod:Mine', but there is no module 'nomod'." in out
    assert "The entry of agent 'stray' names 'json:Nope', but there is nothing named 'Nope' in json." in out
    assert "\n  plan-search " in out
    out = run.ok("agents", "lost", "stray", "plan-search", columns=200).out
    assert "lost: The entry of agent 'lost' names 'nomod:Mine'" in out
    assert "stray: The entry of agent 'stray' names 'json:Nope'" in out
    assert "\nplan-search: " in out


@pytest.mark.parametrize("command", ["show", "place"])
def test_commands_take_the_options_of_an_agent(run, command: str) -> None:
    tables = ("--tables", "merlin-tiny", "--hardware", "a100-dgx", "--num-devices", 4)
    where = ("--suite", "dlrm-20x4") if command == "show" else tables
    code, _, err = run(command, *where, "--agent", "local-search", "--option", "max_queries=50")
    assumed = "Lookup statistics are assumed, not recorded" if command == "place" else ""
    assert (code, err[: len(assumed) or None]) == (0, assumed)
    run.refused("queries", command, *where, "--agent", "local-search", "--option", "queries=50")
    run.refused("--option wants KEY=VALUE", command, *where, "--agent", "local-search", "--option", "50")


def test_the_helps_name_the_list(run) -> None:
    for command in ("train", "show", "place"):
        assert "shard-gym agents" in " ".join(run(command, "--help", columns=200).out.split())
