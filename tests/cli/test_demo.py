"""The demo, with next to no training and two tasks."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shard_gym.agents import make_agent
from shard_gym.cli import COMMANDS, demo, main
from shard_gym.common.text import format_ms
from shard_gym.evaluation import evaluate
from shard_gym.tasks import TaskSuite, load_suite

REPO = Path(__file__).resolve().parents[2]
EXTRAS = all(map(importlib.util.find_spec, ("torch", "safetensors", "matplotlib")))
needs_extras = pytest.mark.skipif(not EXTRAS, reason="needs the extras torch and viz")


@pytest.fixture(scope="module")
def suite(few_tasks: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a few tasks of the suite of the demo."""
    return few_tasks(tmp_path_factory.mktemp("demo") / "few.json", demo.SUITE, train=2)


@pytest.fixture(autouse=True)
def _small(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of a few tasks, and of short searches for placements and plans."""
    monkeypatch.setattr(demo, "TRAINING", ("iterations=1", "measurements=2", "cost_updates=1", "queries=50"))
    monkeypatch.setattr(demo, "SUITE", str(suite))
    monkeypatch.setattr(demo, "TASKS", 2)
    quick = ["--option", "max_queries=500"]
    monkeypatch.setattr(demo, "main", lambda words: main([*words, *quick] if words[0] == "show" else words))


@needs_extras
def test_an_agent_is_trained_and_compared_and_a_picture_and_a_plan_are_shown(
    run, agent_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run.ok("demo", "--out", tmp_path / "demo.d", columns=200).out
    trained = str(tmp_path / "demo.d" / "dreamshard")
    rows = agent_rows(out)
    assert set(rows) == {trained, *demo.HEURISTICS}
    two = TaskSuite("few", load_suite(demo.SUITE).tasks[:2], split="test")
    assert rows["cost-greedy"][0] == format_ms(evaluate(make_agent("cost-greedy"), two).mean_cost_ms)
    commands = re.findall(r"^\$ shard-gym (\S+)", out, re.MULTILINE)
    assert commands == ["train", "evaluate", "show"]
    assert "Split or replicated tables" in out
    assert (tmp_path / "demo.d" / "placement.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "demo.d").iterdir()) == ["dreamshard", "placement.png"]
    before = (tmp_path / "demo.d" / "dreamshard" / "training.safetensors").read_bytes()
    monkeypatch.setattr(demo, "main", lambda words: main(words) if words[0] == "train" else 0)
    run.ok("demo", "--out", tmp_path / "demo.d")  # the agent that is there is not trained again
    assert (tmp_path / "demo.d" / "dreamshard" / "training.safetensors").read_bytes() == before


def test_what_is_not_installed_is_left_out_and_all_else_runs(
    run, agent_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("torch", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    code, out, err = run("demo", "--out", tmp_path / "demo", columns=200)
    assert (code, err) == (0, "")
    assert set(agent_rows(out)) == set(demo.HEURISTICS)
    left_out = [line for line in out.splitlines() if line.startswith("Left out: ")]
    assert ["[torch]" in line for line in left_out] == [True, False]
    assert ["[viz]" in line for line in left_out] == [False, True]
    assert not (tmp_path / "demo").exists()


def test_the_commands_to_go_on_with_exist() -> None:
    for _, commands in demo.NEXT:
        for command in commands.split(" && "):
            program, first, *_ = shlex.split(command)
            assert first in COMMANDS if program == "shard-gym" else (REPO / first).is_file()


def test_the_demo_ends_where_one_of_its_commands_fails(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "main", lambda words: 2)
    code, out, _ = run("demo")
    assert (code, "Next:" in out) == (2, False)


@needs_extras
@pytest.mark.parametrize("out", ["file.json", "file.json/deeper", "/proc/none"])
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(demo, "main", None)  # calling it would be a TypeError
    (tmp_path / "file.json").write_text("old")
    run.refused("placement.png cannot be written: ", "demo", "--out", tmp_path / out, columns=500)
    assert (tmp_path / "file.json").read_text() == "old"
