"""What the commands print of how far to trust a cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cli import show
from shard_gym.cli.trusted import evidence_sentence, robustness_sentence
from shard_gym.hardware.profiles import hardware_profile
from shard_gym.planning.trust import Robustness, evidence, robustness
from shard_gym.plans import plan_of_placement
from shard_gym.replanning.drift.suite import DriftSuite
from shard_gym.tables.pools import Pool, PoolCard, RowPopularity, save_pool
from shard_gym.tables.tables import Tables
from shard_gym.tables.workload import Workload
from shard_gym.tasks.task import Task

EXPONENTS = np.linspace(0.0, 1.2, 12)
TABLES = Tables.from_zipf(
    np.linspace(2e4, 2e6, 12).astype(int), np.tile([16, 128], 6), 10, EXPONENTS, Workload(65536, "fp16", "sgd")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    save_pool(Pool("mine", TABLES, PoolCard("Mine", "here", "by hand"), RowPopularity.zipf(EXPONENTS)), path)
    return path


def place(run: Any, file: Path, tmp_path: Path, **options: object) -> str:
    given = {
        "hardware": "a100-dgx",
        "num-devices": 4,
        "agent": "local-search",
        "out": tmp_path / "plan.json",
        **options,
    }
    words = (part for key, value in given.items() for part in (f"--{key}", value))
    out: str = run.ok("place", "--tables", file, *words).out
    return " ".join(out.split())


def test_the_sentence_of_each_hardware_names_what_is_measured() -> None:
    topology = hardware_profile("a100-dgx").topology(4)
    found = evidence("a100-dgx", "forward")
    assert found is not None
    assert evidence_sentence(topology, "analytical-v2") == (
        "Mean error of the cost model on held-out measurements, a100-dgx: "
        f"forward {found.held_out_error:.0%} of {found.measurements} (the GPU is inferred); backward not measured; "
        "links inside hosts not measured."
    )
    assert "links across hosts 29% of 11" in evidence_sentence(
        hardware_profile("v100-nvlink").topology(16), "analytical-v2-fp16"
    )


def test_nothing_is_claimed_of_optimizers_and_weights_that_were_not_measured() -> None:
    topology = hardware_profile("h100-dgx").topology(4)
    said = evidence_sentence(topology, "analytical-v2", Workload(8, "fp32", "adam"))
    assert "h100-dgx, fp32, adam: forward 14% of 10" in said
    assert "backward not measured" in said
    said = evidence_sentence(topology, "analytical-v2", Workload(8, "bf16", "sgd"))
    assert "h100-dgx, bf16, sgd: forward not measured; backward not measured; links inside hosts 3%" in said
    own = evidence_sentence(topology, "analytical-v2", Workload(8, "fp16", "sgd"))
    assert own == evidence_sentence(topology, "analytical-v2")


def test_equal_plans_are_told_in_few_words() -> None:
    found = Robustness(1.001, {"sort": (0.999, 1.002)}, (1.0, 1.001), (1.0, 1.002), 3)
    assert robustness_sentence(found, "old.json", 3) == (
        "old.json costs as much as this plan, within 0.5%, whatever nobody measured."
    )


def test_other_costs_have_other_evidence() -> None:
    profile = hardware_profile("a100-dgx")
    assert evidence_sentence(profile.topology(4), "measured-v2-parallel-12") == "This cost is measured, not estimated."
    assert "cost model pooled-v1-12: see its card" in evidence_sentence(profile.topology(4), "pooled-v1-12")
    mine = replace(profile, device=replace(profile.device, name="my GPU", num_sms=10)).topology(4)
    assert evidence_sentence(mine, "analytical-v2").startswith("Cost model on my GPU: not measured, ")


def test_place_prints_the_evidence_and_compares_with_a_simple_placement(run: Any, file: Path, tmp_path: Path) -> None:
    out = place(run, file, tmp_path, **{"memory-cap-gib": 80})
    topology = hardware_profile("a100-dgx").topology(4)
    assert evidence_sentence(topology, "analytical-v2") in out
    plan = json.loads((tmp_path / "plan.json").read_text())
    placements = (
        make_agent("lookup-greedy").place(Task("mine", TABLES, topology)),
        [plan["placement"][name] for name in TABLES.names],
    )
    plans = [plan_of_placement(each, TABLES) for each in placements]
    found = robustness(plans[0], plans[1], TABLES, topology)
    assert robustness_sentence(found, "The placement of lookup-greedy", 12) in out
    assert plan["held_out_errors"]["forward"]["measurements"] == 16
    assert plan["held_out_errors"]["backward"] is None


def test_nothing_is_compared_with_itself_nor_where_whole_tables_do_not_fit(
    run: Any, file: Path, tmp_path: Path
) -> None:
    assert "times as much" not in place(run, file, tmp_path, agent="lookup-greedy")
    out = place(
        run,
        file,
        tmp_path,
        agent="plan-search",
        **{"memory-cap-gib": 0.42, "num-devices": 8, "option": "max_queries=200"},
    )
    assert "times as much" not in out
    assert "Mean error of the cost model" in out


def test_show_prints_the_evidence_of_placements_plans_and_episodes(
    run: Any, drift_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = evidence_sentence(hardware_profile("a100-dgx").topology(4), "analytical-v2")
    for suite in ("mixdim-4", "shard-4"):
        assert says in " ".join(run.ok("show", "--suite", suite, "--agent", "lane-greedy").out.split()), suite
    task = drift_task(4, 2, 0)
    monkeypatch.setattr(show, "load_suite", lambda *_: DriftSuite("drift-medium-30", (task,)))
    out = run.ok("show", "--suite", "drift-medium-30", "--agent", "never").out
    assert evidence_sentence(task.topology, "analytical-v2") in " ".join(out.split())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ["A costs 1.20 times as much as this plan: 1.10 to 1.40 if what nobody measured", "most by the sort"]),
        ({"lookups": None}, ["lookups are not varied"]),
        ({"remade": 5}, ["exponents of the lookups of the 5 costliest tables were 0.2 lower, or 0.2 higher"]),
        ({"lookups": (0.98, 1.5)}, ["0.98 to 1.50", "the model does not tell for certain which"]),
        ({"other_exchange": 1.25}, ["It is 1.25 without a pipeline that hides the exchange of the indices."]),
        (
            {"other_exchange": 0.9, "index_exchange": "exposed"},
            ["It is 0.90 if a pipeline hides the exchange of the indices.", "for certain which"],
        ),
        ({"terms": {"sort": (1.2, 1.2)}, "together": (1.2, 1.2)}, ["1.20 to 1.20", "or twice as long;"]),
    ],
)
def test_the_sentence_of_a_ratio(changes: dict[str, Any], says: list[str]) -> None:
    given: dict[str, Any] = {
        **{"ratio": 1.2, "terms": {"sort": (1.1, 1.3), "latency": (1.2, 1.2)}, "together": (1.15, 1.4)},
        **{"lookups": (1.1, 1.3), "remade": 12},
        **changes,
    }
    text = robustness_sentence(Robustness(**given), "A", 12)
    assert [part for part in says if part not in text] == []
    assert ("for certain" in text) == any("for certain" in part for part in says)


@pytest.mark.parametrize(("dedup", "which", "other"), [(True, "dedup", "recorded"), (False, "recorded", "dedup")])
def test_one_reason_is_given_why_lookups_are_not_varied(dedup: bool, which: str, other: str) -> None:
    found = Robustness(1.2, {"sort": (1.1, 1.3)}, (1.15, 1.4), None, 0)
    text = robustness_sentence(found, "A", 12, dedup)
    assert which in text
    assert other not in text
