"""The tool that bounds the suites: a bound below every placement, and a better placement where CP-SAT finds one."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ortools")

from shard_gym.agents import make_agent
from shard_gym.common.errors import DamagedFileError
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.hardware import hardware_profile
from shard_gym.leaderboard.ranking import SOLVED
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, load_suite, problem_of
from shard_gym.tasks.groups import tasks_of_groups
from shard_gym.tasks.suites import best_known, bounds, proofs, records
from shard_gym.tasks.suites.gaps import PROVEN
from shard_gym.tasks.suites.proofs import checked_ms, read_proofs

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
    proof = bounds_tool.proof_of_plans(task, model, min(costs))
    assert 0.85 * min(costs) < proof.bound_ms <= min(costs)
    assert checked_ms(proof, task, model) >= proof.bound_ms * (1 - 1e-9)
    assert bounds_tool.proof_of_plans(task, model, 0.9 * proof.bound_ms).bound_ms == pytest.approx(0.9 * proof.bound_ms)


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


def test_proofs_of_plans_are_written_and_checked(
    bounds_tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bound that is raised by hand, and a proof of another one, are noticed; so is a file that was changed."""
    monkeypatch.setattr(records, "BOUNDS", tmp_path / "bounds")
    monkeypatch.setattr(proofs, "PROOFS", tmp_path / "proofs")
    name = "shard-mlperf-x8"
    suite, model = load_suite(name), AnalyticalShardingModel()
    bounds_tool.main(suite=name, jobs=1)
    (task,), found = suite, read_proofs(suite, model)
    bound, best = bounds.lower_bounds(suite, model)[task.name], best_known.best_known_costs(suite, model)[task.name]
    assert 0.9 * best < bound == found[task.name].bound_ms <= best
    bounds_tool.main(suite=name, check=True)
    assert f"{name}: 1 of 1 proofs hold; 1 of 1 bounds have one\n" in capsys.readouterr().out
    proofs.write_proofs([suite], {task.name: found[task.name]._replace(bound_ms=1.001 * bound)}, model)
    with pytest.raises(SystemExit):
        bounds_tool.main(suite=name, check=True)
    assert f"0 of 1 proofs hold; 1 of 1 bounds have one; WRONG: {task.name}" in capsys.readouterr().out
    path = proofs.write_proofs([suite], found, model)
    bounds.write_lower_bounds([suite], {task.name: 0.9 * bound}, model, "Made up.")
    with pytest.raises(SystemExit):
        bounds_tool.main(suite=name, check=True)
    assert f"; the bound is lower than the proof: {task.name}" in capsys.readouterr().out
    changed = gzip.decompress(path.read_bytes()).replace(b"1", b"2", 200)
    path.write_bytes(gzip.compress(changed))
    with pytest.raises(DamagedFileError):
        read_proofs(suite, model)
    path.write_bytes(b"no archive")
    with pytest.raises(DamagedFileError, match="cannot be unpacked"):
        read_proofs(suite, model)
