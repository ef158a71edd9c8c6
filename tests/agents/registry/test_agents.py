"""The table of agents, and agents that play the environment with a policy."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import (
    AGENTS,
    PAPER_HEURISTICS,
    Agent,
    AgentEntry,
    BatchPolicyAgent,
    PolicyAgent,
    agent_names,
    make_agent,
)
from shard_gym.agents.base import policy as policies
from shard_gym.agents.registry import LEARNERS, SOLVERS, LearnerEntry
from shard_gym.agents.registry import agents as registry
from shard_gym.agents.registry.options import about_agent, placing_options
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError, UnknownNameError
from shard_gym.cost_models import AnalyticalCostModel, make_cost_model
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.evaluation import evaluate
from shard_gym.hardware import Topology
from shard_gym.plans import check_plan
from shard_gym.plans.placement import check_placement
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.tables import Tables
from shard_gym.tasks import load_suite


def test_every_name_makes_an_agent_of_that_name() -> None:
    assert {"random", *PAPER_HEURISTICS, "lane-greedy", "local-search", "dreamshard"} <= set(agent_names("placement"))
    assert {"plan-search", "hugectr", "torchrec", "torchrec-tuned"} <= set(agent_names("sharding"))
    assert {"never", "ski-last-day", "ridge"} <= set(agent_names("replanning"))
    assert "exact" in AGENTS
    assert "exact" not in agent_names("placement")
    for name, entry in AGENTS.items():
        if name.startswith("torchrec") or name in ("page-hinkley", "adwin", "kswin"):  # they need extras
            continue
        agent = make_agent(name, cost_model=make_cost_model("analytical"), seed=3, suite="drift-strong-600")
        assert isinstance(agent, Agent)
        assert (agent.name, set(agent.problems)) == (name, set(entry.problems) | ({"sharding"} & set(agent.problems)))
        assert agent.true_cost_queries(make_cost_model("analytical").fingerprint) == 0


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
        *(
            ({"name": "moldable", "seed": seed}, "A seed is an integer of at least 0")
            for seed in (float("nan"), -1, [])
        ),
        ({"name": "cost-greedy", "cost_model": "analytic"}, "Did you mean 'analytical'"),
    ],
)
def test_what_cannot_be_made_is_a_named_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError), match=message):
        make_agent(**arguments)


CONTRIBUTING = Path(__file__).resolve().parents[3] / "CONTRIBUTING.md"


def test_an_agent_of_each_problem_is_a_module_and_a_line(
    monkeypatch: pytest.MonkeyPatch, drift_task: Callable[..., DriftTask]
) -> None:
    """The programs of the page on contributing: two modules and the lines."""
    page = CONTRIBUTING.read_text(encoding="utf-8")
    *modules, lines = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    defined: dict[str, Any] = {}
    for name, module in zip(("agents.search.emptiest", "replanning.agents.daily"), modules, strict=True):
        made = ModuleType(f"shard_gym.{name}")
        monkeypatch.setitem(sys.modules, made.__name__, made)
        exec(compile(module, str(CONTRIBUTING), "exec"), vars(made))
        defined |= vars(made)
    for name in ("emptiest", "daily"):
        monkeypatch.setitem(AGENTS, name, AGENTS["random"])  # and so it is removed in the end
    exec(lines, dict(vars(registry)))
    suites = {
        "emptiest": (load_suite("dlrm-20x4"), load_suite("shard-4")),
        "daily": (DriftSuite("one", (drift_task(tables=4, devices=2),)),),
    }
    for name, played in suites.items():
        assert name in agent_names(played[0][0].problem)
        assert (about_agent(name)[:6], placing_options(name)) == (defined[name.title()].__doc__[:6], [])
        for suite in played:
            found = evaluate(make_agent(name), replace(suite, tasks=suite.tasks[:2]))
            assert found.agent == name
            assert found.failures == 0


def test_a_solver_has_one_entry_whether_it_is_ready_or_trained_or_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """`AGENTS` and `LEARNERS` show parts of the one table, and what is set in them is set there."""
    assert {*AGENTS, *LEARNERS} == set(SOLVERS)
    assert AGENTS["dreamshard"] is LEARNERS["dreamshard"] is SOLVERS["dreamshard"]
    assert "rnn" not in AGENTS
    assert "random" not in LEARNERS
    with pytest.raises(KeyError):
        AGENTS["rnn"]
    walk = AgentEntry(learners=(LearnerEntry("no_such:Walk", "no_such:load", problems=("placement",)),))
    count = len(LEARNERS)
    monkeypatch.setitem(LEARNERS, "walk", walk)
    assert (SOLVERS["walk"], "walk" in AGENTS, len(LEARNERS)) == (walk, False, count + 1)
    assert SOLVERS["ppo"].learns == ("placement", "sharding", "replanning")
    assert SOLVERS["ppo"].learner("replanning") is SOLVERS["recurrent-ppo"].learner()
    assert SOLVERS["ppo"].learner("placement").asks == "costs"


class Mine(Agent):
    name = "mine"


def load_mine() -> None: ...


def test_each_view_sets_and_removes_its_part_of_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ppo", "dreamshard"):
        monkeypatch.setitem(SOLVERS, name, SOLVERS[name])  # and so it is restored
    with pytest.raises(KeyError):
        del AGENTS["ppo"]
    assert "ppo" in LEARNERS
    learners = SOLVERS["dreamshard"].learners
    AGENTS["dreamshard"] = AgentEntry(Mine)
    assert SOLVERS["dreamshard"] == AgentEntry(Mine, learners=learners)
    mine = LearnerEntry(Mine, load_mine)
    LEARNERS["dreamshard"] = AgentEntry(learners=(mine,))
    assert SOLVERS["dreamshard"] == AgentEntry(Mine, learners=(mine,))
    assert registry.learner_class("dreamshard") is Mine
    del AGENTS["dreamshard"]
    assert SOLVERS["dreamshard"] == AgentEntry(learners=(mine,))
    AGENTS["dreamshard"] = AgentEntry(Mine)
    del LEARNERS["dreamshard"]
    assert SOLVERS["dreamshard"] == AgentEntry(Mine)
    del AGENTS["dreamshard"]
    assert "dreamshard" not in SOLVERS


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (5, "'x' is 5, which must be an AgentEntry"),
        (Mine, "must be an AgentEntry, such as AgentEntry\\(MyAgent\\)"),
        (AgentEntry(), "has no maker and no learners"),
        (AgentEntry(5), "has as its maker 5"),  # type: ignore[arg-type]
        (AgentEntry("mymod"), "has as its maker 'mymod', which must be a class, a function or an import path"),
        (AgentEntry(Mine, problems=()), r"problems \(\), which must be a tuple of placement, sharding"),
        (AgentEntry(Mine, problems=("zz",)), r"problems \('zz',\)"),
        (AgentEntry(Mine, problems="placement"), "problems 'placement'"),  # type: ignore[arg-type]
        (AgentEntry(Mine, asks="much"), "asks 'much', which must be one of nothing, costs, answers"),  # type: ignore[arg-type]
        (AgentEntry(learners=(Mine,)), "learners .*, which must be a tuple of LearnerEntry"),  # type: ignore[arg-type]
        (AgentEntry(learners=(LearnerEntry(Mine, "load_mine"),)), "loader 'load_mine'"),
        (AgentEntry(learners=(LearnerEntry(Mine, load_mine, problems=()),)), r"problems \(\)"),
    ],
)
def test_an_entry_that_is_none_is_refused_when_it_is_set(entry: Any, message: str) -> None:
    for view in (SOLVERS, AGENTS, LEARNERS):
        with pytest.raises(InvalidOptionError, match=message):
            view["x"] = entry
    assert "x" not in SOLVERS


def test_an_entry_stands_in_the_view_that_it_is_set_in() -> None:
    for view, entry in ((LEARNERS, AgentEntry(Mine)), (AGENTS, AgentEntry(learners=(LearnerEntry(Mine, load_mine),)))):
        with pytest.raises(InvalidOptionError, match=r"'x' has no (maker|learners); set it in (AGENTS|LEARNERS)"):
            view["x"] = entry


def test_the_entries_of_the_package_are_valid() -> None:
    for name, entry in SOLVERS.items():
        SOLVERS[name] = entry


@pytest.mark.parametrize(
    ("path", "missing"), [("nomod:Mine", "no module 'nomod'"), ("json:Nope", "nothing named 'Nope' in")]
)
def test_a_path_that_leads_nowhere_is_named_with_its_agent(
    path: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "lost", AgentEntry(path))
    with pytest.raises(InvalidOptionError, match=f"agent 'lost' names '{path}', but there is {missing}"):
        make_agent("lost")


def test_a_module_that_cannot_be_imported_is_named_with_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_written.py").write_text("def place(task:\n")
    monkeypatch.setitem(AGENTS, "lost", AgentEntry("half_written:Mine"))
    with pytest.raises(InvalidOptionError, match=r"agent 'lost' names .* importing half_written ends with SyntaxError"):
        make_agent("lost")


def test_an_error_inside_an_agent_is_not_one_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cost_model: object, seed: int, depth: int = 1) -> Any:
        return len(depth)  # type: ignore[arg-type]

    monkeypatch.setitem(AGENTS, "broken", AgentEntry(broken))
    with pytest.raises(TypeError, match="has no len"):
        make_agent("broken")
    with pytest.raises(InvalidOptionError, match=r"Agent 'broken' cannot be made with the options {'height': 2}"):
        make_agent("broken", height=2)


def first_legal(observation: dict[str, Any], mask: np.ndarray) -> int:
    assert np.array_equal(observation["action_mask"].astype(bool), mask)
    return int(mask.argmax())


def test_a_policy_places_in_the_order_of_the_environment() -> None:
    suite = load_suite("dlrm-20x4")
    agent = PolicyAgent("first", first_legal, max_tables=30, max_devices=6)
    placement = agent.place(suite[0])
    check_placement(placement, suite[0].tables, suite[0].topology)
    assert (placement == 0).sum() > (placement == 3).sum()  # the first device is filled first
    fingerprint = AnalyticalCostModel().fingerprint
    assert agent.true_cost_queries(fingerprint) >= 20  # every look at the estimate counts
    assert agent.true_cost_queries("another-model") == 0


@pytest.mark.parametrize("observation", ["compact", "features"])
def test_a_policy_that_was_trained_to_split_splits(observation: str) -> None:
    """It has the actions of the environment that it was trained in, and plans for every suite of its padding."""

    def last_legal(observation: dict[str, Any], mask: np.ndarray) -> int:
        assert len(mask) == actions
        assert np.array_equal(observation["action_mask"].astype(bool), mask)
        return int(np.flatnonzero(mask)[-1])

    suite = load_suite("shard-4")
    sizes = {"max_tables": suite.max_tables, "max_devices": 4}
    types = ("table_wise", "column_wise", "row_wise")
    env = EmbeddingShardingEnv(suite, sharding_types=types, max_shards=4, **sizes)
    actions = int(env.action_space.n)
    agent = PolicyAgent(
        "last", last_legal, **sizes, observation=observation, sharding_types=",".join(types), max_shards=4, max_hosts=1
    )
    assert agent.splits
    assert not PolicyAgent("whole", last_legal, **sizes).splits
    few = replace(suite, tasks=suite[:2])
    evaluation = evaluate(agent, few)
    for task, result in zip(few, evaluation.tasks, strict=True):
        plan = check_plan(agent.plan(task), task.tables, task.topology)
        assert result.valid
        assert result.true_cost_queries == 0 or observation == "compact"
        assert "row_wise" in {each.sharding_type for each in plan.tables}
        check_placement(agent.place(task), task.tables, task.topology)


@pytest.mark.parametrize(
    ("suite", "observation", "types"),
    [("generalize", "set", None), ("dlrm-20x4", "compact", None), ("shard-4", "features", "all")],
)
def test_a_policy_of_batches_answers_all_tasks_at_once_as_one_by_one(
    suite: str, observation: str, types: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are those of single episodes, of tasks that fail and that are too large, too."""

    def chosen(observation: dict[str, Any], mask: np.ndarray) -> int:
        score = observation["device_memory"].reshape(-1, 2).sum(axis=1).argmin()
        return int(score) if observation["progress"][0] < 0.9 else int(mask.argmax())

    def at_once(observations: dict[str, Any], masks: np.ndarray) -> np.ndarray:
        sizes.append(len(masks))
        return np.array([chosen({key: v[n] for key, v in observations.items()}, masks[n]) for n in range(len(masks))])

    tasks = load_suite(suite)
    few = replace(tasks, tasks=tasks[:9])
    sizes: list[int] = []
    options: dict[str, Any] = {
        **{"max_tables": sorted(task.num_tables for task in few)[-1 if types else -2], "max_devices": few.max_devices},
        **{"observation": observation, "sharding_types": types, "max_hosts": None if types is None else 1},
    }
    monkeypatch.setattr(policies, "MOST_AT_ONCE", 5)
    one, many = (
        evaluate(kind("mine", policy, **options), few)
        for kind, policy in ((PolicyAgent, chosen), (BatchPolicyAgent, at_once))
    )
    assert set(sizes[:3]) == {5}
    for single, batched in zip(one.tasks, many.tasks, strict=True):
        assert (single.answer, single.failure, single.cost_ms) == (batched.answer, batched.failure, batched.cost_ms)
    if suite == "generalize":
        assert any("holds at most" in each.failure for each in many.tasks)
    assert all((each.true_cost_queries > 0) == (observation == "compact") for each in many.tasks)


