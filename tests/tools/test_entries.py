"""The tool that makes the entries of ShardGym's own agents: who enters, and with which options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shard_gym.agents import AGENTS, load_agent
from shard_gym.agents.training import LEARNERS, make_learner
from shard_gym.leaderboard import find_entries
from shard_gym.tasks import TaskSuite, load_suite


@pytest.fixture
def entries(tool: Callable[[str], ModuleType]) -> Any:
    pytest.importorskip("pydantic")
    return tool("entries")


def test_every_agent_enters_once(entries: Any) -> None:
    suites = [(entrant.slug, suite) for entrant in entries.ENTRANTS for suite in entrant.suites or ("all",)]
    assert len(set(suites)) == len(suites)
    agents = {entrant.learner or entrant.slug for entrant in entries.ENTRANTS}
    known = {*AGENTS, *LEARNERS}
    assert {"random", "dreamshard", "plan-search", "ridge"} <= agents <= known


def test_trained_agents_are_trained_on_the_suite_they_are_ranked_on_with_known_options(entries: Any) -> None:
    for entrant in entries.ENTRANTS:
        for suite in (entrant.suites or ["mlperf-x8"])[:1]:
            runs = entrant.runs(suite)
            assert len(runs) == len({run.folder() for run in runs}) == (5 if entrant.learner else 0)
            for run in runs[:1]:
                tasks = load_suite(suite, "train")
                assert run.suite == suite
                make_learner(run.agent, TaskSuite("one", tasks.tasks[:1]), **dict(run.options))


def test_every_agent_that_needs_no_training_has_its_entries_and_the_others_have_all_or_none(entries: Any) -> None:
    """tests/leaderboard/test_committed.py verifies them."""
    there = set(find_entries(entries.LEADERBOARDS)[0])
    made: dict[str, list[bool]] = {}
    for folder, entrant in entries.places().items():
        made.setdefault(entrant.slug, []).append(folder in there)
    for entrant in entries.ENTRANTS:
        assert len(set(made[entrant.slug])) == 1, entrant.slug
        assert all(made[entrant.slug]) or entrant.learner
    everywhere = {entrant.slug: entrant.tracks for entrant in entries.ENTRANTS if entrant.suites is None}
    for track, least in (
        ("simulated", {"random", "lane-greedy", "moldable"}),
        ("sharding", {"plan-search", "moldable"}),
    ):
        assert {slug for slug, tracks in everywhere.items() if track in tracks} >= least


def test_a_training_is_made_once_and_a_failed_one_is_named(tool: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = tool("training_runs")
    run = module.Run("rnn", "dlrm-20x4", 1, (("episodes", 2), ("hidden", 4), ("iterations", 2)))
    bad = module.Run("rnn", "dlrm-20x4", 1, (("episodes", 1),))
    with pytest.raises(SystemExit, match=r"(?s)1 of 2.*episodes=1 .*episodes must be an integer of at least 2"):
        module.train_all([run, bad, run], tmp_path)
    agent = run.folder(tmp_path) / "agent.safetensors"
    assert load_agent(agent).place(load_suite("dlrm-20x4")[0]).shape == (20,)
    before, done = agent.stat().st_mtime_ns, []
    module.train_all([run], tmp_path, on_done=lambda: done.append(run))
    assert done == [run]
    assert agent.stat().st_mtime_ns == before


def test_the_folder_of_a_training_depends_on_all_that_determines_the_agent(
    tool: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tool("training_runs")
    run = module.Run("rnn", "dlrm-20x4", 0, (("iterations", 3),))
    changes = {"agent": "a2c", "suite": "dlrm-40x4", "seed": 1, "options": (("iterations", 4),)}
    folders = {run.folder(), *(replace(run, **{key: value}).folder() for key, value in changes.items())}
    monkeypatch.setattr("shard_gym.__version__", "99.0.0")
    assert len(folders | {run.folder()}) == 6
