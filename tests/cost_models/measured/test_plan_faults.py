"""What goes wrong while a plan is measured is named, and the next measurement works."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DeviceMemoryError, MeasurementTimeoutError, WorkerDiedError
from shard_gym.cost_models.measured import DamagedCacheWarning, MeasuredCostModel, memory
from shard_gym.hardware import hardware_profile
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_wise
from shard_gym.tables import Tables, Workload

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")

TWO = hardware_profile("cpu").topology(2)
OPTIONS: dict[str, Any] = {"layout": "parallel", "iterations": 3, "warmup": 1, "batches": 2, "timeout_s": 2.0}
LONG = 1_000  # iterations that take the quick workers forever
MUCH = 2**40  # rows for which they have no memory


def tables() -> Tables:
    return Tables.from_zipf([300, 200, 100, 50], 8, 2.0, 1.0, Workload(8, "fp32", "sgd"))


def plan(of: Tables) -> ShardingPlan:
    """Whole, by columns, by rows, and replicated."""
    return ShardingPlan(
        (table_wise(of, 0, 1), column_wise(of, 1, [0, 1]), row_wise(of, 2, TWO), data_parallel(of, 3, TWO))
    )


@pytest.fixture(autouse=True)
def quick(quick_workers: None) -> None:
    """Workers that start at once, and whose times are random."""


def test_a_dead_worker_is_named_and_the_same_plan_can_be_measured_again() -> None:
    some = tables()
    with MeasuredCostModel("cpu", **{**OPTIONS, "iterations": LONG, "timeout_s": 30.0}) as slow:
        slow.repeats = replace(slow.repeats, iterations=3)
        slow.estimate(plan(some), some, TWO)
        assert slow._session is not None
        victim = slow._session.pids[1]
        slow.repeats = replace(slow.repeats, iterations=LONG)
        killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        killer.start()
        with pytest.raises(WorkerDiedError, match=r"device 1 \(4 shards, .*was killed by SIGKILL"):
            slow.estimate(plan(some), some, TWO)
        slow.repeats = replace(slow.repeats, iterations=3, seed=1)
        assert slow.estimate(plan(some), some, TWO).seconds > 0


def test_a_stuck_collective_is_noticed_within_the_timeout() -> None:
    some = tables()
    with MeasuredCostModel("cpu", **{**OPTIONS, "iterations": LONG}) as model:
        begin = time.monotonic()
        with pytest.raises(MeasurementTimeoutError, match=r"device 0 \(3 shards, .*device 1 \(4 shards"):
            model.estimate(plan(some), some, TWO)
        assert time.monotonic() - begin < 30
        assert model._session is not None
        assert not model._session.pids  # terminated


def test_too_little_memory_is_told_by_the_machine_or_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    some = tables()
    with MeasuredCostModel("cpu", **OPTIONS) as model:
        monkeypatch.setattr(memory, "available_memory", lambda: 1000)
        with pytest.raises(DeviceMemoryError, match=r"device [01] \([34] shards"):
            model.estimate(plan(some), some, TWO)
        monkeypatch.setattr(memory, "available_memory", lambda: None)
        huge = replace(some, num_embeddings=np.full(4, MUCH // 2**9 * 2**9))
        roomy = replace(TWO, memory_cap_bytes=np.full(2, 2**62))
        with pytest.raises(DeviceMemoryError, match="There is not enough memory for device"):
            model.estimate(plan(huge), huge, roomy)
        assert model.estimate(plan(some), some, TWO).seconds > 0


def test_a_damaged_cache_is_left_aside_with_a_warning(tmp_path: Path) -> None:
    some, path = tables(), tmp_path / "cache.sqlite"
    with MeasuredCostModel("cpu", **OPTIONS, cache=path) as model:
        first = model.estimate(plan(some), some, TWO)
        assert model.estimate(plan(some), some, TWO).seconds == 0
    with sqlite3.connect(path) as file:
        file.execute("UPDATE times SET ms = '[1.0]'")
    with MeasuredCostModel("cpu", **OPTIONS, cache=path) as another, pytest.warns(DamagedCacheWarning):
        again = another.estimate(plan(some), some, TWO)
    assert again.seconds > 0
    assert again.phases_ms.tolist() != first.phases_ms.tolist()