def test_an_agent_that_answers_too_few_tasks_at_once_is_told() -> None:
    class Few:
        def place(self, task: Any) -> Any:
            raise AssertionError("all tasks were asked at once")

        def answers(self, tasks: list[Any]) -> list[Any]:
            return []

    with pytest.raises(InvalidOptionError, match="returns one for each of the 50 tasks, not 0"):
        evaluate(Few(), "dlrm-20x4")


class Refusing(AnalyticalCostModel):
    """A true cost that nobody may ask for."""

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = "table_wise") -> Any:
        raise AssertionError("the true cost was asked for")

    device_phases = fill_communication = iteration_cost = estimate = bounds = penalty_ms = loads


def test_a_policy_that_sees_features_never_asks_for_the_true_cost() -> None:
    suite = load_suite("dlrm-20x4")
    agent = PolicyAgent("first", first_legal, max_tables=20, max_devices=4, observation="features")
    assert [each.true_cost_queries for each in evaluate(agent, suite).tasks] == [0] * len(suite)
    blind, sighted = (
        PolicyAgent("first", first_legal, max_tables=20, max_devices=4, observation=observation, cost_model=Refusing())
        for observation in ("features", "compact")
    )
    assert np.array_equal(blind.place(suite[0]), agent.place(suite[0]))
    with pytest.raises(AssertionError, match="asked for"):
        sighted.place(suite[0])


def test_an_illegal_choice_and_a_task_that_is_too_large_are_failures_with_their_reason() -> None:
    agent = PolicyAgent("padding", lambda observation, mask: 5, max_tables=20, max_devices=6)
    with pytest.raises(NoPlacementFoundError, match="does not exist or has too little memory"):
        agent.place(load_suite("dlrm-20x4")[0])
    with pytest.raises(NoPlacementFoundError, match="at most 20 tables and 6 devices"):
        agent.place(load_suite("dlrm-50x4")[0])


@pytest.mark.parametrize("arguments", [{"policy": 5}, {"policy": dict}, {"max_tables": 0}, {"max_devices": "4"}])
def test_arguments_of_another_kind_are_refused(arguments: dict[str, Any]) -> None:
    right: dict[str, Any] = {"policy": lambda observation, mask: 0, "max_tables": 20, "max_devices": 4}
    with pytest.raises(InvalidOptionError, match=f"{next(iter(arguments))} must be"):
        PolicyAgent("mine", **(right | arguments))
