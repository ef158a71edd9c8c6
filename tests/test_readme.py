"""What the README and the pages of the documentation tell to type works: commands parse, and the cheap ones run."""

from __future__ import annotations

import functools
import re
import runpy
import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import shard_gym
from shard_gym import evaluate, load_suite, suite_names
from shard_gym.agents import agents_to_make
from shard_gym.agents.training import LEARNERS
from shard_gym.cli import COMMANDS, main

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text(encoding="utf-8")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "leaderboards/README.md",
    *sorted(path.relative_to(REPO).as_posix() for path in (REPO / "docs").rglob("*.md")),
]


def blocks(page: str, *languages: str) -> list[str]:
    """The blocks of code of a page in these languages; "" is a block that names none."""
    text = (REPO / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in fences if language in languages]


def commands(page: str) -> list[list[str]]:
    """The words of every `shard-gym` command in the blocks of a page, without those with placeholders such as SUITE."""
    text = "\n".join(blocks(page, "bash", "")).replace("\\\n", " ").replace("$seed", "0")
    lines = [line.strip() for line in text.splitlines()]  # those in a loop are indented
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("shard-gym ")]
    return [words for words in found if not any(re.fullmatch(r"\.\.\.|[A-Z_]{4,}|<.*>", word) for word in words)]


COMMANDS_OF_PAGES = [pytest.param(words, id=shlex.join(words)[:70]) for page in PAGES for words in commands(page)]


def test_there_are_commands() -> None:
    assert len(COMMANDS_OF_PAGES) > 20
    assert len(commands("README.md")) >= 8


@pytest.mark.parametrize("words", COMMANDS_OF_PAGES)
def test_a_command_of_the_documentation_parses_and_names_what_exists(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = words[0].replace("-", "_")
    module = import_module(f"shard_gym.cli.{name}")
    called: list[dict[str, Any]] = []
    function = getattr(module, name)
    monkeypatch.setattr(module, name, functools.wraps(function)(lambda *args, **options: called.append(options)))
    assert main(words) == 0
    (options,) = called
    named = options.get("suite", [])
    suites = [each for each in ([named] if isinstance(named, str) else named) if not str(each).endswith(".json")]
    assert set(suites) <= set(suite_names())
    given = options.get("agent") or options.get("entry") or ()
    agents = (
        [given]
        if isinstance(given, str)
        else [each for part in given for each in ([part] if isinstance(part, str) else part)]
    )
    known = {*agents_to_make(), *LEARNERS}
    assert [each for each in agents if each not in known and "/" not in each and ":" not in each] == []


INLINE = sorted(
    {
        " ".join(command.split())
        for page in PAGES
        for command in re.findall(r"`shard-gym ([^`-][^`]*)`", (REPO / page).read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("command", INLINE)
def test_a_command_within_a_sentence_and_its_options_exist(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    flags = [word for word in words if word.startswith("--")]
    assert words[0] in COMMANDS
    if flags:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit):
            main([*words[: 2 if words[0] == "leaderboard" else 1], "--help"])
        out = capsys.readouterr().out
        assert [flag for flag in flags if flag not in out] == []


def test_the_programs_of_the_readme_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained for a moment only, and evaluated on two tasks."""
    pytest.importorskip("sb3_contrib")
    programs = "\n".join(blocks("README.md", "python"))
    shorter = programs.replace("env, seed=0).learn(50_000)", "env, seed=0, n_steps=32, batch_size=32).learn(32)")
    assert shorter != programs
    two = replace(load_suite("dlrm-20x4"), tasks=load_suite("dlrm-20x4").tasks[:2])
    monkeypatch.setattr(shard_gym, "evaluate", lambda agent, suite: evaluate(agent, {"dlrm-20x4": two}[suite]))
    names: dict[str, Any] = {}
    exec(shorter, names)
    assert (names["terminated"], names["info"]["failure"]) == (True, 0)
    assert names["info"]["cost_ms"] > 0


def test_the_cheap_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, list[str]] = {}
    for words in commands("README.md"):
        given.setdefault(words[0], words)
    monkeypatch.chdir(tmp_path)
    assert "python examples/make_tables.py " in README
    runpy.run_path(str(REPO / "examples" / "make_tables.py"), run_name="__main__")
    assert main(given["show"]) == 0
    place = [{"local-search": "cost-greedy"}.get(word, word) for word in given["place"]]  # which takes seconds
    assert main(place) == 0
    assert "Plan written to plan.json." in capsys.readouterr().out
    assert (tmp_path / "plan.json").exists()
