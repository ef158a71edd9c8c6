"""The table of agents: made by name, with named errors for what is not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import AGENTS, PAPER_HEURISTICS, Agent, AgentEntry, agent_names, make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.drift.suite import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.evaluation import evaluate
from shard_gym.suites import load_suite


def test_every_name_makes_an_agent_of_that_name() -> None:
    placing = {"random", *PAPER_HEURISTICS, "lane-greedy", "cost-greedy", "local-search", "dreamshard"}
    assert set(agent_names("placement")) == placing
    assert agent_names("sharding") == ["plan-search", "hugectr", "torchrec"]
    assert {"never", "ski-last-day", "ridge"} < set(agent_names("replanning"))
    for name, entry in AGENTS.items():
        if name in ("torchrec", "page-hinkley", "adwin", "kswin"):  # they need extras
            continue
        agent = make_agent(name, cost_model=make_cost_model("analytical"), seed=3, suite="drift-strong-600")
        assert isinstance(agent, Agent)
        assert (agent.name, set(agent.problems)) == (name, set(entry.problems) | ({"sharding"} & set(agent.problems)))
        assert agent.true_cost_queries(make_cost_model("analytical").fingerprint) == 0


def test_options_reach_the_agent(random_task: Any) -> None:
    agent: Any = make_agent("local-search", max_queries=77, max_seconds=5.0, seed=3)
    assert (agent.max_queries, agent.max_seconds, agent.seed) == (77, 5.0, 3)
    task = random_task(np.random.default_rng(0), 30, 4)
    assert not np.array_equal(make_agent("random", seed=1).place(task), make_agent("random", seed=2).place(task))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dim-gredy"}, "no agent named 'dim-gredy'. Did you mean 'dim-greedy'.*cost-greedy"),
        ({"name": ["random"]}, "name must be the name of an agent or a path"),
        ({"name": "random", "max_queries": 3}, "'random' cannot be made .*max_queries.* It has no options"),
        (
            {"name": "local-search", "max_query": 3},
            "'local-search' cannot be made .*max_query.* Its options are max_queries, max_seconds",
        ),
        ({"name": "local-search", "max_queries": 0}, "max_queries must be an integer from 1 to"),
        ({"name": "local-search", "max_seconds": 0}, "max_seconds must be a positive"),
        ({"name": "cost-greedy", "cost_model": "analytic"}, "Did you mean 'analytical'"),
    ],
)
def test_what_cannot_be_made_is_a_named_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError), match=message):
        make_agent(**arguments)


CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


def test_an_agent_of_each_problem_is_a_class_and_a_line(
    monkeypatch: pytest.MonkeyPatch, drift_task: Callable[..., DriftTask]
) -> None:
    """The program of the page on contributing."""
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", CONTRIBUTING.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    for name in ("emptiest", "whole-emptiest", "daily"):
        monkeypatch.setitem(AGENTS, name, AGENTS["random"])  # and so it is removed in the end
    exec(compile(program, str(CONTRIBUTING), "exec"), {})
    suites = {
        "emptiest": load_suite("dlrm-20x4"),
        "whole-emptiest": load_suite("shard-4"),
        "daily": DriftSuite("one", (drift_task(tables=4, devices=2),)),
    }
    for name, suite in suites.items():
        assert name in agent_names(suite[0].problem)
        found = evaluate(make_agent(name), replace(suite, tasks=suite.tasks[:2]))
        assert found.agent == name
        assert found.failures == 0


def test_an_error_inside_an_agent_is_not_one_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cost_model: object, seed: int, depth: int = 1) -> Any:
        return len(depth)  # type: ignore[arg-type]

    monkeypatch.setitem(AGENTS, "broken", AgentEntry(broken))
    with pytest.raises(TypeError, match="has no len"):
        make_agent("broken")
    with pytest.raises(InvalidOptionError, match=r"Agent 'broken' cannot be made with the options {'height': 2}"):
        make_agent("broken", height=2)
