"""What travels over the links, as `shard-gym place` takes it: the dtype of outputs, and models that compress them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import hardware_profile
from shard_gym.placement import check_placement
from shard_gym.pools import load_pool

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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--communication-dtype", "fp4"), "no communication dtype named 'fp4'"),
        (("--communication-dtype", "fp16", "--cost-model", "measured"), "cost model 'measured' knows FP32 alone"),
        (("--cross-host-ratio", 0), "cross_host_ratio must be a number from 0.001 to 1, not 0.0"),
        (("--cross-host-ratio", "nan"), "cross_host_ratio must be a number from 0.001 to 1, not nan"),
    ],
)
def test_what_cannot_be_sent_is_refused(run: Any, options: tuple[object, ...], says: str) -> None:
    failed = run(*PLACE, *options)
    assert failed.code == 2
    assert says in " ".join(failed.err.split())
