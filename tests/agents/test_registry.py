"""The table of agents: made by name, with named errors for what is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.agents import AGENTS, PAPER_HEURISTICS, Agent, AgentEntry, agent_names, make_agent
from shard_gym.agents.replanning.base import ReplanningAgent
from shard_gym.cost_models import make_cost_model
from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.sharding import plan_of_placement


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
    ("arguments", "error", "message"),
    [
        ({"name": "dim-gredy"}, UnknownNameError, "no agent named 'dim-gredy'. Did you mean 'dim-greedy'.*cost-greedy"),
        ({"name": ["random"]}, InvalidOptionError, "name must be the name of an agent or a path"),
        (
            {"name": "random", "max_queries": 3},
            InvalidOptionError,
            "'random' cannot be made .*max_queries.* It has no options",
        ),
        ({"name": "dim-greedy", "score": 3}, InvalidOptionError, "'dim-greedy' cannot be made .*score"),
        (
            {"name": "local-search", "max_query": 3},
            InvalidOptionError,
            "'local-search' cannot be made .*max_query.* Its options are max_queries, max_seconds",
        ),
        (
            {"name": "local-search", "max_queries": 0},
            InvalidOptionError,
            "max_queries must be an integer from 1 to",
        ),
        (
            {"name": "local-search", "max_seconds": 0},
            InvalidOptionError,
            "max_seconds must be a positive",
        ),
        ({"name": "local-search", "max_queries": "many"}, InvalidOptionError, "max_queries must be an integer"),
        ({"name": "cost-greedy", "cost_model": "analytic"}, UnknownNameError, "Did you mean 'analytical'"),
    ],
)
def test_what_cannot_be_made_is_a_named_error(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_agent(**arguments)


def test_a_custom_agent_of_each_problem_is_one_line(monkeypatch: pytest.MonkeyPatch, random_task: Any) -> None:
    class Zeros(Agent):
        name = "zeros"

        def place(self, task: Any) -> Any:
            return np.zeros(task.num_tables, np.int64)

    class Whole(Zeros):
        def plan(self, task: Any) -> Any:
            return plan_of_placement(self.place(task), task.tables)

    class Keep(ReplanningAgent):
        def decide(self, view: Any) -> Any:
            return np.zeros(view.count, np.bool_), np.ones(view.count, np.int64)

    for maker, problem in ((Zeros, "placement"), (Whole, "sharding"), (Keep, "replanning")):
        monkeypatch.setitem(AGENTS, "mine", AgentEntry(maker, (problem,)))
        assert "mine" in agent_names(problem)
        assert isinstance(make_agent("mine"), maker)
    assert Zeros().place(random_task(np.random.default_rng(0), 3, 2)).tolist() == [0, 0, 0]


def test_an_error_inside_an_agent_is_not_one_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cost_model: object, seed: int, depth: int = 1) -> Any:
        return len(depth)  # type: ignore[arg-type]

    monkeypatch.setitem(AGENTS, "broken", AgentEntry(broken))
    with pytest.raises(TypeError, match="has no len"):
        make_agent("broken")
    with pytest.raises(InvalidOptionError, match=r"Agent 'broken' cannot be made with the options {'height': 2}"):
        make_agent("broken", height=2)
