"""The tool that makes the entries of ShardGym's own agents: who enters, and with which options."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shard_gym.agents import AGENTS
from shard_gym.agents.training.registry import LEARNERS, make_learner
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
    assert agents == {*AGENTS, *LEARNERS}


@pytest.mark.parametrize("suite", ["dlrm-40x8", "mlperf-x8"])
def test_training_runs_are_on_training_tasks_with_known_options(entries: Any, suite: str) -> None:
    for entrant in entries.ENTRANTS:
        runs = entrant.runs(suite)
        assert len(runs) == (5 if entrant.method else 0)
        for run in runs[:1]:
            tasks = load_suite(run.trained_on, "train")
            make_learner(run.agent, TaskSuite("one", tasks.tasks[:1]), **dict(run.options))


def test_one_of_those_that_learn_by_trying_sees_no_costs(entries: Any) -> None:
    (blind,) = (each for each in entries.ENTRANTS if each.method and each.method.options.get("observation"))
    assert dict(blind.runs("dlrm-40x8")[0].options) == {"observation": "features"}
    assert blind.method.agent == "maskable-ppo"
