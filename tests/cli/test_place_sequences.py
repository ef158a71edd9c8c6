"""`shard-gym place` of models with sequence tables, and with deduplicated ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.text import format_ms
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import hardware_profile
from shard_gym.planning import deduplicated
from shard_gym.plans import plan_from_json
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool

TABLES = Tables.from_zipf(
    [40_000, 30_000, 500, 9000],
    [64, 32, 16, 128],
    [20.0, 3.0, 5.0, 1.0],
    1.05,
    Workload(4096, "fp32", "sgd"),
    pooled=[False, True, False, True],
    names=["clicks", "user", "words", "item"],
)
OPTIONS = ("--hardware", "a100-dgx", "--num-devices", 4, "--agent", "plan-search", "--option", "max_queries=2000")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_pool(Pool("mine", TABLES, load_pool("dlrm-2021").card), tmp_path / "mine.json")
    return tmp_path / "mine.json"


def test_sequences_are_planned_and_cost_what_python_says(run: Any, file: Path) -> None:
    costs = []
    for flags in ((), ("--index-dedup",)):
        content = json.loads(run.ok("place", "--tables", file, *OPTIONS, *flags).out)
        tables = deduplicated(TABLES, 4) if flags else TABLES
        topology = hardware_profile("a100-dgx").topology(4)
        plan = plan_from_json(content["plan"], tables, topology)
        costs.append(AnalyticalShardingModel().estimate(plan, tables, topology).total_ms)
        assert content["cost_ms"] == pytest.approx(costs[-1], rel=1e-12)
        assert content.get("index_dedup", False) == bool(flags)
        plan_file = file.with_name("plan.json")
        plan_file.write_text(json.dumps(content))
        shown = run.ok("show", "--tables", file, "--plan", plan_file, *OPTIONS[:4]).out
        assert f"{format_ms(content['cost_ms'])} ms" in shown
    assert costs[1] < costs[0]
    assert repr(TABLES).startswith("Tables(4 tables, 2 of them sequences, ")


def test_what_torchrec_or_groups_cannot_have_is_refused(run: Any, file: Path) -> None:
    for flags, says in (
        (("--format", "torchrec"), "has pooled and sequence tables, which are modules of their own in TorchRec"),
        (("--index-dedup", "--sync-every", 100), "Give --index-dedup or --sync-every, not both"),
    ):
        failed = run("place", "--tables", file, *OPTIONS, *flags)
        assert failed.code == 2
        assert says in " ".join(failed.err.split())


def test_dedup_without_sequences_is_refused(run: Any) -> None:
    failed = run("place", "--tables", "dlrm-2021", "--embedding-dim", 16, *OPTIONS, "--index-dedup")
    assert failed.code == 2
    assert "--index-dedup is for sequence tables, and dlrm-2021 has none" in " ".join(failed.err.split())


def test_tables_are_served_by_the_cost_model_of_serving(run: Any, file: Path, tmp_path: Path) -> None:
    """Without states, gradients and backward; `show` of the plan says the same."""
    serving, plan = ("--cost-model", "analytical-inference"), tmp_path / "plan.json"
    placed = run.ok("place", "--tables", file, *OPTIONS, *serving, "--out", plan)
    content, text = json.loads(plan.read_text()), " ".join(placed.out.split())
    assert content["cost_model"] == "analytical-inference-v2"
    assert "Memory of serving, GiB" in text
    assert "gradients" not in text
    shown = run.ok("show", "--tables", file, "--plan", plan, *OPTIONS[:4], *serving).out
    assert "mine: 4 tables, 2 of them sequences, served, on 4 x" in " ".join(shown.split())
    assert f"{format_ms(content['cost_ms'])} ms" in shown
    trained = run.ok("show", "--tables", file, "--plan", plan, *OPTIONS[:4])
    assert "is a plan for serving; --cost-model analytical-inference costs it so" in " ".join(trained.err.split())
