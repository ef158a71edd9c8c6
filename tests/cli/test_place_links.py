"""What travels over the links, as `shard-gym place` takes it: the dtype of outputs, and models that compress them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.text import format_ms
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.analytical.traffic import index_exchange_of_plan_ms
from shard_gym.hardware import hardware_profile
from shard_gym.plans import plan_of_placement
from shard_gym.plans.placement import check_placement
from shard_gym.tables import load_pool

TABLES = load_pool("merlin-small").tables
PLACE = ("place", "--tables", "merlin-small", "--hardware", "h100-dgx", "--num-devices", 16, "--agent", "lane-greedy")


def placed(run: Any, path: Path, *options: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.ok(*PLACE, *options, "--out", path).out and path.read_text())
    return found


def test_a_plan_is_costed_with_what_is_sent(run: Any, tmp_path: Path) -> None:
    plain = placed(run, tmp_path / "plan.json")
    half = placed(run, tmp_path / "plan.json", "--communication-dtype", "fp16")
    assert half["placement"] == plain["placement"]
    topology = hardware_profile("h100-dgx").topology(16)
    placement = check_placement([half["placement"][name] for name in TABLES.names], TABLES, topology)
    model = AnalyticalShardingModel("fp16")
    assert half["cost_model"] == model.fingerprint
    assert half["cost_ms"] == model.estimate(placement, TABLES, topology).total_ms < plain["cost_ms"]
    for way, sent in plain["sent_mib"].items():
        assert half["sent_mib"][way] == [each / 2 for each in sent]


def test_a_model_that_compresses_sends_less_across_hosts(run: Any, tmp_path: Path) -> None:
    plain, less = (placed(run, tmp_path / "plan.json", "--cross-host-ratio", ratio) for ratio in (1, 0.25))
    assert less["cost_ms"] < plain["cost_ms"]
    assert less["sent_mib"]["inside_its_host"] == plain["sent_mib"]["inside_its_host"]
    assert less["sent_mib"]["to_other_hosts"] == [each / 4 for each in plain["sent_mib"]["to_other_hosts"]]


def test_the_exchange_of_the_indices_stands_beside_every_cost(run: Any, tmp_path: Path) -> None:
    """Of a placement, of a plan that is compared, and of `show`, which add up as they say."""
    path, old = tmp_path / "plan.json", tmp_path / "old.json"
    printed = run.ok(*PLACE, "--out", old).out
    plan = json.loads(old.read_text())
    topology = hardware_profile("h100-dgx").topology(16)
    placement = plan_of_placement([plan["placement"][name] for name in TABLES.names], TABLES)
    took, cost = index_exchange_of_plan_ms(placement, TABLES, topology), plan["cost_ms"]
    assert plan["index_exchange_ms"] == took > 0.0
    says = (
        f"Index exchange {format_ms(took)} ms, hidden by a pipelined input (TrainPipelineSparseDist); without one an "
        f"iteration takes {format_ms(cost)} + {format_ms(took)} = {format_ms(cost + took)} ms."
    )
    assert says in " ".join(printed.split())
    again = run.ok(*PLACE[:-2], "--agent", "dim-greedy", "--compare", old, "--out", path)
    assert json.loads(path.read_text())["compared"]["index_exchange_ms"] == took
    assert "index exchange, ms" in again.out
    assert "without a pipeline that hides the exchange of the indices" in " ".join(again.out.split())
    shown = run.ok("show", *PLACE[1:-2], "--plan", old)
    assert says in " ".join(shown.out.split())


def test_a_plan_is_made_for_an_exposed_exchange(run: Any, tmp_path: Path) -> None:
    """Its cost has the exchange, also with another dtype, and shows of it say so."""
    topology = hardware_profile("h100-dgx").topology(16)
    for dtype in ("fp32", "fp16"):
        path, options = tmp_path / "plan.json", ("--communication-dtype", dtype, "--index-exchange", "exposed")
        printed = run.ok(*PLACE, *options, "--out", path).out
        plan = json.loads(path.read_text())
        model = AnalyticalShardingModel(dtype, index_exchange="exposed")
        placement = check_placement([plan["placement"][name] for name in TABLES.names], TABLES, topology)
        assert plan["cost_model"] == model.fingerprint
        assert plan["cost_ms"] == model.estimate(placement, TABLES, topology).total_ms
        rest = format_ms(plan["cost_ms"] - plan["index_exchange_ms"])
        says = f"in this cost; a pipelined input (TrainPipelineSparseDist) hides it, and leaves {rest} ms."
        assert says in " ".join(printed.split())
        assert "if a pipeline hides the exchange of the indices" in " ".join(printed.split())
        assert "held-out measurements, h100-dgx" in " ".join(printed.split())
    shown = run.ok("show", *PLACE[1:-2], "--plan", path, "--index-exchange", "exposed").out
    assert "in this cost; a pipelined input" in " ".join(shown.split())
    own = run.ok("show", "--suite", "shard-4", "--agent", "lane-greedy", "--index-exchange", "exposed").out
    assert "costed by analytical-exposed-indices-v2" in " ".join(own.split())
    named = run.ok("show", "--suite", "shard-4", "--agent", "lane-greedy", "--cost-model", "analytical-exposed-indices")
    assert named.out == own
    placed(run, path, "--cost-model", "analytical-exposed-indices")
    assert json.loads(path.read_text())["cost_model"] == "analytical-exposed-indices-v2"


def test_one_device_exchanges_nothing_and_says_nothing(run: Any, tmp_path: Path) -> None:
    alone = (*PLACE[:6], 1, *PLACE[7:])
    printed = run.ok(*alone, "--out", tmp_path / "plan.json").out
    assert json.loads((tmp_path / "plan.json").read_text())["index_exchange_ms"] == 0.0
    assert "Index exchange" not in printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--index-exchange", "exposed", "--cost-model", "measured"), "'measured' does not know the exchange of the"),
        (("--communication-dtype", "fp4"), "no communication dtype named 'fp4'"),
        (("--communication-dtype", "fp16", "--cost-model", "measured"), "cost model 'measured' knows FP32 alone"),
        (("--cross-host-ratio", 0), "--cross-host-ratio must be a number from 0.001 to 1, not 0.0"),
        (("--cross-host-ratio", "nan"), "--cross-host-ratio must be a number from 0.001 to 1, not nan"),
    ],
)
def test_what_cannot_be_sent_is_refused(run: Any, options: tuple[object, ...], says: str) -> None:
    failed = run(*PLACE, *options)
    assert failed.code == 2
    assert says in " ".join(failed.err.split())
