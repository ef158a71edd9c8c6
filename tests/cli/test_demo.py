"""The demo, on one small suite and with next to no training."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from shard_gym.agents import AGENTS, make_agent
from shard_gym.cli import demo
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.evaluation import evaluate
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite
from shard_gym.text import format_change, format_ms

NAME = "dlrm-20x4"
SMALL = TaskSuite(NAME, load_suite(NAME).tasks[:3], split="test")
EXTRAS = all(map(importlib.util.find_spec, ("sb3_contrib", "stable_baselines3", "torch", "matplotlib")))
needs_extras = pytest.mark.skipif(not EXTRAS, reason="needs the extras sb3 and viz")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One suite of three tasks instead of three suites of fifty."""
    monkeypatch.setattr(demo, "SUITES", (NAME,))
    monkeypatch.setattr(demo, "PICTURED", (NAME, 0))
    monkeypatch.setattr(demo, "load_suite", lambda suite: SMALL)


@needs_extras
def test_every_agent_is_scored_one_is_trained_and_a_picture_drawn(run, agent_rows, tmp_path: Path) -> None:
    code, out, err = run("demo", "--out", tmp_path / "demo.d", "--timesteps", "5")
    assert (code, err) == (0, "")
    assert set(agent_rows(out)) == {*AGENTS, "maskable-ppo"}
    model = AnalyticalCostModel()
    greedy, random = (evaluate(make_agent(name, cost_model=model), SMALL, model) for name in ("cost-greedy", "random"))
    change = float(np.mean(greedy.costs_ms / random.costs_ms) - 1)
    mean, _, to_random, *_ = agent_rows(out)["cost-greedy"]
    assert (mean, to_random) == (format_ms(greedy.mean_cost_ms), format_change(change))
    assert "embedding part of a training iteration" in out
    (steps,) = re.findall(r"trained for ([\d,]+) steps", " ".join(out.split()))
    assert int(steps.replace(",", "")) > 5  # whole rollouts: as many as were really made
    assert (tmp_path / "demo.d" / "placement.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "demo.d").iterdir()] == ["placement.png"]


def test_what_is_not_installed_is_left_out_and_all_else_runs(
    run, agent_rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("sb3_contrib", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)
    code, out, err = run("demo", "--out", tmp_path / "demo", columns=200)
    assert (code, err) == (0, "")
    assert set(agent_rows(out)) == set(AGENTS)
    left_out = [line for line in out.splitlines() if line.startswith("Left out: ")]
    assert ["sb3" in line and "MaskablePPO" in line for line in left_out] == [True, False]
    assert ["viz" in line for line in left_out] == [False, True]
    assert "maskable-ppo" not in out
    assert not (tmp_path / "demo").exists()


def test_training_for_no_step_is_refused(run) -> None:
    assert run("demo", "--timesteps", 0) == (2, "", "--timesteps must be an integer of at least 1, not 0.\n")


@needs_extras
@pytest.mark.parametrize("out", ["file.json", "file.json/deeper", "/proc/none"])
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(demo, "evaluate_all", None)  # calling it would be a TypeError
    (tmp_path / "file.json").write_text("old")
    code, text, err = run("demo", "--out", tmp_path / out, columns=500)
    assert (code, text) == (2, "")
    assert "placement.png cannot be written: " in err
    assert (tmp_path / "file.json").read_text() == "old"
