"""The tool that bounds the suites: a bound below every placement, and a better placement where CP-SAT finds one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ortools")

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.leaderboard.ranking import SOLVED
from shard_gym.suites import best_known, bounds, load_suite, records
from shard_gym.suites.gaps import PROVEN

MODEL = AnalyticalCostModel()


@pytest.fixture
def bounds_tool(tool: Callable[[str], ModuleType]) -> Any:
    return tool("bounds")


def test_cp_sat_goes_on_where_linear_programs_prove_too_little(bounds_tool: Any, random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 9, 3)
    poor = np.zeros(9, np.int64)
    without = bounds_tool.bounded(task, poor, 0.0, 1e-4)
    assert without.simple_ms <= without.linear_ms == without.bound_ms < without.cost_ms == without.start_ms
    found = bounds_tool.bounded(task, poor, 5.0, 1e-4)
    assert found.linear_ms == without.linear_ms < found.bound_ms <= found.cost_ms < found.start_ms
    assert found.cost_ms <= found.bound_ms * (1 + 1e-4)
    assert MODEL.estimate(found.answer, task.tables, task.topology).total_ms == found.cost_ms
    assert "1 proven, 1 better" in bounds_tool.summary("one", [found], 1e-4)


class Inline:
    """An executor that computes at once, so that the test's folders count."""

    def __init__(self, jobs: int) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments))
        return done


def test_the_page_of_the_suites_names_the_limits_of_its_statuses() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "suites.md").read_text().split())
    assert f"entry is within {100 * SOLVED:g}%" in text
    assert f"proven to be within {100 * PROVEN:g}% of the best" in text


def test_bounds_only_rise_and_better_placements_are_kept(
    bounds_tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds_tool, "ProcessPoolExecutor", Inline)
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
