"""The balance of memory that `place` makes, on the terminal and in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.common.text import format_percent
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import hardware_profile
from shard_gym.plans import plan_from_json
from shard_gym.plans.memory import training_memory
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool

ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652),
    *(2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
CAP_GIB = 9.35
MODEL = AnalyticalShardingModel()


def test_balance_takes_a_less_full_plan_and_no_balance_the_cheapest(run: Any, tmp_path: Path) -> None:
    tables = Tables.from_zipf(np.array(ROWS), 256, 1.0, 1.05, Workload(2048, "fp32", "sgd"))
    path = tmp_path / "mine.json"
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)
    command = ("place", "--tables", path, "--hardware", "rtx2080ti-pcie", "--num-devices", 4, "--host-memory", 0)
    more = ("--memory-cap-gib", CAP_GIB, "--option", "max_queries=12000")
    even, cheapest = (run.ok(*command, *more, "--balance", balance, columns=400) for balance in ("yes", "no"))
    content, least = json.loads(even.out), json.loads(cheapest.out)
    told = content["balance"]
    assert "balance" not in least
    assert "--balance" not in cheapest.err
    assert told["cheapest_ms"] == least["cost_ms"]
    assert content["cost_ms"] <= 1.01 * least["cost_ms"]
    room = int(CAP_GIB * 2**30)
    topology = hardware_profile("rtx2080ti-pcie").topology(4, memory_cap_bytes=room)
    before, after = (
        training_memory(plan_from_json(each["plan"], tables, topology), tables, 4).total.max() / room
        for each in (least, content)
    )
    assert (before, after) == (told["fullest_device_of_cheapest"], told["fullest_device"])
    assert after <= before - 0.01
    assert f"the fullest device is {format_percent(after)} full instead of {format_percent(before)};" in even.err
