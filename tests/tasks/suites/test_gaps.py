"""Gaps of the best known placements to the bounds, recomputed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.tasks import TaskSuite, load_suite
from shard_gym.tasks.suites import best_known, records
from shard_gym.tasks.suites.bounds import write_lower_bounds
from shard_gym.tasks.suites.gaps import proven_gap

MODEL = AnalyticalCostModel()


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskSuite:
    """Of 50 tasks, with a bound of 10 ms for each."""
    monkeypatch.setattr(records, "BOUNDS", tmp_path)
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path / "none")
    tasks = load_suite("mixdim-4")
    write_lower_bounds([tasks], {task.name: 10.0 for task in tasks}, MODEL, "made up")
    return tasks


def test_the_gap_is_that_of_the_best_known_costs(suite: TaskSuite) -> None:
    costs = {task.name: 10.0 for task in suite}
    costs[suite[1].name], costs[suite[2].name], costs[suite[3].name] = 10.009, 11.0, 15.0
    gap = proven_gap(suite, MODEL, costs)
    assert gap is not None
    assert gap.mean == pytest.approx((0.0009 + 0.1 + 0.5) / 50)
    assert gap.largest == pytest.approx(0.5)
    assert (gap.proven, gap.tasks) == (48, 50)
    assert str(gap) == (
        "The best known placements cost 1.20% more than the proven bounds on average, at most 50.00%; 48 of 50 are "
        "proven to be within 0.1% of the best."
    )


def test_a_rounding_error_below_the_bound_is_no_gap(suite: TaskSuite) -> None:
    gap = proven_gap(suite, MODEL, {task.name: 10.0 * (1 - 1e-12) for task in suite})
    assert gap is not None
    assert (gap.mean, gap.proven) == (0.0, 50)


def test_without_a_bound_or_a_placement_of_every_task_nothing_is_claimed(suite: TaskSuite) -> None:
    costs = {task.name: 11.0 for task in suite}
    missing = dict(list(costs.items())[1:])
    assert proven_gap(suite, MODEL, missing) is None
    write_lower_bounds([suite], dict.fromkeys(missing, 10.0), MODEL, "made up")
    assert proven_gap(suite, MODEL, costs) is None
