"""The tables of the documentation are made from docs/results.json, and its numbers can be computed again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from shard_gym.agents import AGENTS, PAPER_HEURISTICS, make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate, score
from shard_gym.io.files import read_json
from shard_gym.io.markdown import with_block
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.best_known import best_known

NO_SEARCH = ("random", *PAPER_HEURISTICS, "cost-greedy")


@pytest.fixture(scope="module")
def results(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("results")


def test_the_readme_and_the_page_show_the_results(results: ModuleType) -> None:
    recorded = read_json(results.RESULTS)
    assert list(recorded) == suite_names("simulated")
    assert with_block(results.README, "results", results.readme_table(recorded)) == results.README.read_text()
    assert results.page(recorded) == results.PAGE.read_text()


# The suites with one task make it cheap to run the agents that search, too.
@pytest.mark.parametrize(
    ("suite", "agents"),
    [
        ("dlrm-20x4", NO_SEARCH),
        ("mixdim-8", NO_SEARCH),
        ("mlperf-x8", tuple(AGENTS)),
        ("merlin-tiny-x8", tuple(AGENTS)),
        ("merlin-small-x8", tuple(AGENTS)),
    ],
)
def test_the_costs_are_those_of_the_agents(results: ModuleType, suite: str, agents: tuple[str, ...]) -> None:
    recorded = read_json(results.RESULTS)[suite]
    for name in agents:
        evaluation = evaluate(make_agent(name), suite)
        # A surrogate's rounding errors depend on the CPU, and so may the last moves of a search under it.
        accuracy = 1e-3 if name == "dreamshard" else 1e-9
        assert evaluation.mean_cost_ms == pytest.approx(recorded[name]["mean_cost_ms"], rel=accuracy), name
        assert evaluation.failures == recorded[name]["failures"], name


@pytest.mark.parametrize("name", suite_names("simulated"))
def test_best_known_placements_cost_what_they_say_and_no_shipped_result_undercuts_them(name: str) -> None:
    model, suite = make_cost_model("analytical"), load_suite(name)
    known = best_known(suite, model)
    assert set(known) == {task.name for task in suite}
    for task in suite:
        cost = score(task, known[task.name].placement, model)
        assert cost == pytest.approx(known[task.name].cost_ms, rel=1e-9)
        assert cost >= model.cost_bounds(model.table_loads(task.tables, task.topology), task.topology)[0] * (1 - 1e-9)
    mean = sum(best.cost_ms for best in known.values()) / len(known)
    assert mean <= evaluate(make_agent("lookup-greedy"), suite).mean_cost_ms * (1 + 1e-9)
