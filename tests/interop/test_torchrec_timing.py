"""The processes that time TorchRec: one that fails, ends or hangs becomes a sentence, and none stays behind.

They run functions of this file here, which start at once; tests/cost_models/measured/test_torchrec.py runs TorchRec.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import MeasurementError, MeasurementTimeoutError, WorkerDiedError
from shard_gym.cost_models.measured.job import FAILED, OK, Repeats
from shard_gym.hardware import hardware_profile
from shard_gym.interop import torchrec_timing
from shard_gym.interop.torchrec_timing import TorchRecProcesses
from shard_gym.plans import plan_of_placement
from shard_gym.tables import Tables, Workload

TWO = hardware_profile("cpu").topology(2)
TABLES = Tables.from_zipf([10, 20], 4, 1.0, 1.0, Workload(8, "fp32", "sgd"))
WHAT = plan_of_placement([0, 1], TABLES), TABLES, TWO, Repeats(2, 0, 1, 0)
ENOUGH_S = 30.0


def quick(link: Any, cpus: Any, device: int, *_: Any) -> None:
    """Two steps, the first of which is slower on device 0."""
    while True:
        try:
            link.recv()
        except EOFError:
            return
        link.send((OK, [3.0 - device, 1.0 + device]))


def failing(link: Any, cpus: Any, device: int, *_: Any) -> None:
    """Device 1 fails, and device 0 waits for it forever."""
    link.recv()
    if device == 1:
        link.send((FAILED, "KeyError: 'adam'"))
    time.sleep(ENOUGH_S)


def dying(link: Any, cpus: Any, device: int, *_: Any) -> None:
    link.recv()
    if device == 1:
        os._exit(3)
    time.sleep(ENOUGH_S)


def hanging(link: Any, *_: Any) -> None:
    time.sleep(ENOUGH_S)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., TorchRecProcesses]:
    """Starts processes that run a function of this file."""
    monkeypatch.setattr(torchrec_timing, "find_spec", lambda name: name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def start(serve: Any, timeout_s: float = ENOUGH_S) -> TorchRecProcesses:
        monkeypatch.setattr(torchrec_timing, "_serve", serve)
        return TorchRecProcesses(TWO, timeout_s)

    return start


def test_a_step_lasts_until_the_last_device_is_done(started: Any, tmp_path: Path) -> None:
    before = dict(os.environ)
    with started(quick) as processes:
        for _ in range(2):
            np.testing.assert_array_equal(processes.step_ms(*WHAT), [3.0, 2.0])
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    assert not multiprocessing.active_children()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("serve", "timeout_s", "error", "says"),
    [
        (failing, ENOUGH_S, MeasurementError, "TorchRec failed on device 1: KeyError: 'adam'"),
        (dying, ENOUGH_S, WorkerDiedError, "The process of device 1 ended"),
        (hanging, 1.0, MeasurementTimeoutError, "no answer within 1 s"),
    ],
)
def test_what_goes_wrong_ends_all_processes(
    started: Any, tmp_path: Path, serve: Any, timeout_s: float, error: type[Exception], says: str
) -> None:
    begin = time.monotonic()
    processes = started(serve, timeout_s)
    with pytest.raises(error, match=says):
        processes.step_ms(*WHAT)
    assert time.monotonic() - begin < ENOUGH_S / 2
    assert not multiprocessing.active_children()
    assert not list(tmp_path.iterdir())
    with pytest.raises(WorkerDiedError, match="device 0 ended"):
        processes.step_ms(*WHAT)
