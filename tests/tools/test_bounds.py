"""The tool that bounds the suites: a bound below every placement, and a better placement where CP-SAT finds one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ortools")

from shard_gym.agents import make_agent
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.hardware import hardware_profile
from shard_gym.leaderboard.ranking import SOLVED
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, load_suite, problem_of
from shard_gym.tasks.groups import tasks_of_groups
from shard_gym.tasks.suites import best_known, bounds, records
from shard_gym.tasks.suites.gaps import PROVEN

MODEL = AnalyticalCostModel()


@pytest.fixture
def bounds_tool(tool: Callable[[str], ModuleType]) -> Any:
    return tool("bounds")


def test_cp_sat_goes_on_where_linear_programs_prove_too_little(bounds_tool: Any, random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 9, 3)
    poor = np.zeros(9, np.int64)
    without = bounds_tool.bounded(task, poor, MODEL, 0.0, 1e-4)
    assert without.simple_ms <= without.linear_ms == without.bound_ms < without.cost_ms == without.start_ms
    found = bounds_tool.bounded(task, poor, MODEL, 5.0, 1e-4)
    assert found.linear_ms == without.linear_ms < found.bound_ms <= found.cost_ms < found.start_ms
    assert found.cost_ms <= found.bound_ms * (1 + 1e-4)
    assert MODEL.estimate(found.answer, task.tables, task.topology).total_ms == found.cost_ms
    assert "1 proven, 1 better" in bounds_tool.summary("one", [found], 1e-4)


@pytest.mark.parametrize("sync_every", [1, 100, 100_000])
def test_no_plan_with_groups_costs_less_than_the_bound(bounds_tool: Any, sync_every: int) -> None:
    """Searched plans of every group, from those that gain nothing of groups to those that must have them."""
    rng, model = np.random.default_rng(sync_every), AnalyticalShardingModel()
    tables = Tables.from_zipf(
        rng.integers(1_000, 200_000, 4), rng.choice([16, 64, 128], 4), 5.0, 1.05, Workload(8192, "fp32", "adam")
    )
    topology = hardware_profile("a100-dgx").topology(4, devices_per_host=2)
    task = Task("grouped", tables, topology, splittable=True, sync_every=sync_every)
    costs = []
    for own in tasks_of_groups(task):
        agent = make_agent("plan-search", cost_model=model_of(own.topology, model), max_queries=500)
        costs.append(problem_of(own).cost_ms(agent.plan(own), own, model))
    bound = bounds_tool.bound_of_plans(task, model, 1e9)
    assert 0.5 * min(costs) < bound <= min(costs)
    assert bounds_tool.bound_of_plans(task, model, 0.9 * bound) == pytest.approx(0.9 * bound)


def test_the_page_of_the_suites_names_the_limits_of_its_statuses() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "suites.md").read_text().split())
    assert f"entry is within {100 * SOLVED:g}%" in text
    assert f"proven to be within {100 * PROVEN:g}% of the best" in text


def test_bounds_only_rise_and_better_placements_are_kept(
    bounds_tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BOUNDS", tmp_path / "bounds")
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path / "best")
    suite = load_suite("mlperf-x8")
    name, poor = suite[0].name, np.arange(26) % 8
    best_known.write_best_known([suite], {name: poor}, MODEL, "Made up")
    before = best_known.best_known_costs(suite, MODEL)[name]
    bounds_tool.main(suite="mlperf-x8", work=1.0, jobs=1)
    first, cost = bounds.lower_bounds(suite, MODEL)[name], best_known.best_known_costs(suite, MODEL)[name]
    assert first <= cost < before
    assert best_known.best_known_effort("mlperf-x8") == "Made up; improved by CP-SAT"
    bounds.write_lower_bounds([suite], {name: cost}, MODEL, "Made up.")
    bounds_tool.main(suite="mlperf-x8", work=0.0, jobs=1)
    assert bounds.lower_bounds(suite, MODEL) == {name: cost}
    assert bounds.lower_bounds_effort("mlperf-x8") == "Made up.; linear programs", "what was done before counts"
