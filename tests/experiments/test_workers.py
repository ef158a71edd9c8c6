from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shard_gym.errors import RunsFailedError
from shard_gym.experiments.runs import TRAINING, Run, as_options, read_record
from shard_gym.experiments.workers import perform_all

SUITE = "dlrm-20x4"
GOOD = Run("size-greedy", SUITE)
BAD = Run("rnn", SUITE, SUITE, options=as_options({"episodes": 1}))
LONG = Run("rnn", SUITE, SUITE, options=as_options({"iterations": 100_000, "episodes": 2, "hidden": 4}))


def test_an_error_of_one_run_is_named_and_loses_no_other(tmp_path: Path) -> None:
    done: list[Run] = []
    before = os.environ.get("OMP_NUM_THREADS")
    with pytest.raises(
        RunsFailedError, match=r"rnn trained on dlrm-20x4, seed 0, .*episodes must be an integer"
    ) as error:
        perform_all([BAD, GOOD, GOOD, replace(GOOD, agent="dim-greedy")], tmp_path, 2, done.append)
    assert str(error.value).startswith("1 run failed")
    assert len(done) == 3
    assert set(done) == {BAD, GOOD, replace(GOOD, agent="dim-greedy")}
    assert read_record(GOOD, tmp_path)
    assert read_record(replace(GOOD, agent="dim-greedy"), tmp_path)
    assert read_record(BAD, tmp_path) is None
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_runs_with_a_record_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform_all([GOOD], tmp_path)
    monkeypatch.setattr("shard_gym.experiments.workers._Worker.start", lambda *_: pytest.fail("a process was started"))
    perform_all([GOOD], tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_workers_end_with_a_killed_command(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from shard_gym.experiments.runs import Run
from shard_gym.experiments.workers import perform_all
if __name__ == "__main__":
    perform_all([{LONG!r}], Path({str(tmp_path)!r}))
"""
    (tmp_path / "main.py").write_text(script)
    state = tmp_path / TRAINING / LONG.training_key / "training.safetensors"
    with subprocess.Popen([sys.executable, str(tmp_path / "main.py")]) as process:
        _wait_until(state.exists)
        process.kill()
    _wait_until(lambda: _still(state))


def _still(path: Path) -> bool:
    before = path.stat().st_mtime_ns
    time.sleep(0.5)
    return path.stat().st_mtime_ns == before


def _wait_until(so: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)
