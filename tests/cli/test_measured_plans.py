"""`--cost-model measured` on tables that may be split, on a machine whose times are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

SUITE = "shard-cpu-20x2"
MEASURED = ("--cost-model", "measured", "--iterations", 3)
OPTIONS = [part for each in ("iterations=2", "measurements=3", "cost_updates=5") for part in ("--option", each)]
QUICK = ("--option", "max_queries=200")


@pytest.mark.parametrize("agent", ["dreamshard", "neuroshard"])
def test_learners_of_plans_measure_them(run, machine, tmp_path: Path, agent: str) -> None:
    out, quick = tmp_path / "mine", ("--option", "queries=50") if agent == "dreamshard" else ()
    outcome = run.ok("train", "--agent", agent, "--suite", SUITE, *MEASURED, *OPTIONS, *quick, "--out", out)
    assert f"Trained {agent}: 2 iterations, 6 measurements, 0 failures" in outcome.out
    assert len(machine.jobs) == 6
    shown = run.ok("show", "--suite", SUITE, "--agent", out, *MEASURED, columns=120)
    assert "costed by measured-v2-" in " ".join(shown.out.split())
    assert len(machine.jobs) == 7


def test_a_measured_plan_is_shown_without_gains(run, machine) -> None:
    arguments = ("show", "--suite", SUITE, "--agent", "hugectr", "--task", 9)
    measured = run.ok(*arguments, *MEASURED, columns=120).out
    assert "Moves are not listed: what they gain is not measured." in measured
    assert "Split or replicated tables" in measured
    assert "estimated ms alone of" in measured
    assert "gain ms" not in measured
    assert "by what that gains" not in measured
    estimated = run.ok(*arguments, columns=120).out
    assert "by what that gains" in estimated
    assert "gain ms" in estimated


def test_the_plan_of_own_tables_is_measured(run, machine, tmp_path: Path) -> None:
    tables = ("--tables", "merlin-tiny", "--hardware", "cpu", "--num-devices", 2)
    placed = json.loads(run.ok("place", *tables, "--agent", "plan-search", *QUICK, *MEASURED, "--batch-size", 2048).out)
    assert placed["cost_model"].startswith("measured")
    assert placed["cost_ms"] > 0
    assert "plan" in placed
    assert len(machine.jobs) == 1
    path = tmp_path / "plan.json"
    out = run.ok(
        "place", *tables, "--agent", "hugectr", *MEASURED, "--batch-size", 2048, "--out", path, columns=120
    ).out
    assert "Plan written to" in out
    given = ("--tables", "merlin-tiny", "--plan", path, "--hardware", "cpu", "--num-devices", 2)
    assert "costed by measured-v2-" in run.ok("show", *given, *MEASURED, "--batch-size", 2048, columns=120).out
