"""What the commands print of how far to trust a cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cli import show
from shard_gym.hardware import hardware_profile
from shard_gym.planning import robustness
from shard_gym.planning.trust import evidence_sentence, robustness_sentence
from shard_gym.plans import plan_of_placement
from shard_gym.replanning import DriftSuite
from shard_gym.tables import Pool, RowPopularity, Tables, Workload
from shard_gym.tables.pools import PoolCard, save_pool
from shard_gym.tasks import Task

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
