from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents import make_agent
from shard_gym.common.text import format_ms
from shard_gym.evaluation import evaluate
from shard_gym.tasks import Task

README = Path(__file__).parents[2] / "leaderboards" / "README.md"
SUITE = "merlin-tiny-x8"
ENTRY = f"simulated/{SUITE}/greedy"
OWN = ("--deterministic", "--no-training")
FACTS = ("--name", "Greedy", "--author", "Ada Example", "--licence", "MIT", "--commit", "0" * 40)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A working directory with an empty folder of leaderboards."""
    (tmp_path / "leaderboards").mkdir()
    (tmp_path / "leaderboards" / "README.md").write_text(README.read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known_placement(task: Task) -> Any:
    """The known placement; it counts no evaluations."""
    return task.known_placement


def submitted(run, agent: str = "size-greedy", entry: str = ENTRY) -> None:
    outcome = run.ok("leaderboard", "submit", entry, *FACTS, "--agent", agent)
    assert "Written and verified" in outcome.out


@pytest.mark.parametrize("command", ["submit", "verify", "render", "site"])
def test_no_help_is_wider_than_80(run, command: str) -> None:
    usage, *lines = run("leaderboard", command, "--help").out.splitlines()
    assert usage.startswith(f"usage: shard-gym leaderboard {command}")  # a terminal wraps this one
    assert max(map(len, lines)) <= 80
    assert "{None}" not in "".join(lines)


def test_submit_verify_render_and_site(run, folder: Path) -> None:
    submitted(run)
    assert run("leaderboard", "verify", "--all").out == "1 entry is valid.\n"
    assert run("leaderboard", "verify", ENTRY).code == 0
    stale = run("leaderboard", "render", "--check")
    assert stale.code == 1
    assert "README.md: It is not up to date." in stale.out
    assert run("leaderboard", "render").code == 0
    assert run("leaderboard", "render", "--check").code == 0
    assert "| Greedy |" in (folder / "leaderboards" / "README.md").read_text()
    assert sorted(path.name for path in (folder / "leaderboards").iterdir()) == ["README.md", "simulated"]
    built = run.ok("leaderboard", "site")
    assert "Open build/leaderboard-site/index.html." in built.out
    assert (folder / "build" / "leaderboard-site" / "data" / f"{ENTRY.replace(SUITE, SUITE + '/entries')}.js").is_file()


def test_a_submission_says_its_league_and_queries_are_declared(run, folder: Path) -> None:
    submit = ("leaderboard", "submit", ENTRY, *FACTS)
    refused = run(*submit, "--agent", "size-greedy", "--planning-queries", 5)
    assert refused.code == 1
    assert "agent 'size-greedy' never evaluates the cost model when it answers" in refused.out
    (folder / "mine.json").write_text(json.dumps(evaluate(known_placement, SUITE).to_json()))
    run.refused("got 2", *submit, *(2 * ("--evaluation", "mine.json")), *OWN)
    mine = run.ok(*submit, "--evaluation", "mine.json", *OWN, "--planning-queries", 5)
    assert "5 evaluations of the scoring cost model for a task while it answers: league guided." in mine.out
    assert (
        "league zero-query." in run(*submit[:2], f"{ENTRY}-2", *FACTS[2:], "--name", "Two", "--agent", "dim-greedy").out
    )


def test_a_submission_says_its_mean_and_ranks_and_replaces_only_what_it_is_told_to(run, folder: Path) -> None:
    run.ok("leaderboard", "submit", f"{ENTRY}-2", *FACTS, "--name", "Random", "--agent", "random")
    submit = ("leaderboard", "submit", ENTRY, *FACTS, "--agent")
    mean = {name: evaluate(make_agent(name), SUITE).mean_cost_ms for name in ("dim-greedy", "lookup-greedy")}
    out = run.ok(*submit, "dim-greedy").out
    means = f"Its mean is {format_ms(mean['dim-greedy'])} ms: rank 1 of 2 in the suite and rank 1 of 2 in its league"
    assert means in " ".join(out.split())
    run.refused(f"There is an entry {ENTRY} already. Choose another name, or give --replace.", *submit, "lookup-greedy")
    out = run.ok(*submit, "lookup-greedy", "--replace").out
    assert f"Its mean is {format_ms(mean['lookup-greedy'])} ms" in " ".join(out.split())
    assert 'name = "lookup-greedy"' in (folder / "leaderboards" / ENTRY / "entry.toml").read_text()
    assert run.ok("leaderboard", "verify", "--all").out == "All 2 entries are valid.\n"
    refused = run(*submit, "size-greedy", "--replace", "--training-data", f"{SUITE}/test")
    assert refused.code == 1  # and what was there stays
    assert 'name = "lookup-greedy"' in (folder / "leaderboards" / ENTRY / "entry.toml").read_text()
    other = ("leaderboard", "submit", f"{ENTRY}-3", *FACTS, "--agent", "size-greedy", "--replace")
    run.refused(f"There is no entry {ENTRY}-3 to replace.", *other)


def test_verify_lists_every_finding_and_fails(run, folder: Path) -> None:
    submitted(run)
    path = folder / "leaderboards" / ENTRY / "placements.json"
    record = json.loads(path.read_text())
    record["rows"][0]["placement"] = [0] * 55
    path.write_text(json.dumps(record))
    (path.parent / "extra").write_text("x")
    outcome = run("leaderboard", "verify", "--all")
    assert outcome.code == 1
    assert f"{ENTRY}/placements.json, task {SUITE}/test/0, seed 0: Device 0 is given 55 tables" in outcome.out
    assert f"{ENTRY}/extra: The folder holds" in outcome.out
    assert "The entries are not valid: 2 findings." in outcome.out
    for command in ("render", "site"):
        run.refused("2 findings, the first:", "leaderboard", command)


def test_replay_compares_with_the_agent(run, folder: Path) -> None:
    submitted(run)
    outcome = run.ok("leaderboard", "verify", "--all", "--replay", 1)
    assert f"{ENTRY}: 1 task replayed" in outcome.out
    path = folder / "leaderboards" / ENTRY / "entry.toml"
    path.write_text(path.read_text().replace('name = "size-greedy"', 'name = "lookup-greedy"'))
    assert run("leaderboard", "verify", "--all").code == 0
    assert run("leaderboard", "verify", "--all", "--replay", 1).code == 1


def test_replayed_times_are_written_and_shown(run, folder: Path) -> None:
    submitted(run)
    assert run("leaderboard", "verify", "--all", "--replay", 1).code == 0
    assert not (folder / "leaderboards" / "replayed.json").exists()
    written = run("leaderboard", "verify", "--all", "--replay", 1, "--keep-times")
    assert "Written: leaderboards/replayed.json." in written.out
    run("leaderboard", "render")
    (row,) = (each for each in (folder / "leaderboards" / "README.md").read_text().splitlines() if "| Greedy |" in each)
    assert row.split("|")[8].strip()
    kept = folder / "leaderboards" / "replayed.json"
    kept.write_text(kept.read_text().replace('"tasks": 1', '"tasks": "1"'))
    assert run("leaderboard", "verify", "--all").code == 1
    assert run("leaderboard", "render").code == 2
    assert run("leaderboard", "verify", "--all", "--replay", 1, "--keep-times").code == 0
    assert run("leaderboard", "verify", "--all").code == 0


def test_improvements_are_printed_and_written(run, folder: Path, monkeypatch) -> None:
    from shard_gym.tasks.suites import best_known

    monkeypatch.setattr(best_known, "BEST_KNOWN", folder / "best_known")
    submitted(run)
    printed = run("leaderboard", "verify", "--all")
    assert f"{SUITE}: 1 task placed better than the best known, by {ENTRY}." in printed.out
    assert not (folder / "best_known").exists()
    run("leaderboard", "verify", "--all", "--update-best-known")
    assert (folder / "best_known" / f"{SUITE}.json").exists()
    assert "better" not in run("leaderboard", "verify", "--all").out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("verify",), "Name entries as TRACK/SUITE/ENTRY, or verify them all with --all"),
        (("verify", "--all", ENTRY), "--all is for all entries. Leave it out, or the names of entries"),
        (("verify", "../x"), "An entry is named TRACK/SUITE/ENTRY"),
        (("verify", "measured/cpu-20x2/races"), "holds the races of the suite"),
        (("verify", "--all", "--root", "nowhere"), "nowhere is no folder"),
        (("verify", "--all", "--replay", "-1"), "--replay must be an integer of at least 0"),
        (("verify", "--all", "--keep-times"), "--keep-times needs --replay TASKS"),
        (("submit", ENTRY, *FACTS), "Name either an agent with --agent"),
        (("submit", ENTRY, *FACTS, "--agent", "x", "--evaluation", "y"), "Name either an agent with --agent"),
        (("submit", ENTRY, *FACTS, "--evaluation", "x"), "--training-data SUITE/SPLIT (also of data that"),
        (("submit", ENTRY, *FACTS, "--evaluation", "x"), "or --no-training if it learnt from nothing"),
        (
            ("submit", ENTRY, *FACTS, "--evaluation", "x", "--no-training", "--training-data", "other: x"),
            "--no-training and --training-data contradict each other",
        ),
        (("submit", ENTRY, *FACTS, "--agent", "random", "--no-training"), "--no-training is of files of --evaluation"),
        (
            ("submit", "measured/dlrm-20x4/mine", *FACTS, "--agent", "random"),
            "'dlrm-20x4' is not made to be measured, and no race is planned on it. Submit to a suite that is, cpu-20x2",
        ),
        (("submit", ENTRY, *FACTS, "--agent", "no-agent"), "There is no agent named 'no-agent'"),
        (("submit", "simulated/none/x", *FACTS, "--agent", "random"), "There is no suite named 'none'"),
        (("submit", ENTRY, "--name", "x", "--agent", "random"), "An entry has an author"),
        (("submit", ENTRY, *FACTS, "--agent", "random", "--root", "nowhere"), "nowhere is no folder"),
    ],
)
def test_contradictory_arguments_are_refused(run, folder: Path, args: tuple[str, ...], message: str) -> None:
    run.refused(message, "leaderboard", *args)


def test_an_invalid_entry_is_not_written(run, folder: Path) -> None:
    outcome = run("leaderboard", "submit", ENTRY, *FACTS, "--agent", "size-greedy", "--link", "javascript:x")
    assert outcome.code == 1
    assert f"{ENTRY}/entry.toml: link is refused" in outcome.out
    assert not (folder / "leaderboards" / "simulated").exists()


def test_the_commands_of_the_page_work_as_they_stand(run, folder: Path) -> None:
    page = (README.parents[1] / "docs" / "leaderboards.md").read_text()
    (program,) = re.findall("```python\n(.*?)```", page, re.DOTALL)
    assert program in (README.parents[1] / "examples" / "leaderboard_agent.py").read_text()
    Path("my_agent.py").write_text(program)
    (block,) = re.findall("Five commands:\n\n```\n(.*?)```", page, re.DOTALL)
    commands = [shlex.split(line) for line in block.splitlines()]
    assert len(commands) == 5
    assert commands[0] == ["python", "my_agent.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(README.parents[1])}
    subprocess.run([sys.executable, "my_agent.py"], check=True, env=environment)
    for command in commands[1:3]:
        assert command[:2] == ["shard-gym", "leaderboard"]
        words = [*command[1:], "--commit", "0" * 40] if command[2] == "submit" else command[1:]
        run.ok(*words)
    assert commands[3][:2] == ["git", "switch"]
    assert run("leaderboard", "verify", "--all").out == "1 entry is valid.\n"
