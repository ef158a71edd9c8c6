"""The tables of the documentation are made from what was measured, and what was measured can be measured again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shard_gym.agents import PAPER_HEURISTICS, make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate, score
from shard_gym.io.files import read_json
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.best_known import best_known

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_results", ROOT / "tools" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_readme_and_the_page_show_what_was_measured(results: ModuleType) -> None:
    measured = read_json(results.RESULTS)
    readme = results.README.read_text()
    assert results.with_table(readme, results.readme_table(measured)) == readme
    assert results.page(measured) == results.PAGE.read_text()


@pytest.mark.parametrize("suite", ["dlrm-20x4", "mixdim-8", "mlperf-x8"])
def test_the_costs_are_measured_again(results: ModuleType, suite: str) -> None:
    measured = read_json(results.RESULTS)[suite]
    for name in ("random", *PAPER_HEURISTICS, "cost-greedy"):
        again = evaluate(make_agent(name), suite)
        assert again.mean_cost_ms == pytest.approx(measured[name]["mean_cost_ms"], rel=1e-9)
        assert again.failures == measured[name]["failures"]


@pytest.mark.parametrize("name", suite_names())
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
