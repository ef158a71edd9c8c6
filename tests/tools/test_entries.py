"""The tool that makes the entries of ShardGym's own agents: who enters, and with which options."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shard_gym.agents import AGENTS, PLANNERS
from shard_gym.agents.training.registry import LEARNERS, make_learner
from shard_gym.leaderboard.store import find_entries
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite


@pytest.fixture
def entries(tool: Callable[[str], ModuleType]) -> Any:
    pytest.importorskip("pydantic")
    return tool("entries")


def test_every_agent_enters_once(entries: Any) -> None:
    slugs = [entrant.slug for entrant in entries.ENTRANTS]
    assert len(set(slugs)) == len(slugs)
    agents = {entrant.method.agent if entrant.method else entrant.slug for entrant in entries.ENTRANTS}
    assert agents == {*AGENTS, *PLANNERS, *LEARNERS}


def test_trained_agents_are_trained_on_the_suite_they_are_ranked_on_with_known_options(entries: Any) -> None:
    for entrant in entries.ENTRANTS:
        for suite in (entrant.suites or ["mlperf-x8"])[:1]:
            runs = entrant.runs(suite)
            assert len(runs) == (5 if entrant.method else 0)
            for run in runs[:1]:
                tasks = load_suite(suite, "train")
                assert (run.trained_on, run.test) == (suite, suite)
                make_learner(run.agent, TaskSuite("one", tasks.tasks[:1]), **dict(run.options))


def test_every_agent_that_needs_no_training_has_its_entries_and_the_others_have_all_or_none(entries: Any) -> None:
    """tests/leaderboard/test_committed.py verifies them."""
    there = set(find_entries(entries.LEADERBOARDS)[0])
    made: dict[str, list[bool]] = {}
    for folder, entrant in entries.places().items():
        made.setdefault(entrant.slug, []).append(folder in there)
    for entrant in entries.ENTRANTS:
        assert len(set(made[entrant.slug])) == 1, entrant.slug
        assert all(made[entrant.slug]) or entrant.method is not None
    everywhere = {entrant.slug: entrant.tracks for entrant in entries.ENTRANTS if entrant.suites is None}
    assert {slug for slug, tracks in everywhere.items() if "simulated" in tracks} == set(AGENTS)
    assert {slug for slug, tracks in everywhere.items() if "sharding" in tracks} > set(PLANNERS)


def test_of_those_that_learn_by_trying_one_sees_no_costs_and_one_splits_tables(entries: Any) -> None:
    seeing = [each.method for each in entries.ENTRANTS if each.method and "observation" in each.method.options]
    assert [(each.agent, each.options["observation"]) for each in seeing] == [
        ("maskable-ppo", "features"),
        ("maskable-ppo", "splits"),
    ]
