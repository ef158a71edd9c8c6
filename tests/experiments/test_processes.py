from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shard_gym.errors import RunsFailedError
from shard_gym.experiments import runs as module
from shard_gym.experiments.runs import Run, as_options, perform, perform_all, read_record, training_path

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


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_a_killed_process_is_named_with_its_runs_and_loses_no_other(tmp_path: Path) -> None:
    also_lost = replace(LONG, test="dlrm-40x4")  # shares the training, so the same process would have made it
    done: list[Run] = []

    def kill_the_other(run: Run) -> None:
        done.append(run)
        if run == GOOD:
            _wait_until(state_of(LONG, tmp_path).exists)
            (worker,) = multiprocessing.active_children()
            worker.kill()

    with pytest.raises(RunsFailedError) as error:
        perform_all([LONG, also_lost, GOOD], tmp_path, 2, kill_the_other)
    first, *lines = str(error.value).splitlines()
    assert first.startswith("2 runs failed")
    assert lines == [f"{run}: its process was killed, for want of memory perhaps." for run in (LONG, also_lost)]
    assert done == [GOOD, LONG, also_lost]
    assert read_record(GOOD, tmp_path)


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    def interrupt(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform_all([LONG, GOOD], tmp_path, 2, interrupt)
    assert multiprocessing.active_children() == []
    assert read_record(LONG, tmp_path) is None


def test_runs_with_a_record_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform(GOOD, tmp_path)
    monkeypatch.setattr(module, "ProcessPoolExecutor", None)  # calling it would be a TypeError
    perform_all([GOOD], tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_workers_end_with_a_killed_command(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from shard_gym.experiments.runs import Run, perform_all
if __name__ == "__main__":
    perform_all([{LONG!r}], Path({str(tmp_path)!r}))
"""
    (tmp_path / "main.py").write_text(script)
    state = state_of(LONG, tmp_path)
    with subprocess.Popen([sys.executable, str(tmp_path / "main.py")]) as process:
        _wait_until(state.exists)
        process.kill()
    _wait_until(lambda: _still(state))


def state_of(run: Run, folder: Path) -> Path:
    """The file that training writes after every iteration."""
    return training_path(run, folder) / "training.safetensors"


def _still(path: Path) -> bool:
    before = path.stat().st_mtime_ns
    time.sleep(0.5)
    return path.stat().st_mtime_ns == before


def _wait_until(so: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)
