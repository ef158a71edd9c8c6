from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents.rnn import RnnLearner
from shard_gym.errors import DamagedFileError, RunsFailedError
from shard_gym.experiments import runs as module
from shard_gym.experiments.runs import (
    TRAINED,
    TRAINING,
    Run,
    as_options,
    perform,
    perform_all,
    read_record,
    record_path,
    training_path,
)
from shard_gym.io.files import read_json, write_json
from shard_gym.suites import load_suite, suite_info
from shard_gym.tasks import TaskSuite

SUITE = "dlrm-20x4"
GREEDY = Run("size-greedy", SUITE)
RNN = Run("rnn", SUITE, SUITE, options=as_options({"iterations": 3, "episodes": 2, "hidden": 4}))
BAD = Run("rnn", SUITE, SUITE, options=as_options({"episodes": 1}))
LONG = Run("rnn", SUITE, SUITE, options=as_options({"iterations": 100_000, "episodes": 2, "hidden": 4}))
DREAM = Run(
    "dreamshard",
    SUITE,
    SUITE,
    options=as_options({"preset": "paper", "iterations": 1, "cost_updates": 2, "policy_updates": 1, "episodes": 2}),
)


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents are tested on five tasks, in this process."""

    def load(name: str) -> TaskSuite:
        suite = load_suite(name)
        return TaskSuite(suite.name, suite.tasks[:5], suite.split)

    monkeypatch.setattr(module, "load_suite", load)


def lasting(record: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    without = {"seconds", "placing_seconds"}
    return {
        key: {k: v for k, v in value.items() if k not in without} if isinstance(value, dict) else value
        for key, value in record.items()
    }


def test_the_key_depends_on_everything_that_determines_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        replace(RNN, agent="a2c"),
        replace(RNN, test="dlrm-40x4"),
        replace(RNN, trained_on="dlrm-40x4"),
        replace(RNN, seed=1),
        replace(RNN, options=as_options({"iterations": 4})),
        replace(RNN, placing=as_options({"queries": 0})),
    ]
    shared = [other for other in others if other.training_key == RNN.training_key]
    assert shared == [others[1], others[5]]
    keys = {RNN.key, *(other.key for other in others)}
    with monkeypatch.context() as patch:
        patch.setattr("shard_gym.__version__", "99.0.0")
        keys.add(RNN.key)
    monkeypatch.setattr(module, "suite_info", lambda suite: replace(suite_info(suite), sha256="0" * 64))
    keys.add(RNN.key)
    assert len(keys) == 9


def test_a_record_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = perform(GREEDY, tmp_path)
    assert len(first["test"]["costs_ms"]) == 50
    assert first["training"] is None
    assert first["estimate_errors"] is None
    monkeypatch.setattr(module, "evaluate", lambda *_: pytest.fail("the run was made again"))
    assert perform(GREEDY, tmp_path) == first == read_record(GREEDY, tmp_path)
    monkeypatch.setattr(module, "ProcessPoolExecutor", None)  # calling it would be a TypeError
    perform_all([GREEDY], tmp_path)


def test_a_foreign_file_in_place_of_a_record_is_refused(tmp_path: Path) -> None:
    record = perform(GREEDY, tmp_path)
    write_json(record_path(GREEDY, tmp_path), {**record, "run": {**record["run"], "seed": 7}})
    with pytest.raises(DamagedFileError, match="no record of the run: size-greedy, seed 0, on dlrm-20x4"):
        read_record(GREEDY, tmp_path)


def test_a_stopped_run_goes_on_and_ends_as_one_that_was_not(
    few_tasks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = perform(RNN, tmp_path / "whole")
    iterate, done = RnnLearner.iterate, []

    def until_killed(self: RnnLearner) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(self.iteration)
        return iterate(self)

    with monkeypatch.context() as patch:
        patch.setattr(RnnLearner, "iterate", until_killed)
        with pytest.raises(KeyboardInterrupt):
            perform(RNN, tmp_path / "cut")
    assert read_record(RNN, tmp_path / "cut") is None

    def counted(self: RnnLearner) -> Any:
        done.append(self.iteration)
        return iterate(self)

    monkeypatch.setattr(RnnLearner, "iterate", counted)
    assert lasting(perform(RNN, tmp_path / "cut")) == lasting(whole)
    assert done == [0, 1, 2]
    assert whole["training"]["queries"] == 6


def test_runs_that_differ_in_the_test_share_a_training(
    few_tasks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform(RNN, tmp_path)
    monkeypatch.setattr(RnnLearner, "iterate", lambda _: pytest.fail("trained again"))
    perform(replace(RNN, test="dlrm-40x4"), tmp_path)
    (training,) = (tmp_path / TRAINING).iterdir()
    assert set(read_json(training / TRAINED)) == {"seconds", "queries", "iterations"}
    assert not list(training.glob("training.safetensors")), "what is only needed to go on is dropped"


def test_the_error_of_dreamshards_surrogate_is_recorded(few_tasks: None, tmp_path: Path) -> None:
    errors = perform(DREAM, tmp_path)["estimate_errors"]
    assert set(errors) == {"random", "greedy", "own"}
    assert all(error > 0 for error in errors.values())


# Many runs in processes


def test_an_error_of_one_run_is_named_and_loses_no_other(tmp_path: Path) -> None:
    done: list[Run] = []
    before = os.environ.get("OMP_NUM_THREADS")
    runs = {BAD, GREEDY, replace(GREEDY, agent="dim-greedy")}
    message = r"(?s)^1 run failed.*rnn trained on dlrm-20x4, seed 0, .*episodes must be an integer"
    with pytest.raises(RunsFailedError, match=message):
        perform_all([*runs, GREEDY], tmp_path, 2, done.append)
    assert len(done) == 3
    assert set(done) == runs
    assert {run for run in runs if not read_record(run, tmp_path)} == {BAD}
    assert os.environ.get("OMP_NUM_THREADS") == before


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_a_killed_process_is_named_with_its_runs_and_loses_no_other(tmp_path: Path) -> None:
    also_lost = replace(LONG, test="dlrm-40x4")  # shares the training, so the same process would have made it
    done: list[Run] = []

    def kill_the_other(run: Run) -> None:
        done.append(run)
        if run == GREEDY:
            _wait_until(state_of(LONG, tmp_path).exists)
            (worker,) = multiprocessing.active_children()
            worker.kill()

    with pytest.raises(RunsFailedError) as error:
        perform_all([LONG, also_lost, GREEDY], tmp_path, 2, kill_the_other)
    first, *lines = str(error.value).splitlines()
    assert first.startswith("2 runs failed")
    assert lines == [f"{run}: its process was killed, for want of memory perhaps." for run in (LONG, also_lost)]
    assert done == [GREEDY, LONG, also_lost]
    assert read_record(GREEDY, tmp_path)


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    def interrupt(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform_all([LONG, GREEDY], tmp_path, 2, interrupt)
    assert multiprocessing.active_children() == []
    assert read_record(LONG, tmp_path) is None


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


def _wait_until(so: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end
        time.sleep(0.05)
