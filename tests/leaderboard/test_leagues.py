"""Leagues: what an agent asks decides its league, and a declaration that says something else is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import Agent, PolicyAgent, make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard import EntryFolder, verify_all, verify_entry
from shard_gym.leaderboard.leagues import guided_limit, league_of
from shard_gym.leaderboard.replay import replay
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.tasks import Task, TaskSuite, load_suite
from shard_gym.tasks.suites.best_known import best_known, improved_by

SUITE = load_suite("dlrm-20x4")
LIMIT = 20 * (4 + 1)


@pytest.fixture
def few() -> TaskSuite:
    return TaskSuite("few", SUITE.tasks[:2])


def lowest(observation: dict[str, Any], mask: np.ndarray) -> int:
    return int(mask.argmax())


@pytest.mark.parametrize(
    ("queries", "search_budget", "league"),
    [
        (0.0, 0, "zero-query"),
        (0.0, 10_000, "zero-query"),  # a search under a learned model
        (0.02, 0, "guided"),
        (LIMIT, 0, "guided"),
        (LIMIT + 0.02, 0, "search"),
        (1.0, 1, "search"),
    ],
)
def test_the_queries_and_the_search_decide(queries: float, search_budget: int, league: str) -> None:
    assert guided_limit(SUITE) == LIMIT
    assert league_of(queries, search_budget, SUITE) == league


@pytest.mark.parametrize(
    ("name", "league"),
    [
        *((name, "zero-query") for name in ("random", "lookup-greedy", "lane-greedy", "dreamshard")),
        ("cost-greedy", "guided"),
        ("local-search", "search"),
    ],
)
def test_the_agents_are_where_they_belong(few: TaskSuite, name: str, league: str) -> None:
    agent = make_agent(name, **({"queries": 50} if name == "dreamshard" else {}))
    assert league_of(mean_queries(agent, few), agent.search_budget, few) == league


@pytest.mark.parametrize("suite", ["mixdim-4", "dlrm-40x8", "merlin-tiny-x16"])
def test_one_look_at_every_step_is_guided_whatever_the_size(suite: str) -> None:
    """A policy that sees costs asks three times for each table: to order the tables, alone, and placed."""
    tasks = TaskSuite("two", load_suite(suite).tasks[:2])
    policy = PolicyAgent("first", lowest, max_tables=tasks.max_tables, max_devices=tasks.max_devices)
    asked = mean_queries(policy, tasks)
    assert 0 < asked <= np.mean([3 * task.num_tables for task in tasks])
    assert league_of(asked, 0, tasks) == "guided"
    assert league_of(mean_queries(make_agent("cost-greedy"), tasks), 0, tasks) == "guided"


def test_a_policy_that_sees_no_costs_asks_nothing(few: TaskSuite) -> None:
    policy = PolicyAgent("first", lowest, max_tables=20, max_devices=4, observation="features")
    assert mean_queries(policy, few) == 0


def mean_queries(agent: Any, tasks: TaskSuite) -> float:
    return float(np.mean([result.true_cost_queries for result in evaluate(agent, tasks).tasks]))


# Entries


def test_a_submission_writes_its_league_and_one_without_is_as_valid(root: Path, random_entry) -> None:
    assert random_entry.findings() == []
    random_entry.toml('league = "zero-query"\n', "")
    assert random_entry.findings() == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('league = "zero-query"', 'league = "Zero-query"', "planning.league is refused"),
        ("queries = 0.0", "queries = 7.0", "planning.league is 'zero-query', but with 7.0 evaluations"),
        ("queries = 0.0", "queries = 7.0", "agent 'random' never evaluates the cost model when it answers"),
    ],
)
def test_a_contradiction_is_refused(random_entry, old: str, new: str, message: str) -> None:
    random_entry.toml(old, new)
    assert any(message in each for each in random_entry.findings())


def test_trained_agents_are_zero_query_by_their_observation(root: Path, random_entry) -> None:
    """Nobody replays them."""
    random_entry.text(lambda text: text.replace('name = "random"', 'name = "ppo"', 1))
    random_entry.text(lambda text: text.replace("learns = false", "learns = true"))
    random_entry.text(lambda text: text.replace("data = []", 'data = ["dlrm-20x4/train"]'))
    (finding,) = random_entry.findings()
    assert "agent 'ppo' evaluates the cost model when it answers" in finding
    random_entry.toml("options = {}", 'options = {observation = "features"}')
    assert random_entry.findings() == []


@pytest.mark.parametrize("name", ["cost-greedy", "local-search"])
def test_agents_that_need_the_cost_cannot_declare_that_they_ask_nothing(random_entry, name: str) -> None:
    """Not with an observation without costs either, which only policies have."""
    random_entry.text(lambda text: text.replace('name = "random"', f'name = "{name}"'))
    assert any(f"agent '{name}' evaluates the cost model" in each for each in random_entry.findings())
    random_entry.toml("options = {}", 'options = {observation = "features"}')
    assert any(f"agent '{name}' evaluates the cost model" in each for each in random_entry.findings())


def test_local_search_cannot_declare_that_it_does_not_search(random_entry) -> None:
    random_entry.text(lambda text: text.replace('name = "random"', 'name = "local-search"'))
    random_entry.text(lambda text: text.replace("queries = 0.0", "queries = 5.0"))
    assert any("'local-search' searches" in each for each in random_entry.findings())


def test_an_entry_may_declare_a_later_league(root: Path, random_entry, verified) -> None:
    """An agent that reads the code of the cost model asks nothing, and knows all."""
    random_entry.toml('league = "zero-query"', 'league = "search"')
    assert random_entry.findings() == []
    assert verified(root, "random").league == "search"


def test_the_best_known_placements_are_a_copy_outside_the_league_of_searches(tmp_path: Path, submit_as) -> None:
    known = best_known(SUITE, make_cost_model("analytical"))

    class Copies(Agent):
        name = "copies"

        def place(self, task: Task) -> Any:
            return known[task.name].answer

    folder = EntryFolder(tmp_path, "simulated", SUITE.name, "copies")
    evaluation = evaluate(Copies(), SUITE)
    (finding,) = submit_as(folder, "copies", [evaluation])
    assert "100% of the placements are best known ones" in finding.reason
    assert submit_as(folder, "copies", [evaluation], planning_queries=5.0, search_budget=9) == []
    assert verify_all(tmp_path)[1] == []
    entry = folder.path / "entry.toml"
    entry.write_text(re.sub('league = "search"\nqueries = .*\n', "queries = 0.0\n", entry.read_text()))
    (again,) = verify_all(tmp_path)[1]
    assert again == finding


def test_a_name_that_begins_like_that_of_an_entry_is_not_credited() -> None:
    assert improved_by("mixdim-8") == {f"simulated/mixdim-8/{name}" for name in ("dreamshard", "local-search")}


def test_a_cost_below_a_proven_bound_is_a_finding(random_entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_scorer(SUITE.name), "lower_bound", lambda number: 1e6 if number == 3 else 0.0)
    (finding,) = random_entry.findings()
    assert "1000000.0 ms is proven to be the least for this task" in finding


def test_the_measured_track_has_no_leagues(measured_entry, verified, root: Path) -> None:
    assert verified(root, "measured-greedy").league is None
    measured_entry.toml("queries = 0.0", 'queries = 0.0\nleague = "zero-query"')
    assert any("but the track 'measured' has no leagues" in each for each in measured_entry.findings())


def test_queries_that_an_agent_does_not_count_are_declared(tmp_path: Path, submit_as) -> None:
    evaluation = evaluate(make_agent("size-greedy"), SUITE)
    folder = EntryFolder(tmp_path, "simulated", SUITE.name, "mine")
    assert submit_as(folder, "mine", [evaluation], planning_queries=80.0) == []
    entry, _ = verify_entry(folder)
    assert entry is not None
    assert (entry.entry.planning.queries, entry.entry.planning.league, entry.league) == (80.0, "guided", "guided")


# Replays


def test_a_replay_finds_queries_that_were_not_declared(root: Path, add_entry, verified) -> None:
    add_entry(root, "cost-greedy")
    entry = verified(root, "cost-greedy")
    assert replay(entry, 2)[1] == []

    def findings(queries: float, tasks: int = 2) -> list[str]:
        planning = entry.entry.planning.model_copy(update={"queries": queries, "league": None})
        changed = replace(entry, entry=entry.entry.model_copy(update={"planning": planning}))
        return [str(finding) for finding in replay(changed, tasks)[1]]

    (more,) = findings(1.0)
    assert "planning.queries is 1.0, 50 in all, but replayed, the agent evaluated the cost model 1" in more
    more, other_league = findings(0.0)
    assert "belongs to the league 'guided'; the entry belongs to 'zero-query'" in other_league
    assert findings(LIMIT + 1.0) == []  # it asks less than it says


def test_a_task_counts_with_its_own_size(random_task: Any) -> None:
    rng = np.random.default_rng(0)
    tasks: list[Task] = [random_task(rng, 10, 2), random_task(rng, 4, 9)]
    assert guided_limit(tasks) == (10 * 3 + 4 * 10) / 2
