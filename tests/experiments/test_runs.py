from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents.rnn import RnnLearner
from shard_gym.errors import DamagedFileError
from shard_gym.experiments import runs as module
from shard_gym.experiments.runs import TRAINED, TRAINING, Run, as_options, perform, read_record, record_path
from shard_gym.io.files import read_json, write_json
from shard_gym.suites import suite_info

SUITE = "dlrm-20x4"
GREEDY = Run("size-greedy", SUITE)
RNN = Run("rnn", SUITE, SUITE, options=as_options({"iterations": 3, "episodes": 2, "hidden": 4}))
DREAM = Run(
    "dreamshard",
    SUITE,
    SUITE,
    options=as_options({"preset": "paper", "iterations": 1, "cost_updates": 2, "policy_updates": 1, "episodes": 2}),
)


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


def test_a_foreign_file_in_place_of_a_record_is_refused(tmp_path: Path) -> None:
    record = perform(GREEDY, tmp_path)
    write_json(record_path(GREEDY, tmp_path), {**record, "run": {**record["run"], "seed": 7}})
    with pytest.raises(DamagedFileError, match="no record of the run: size-greedy, seed 0, on dlrm-20x4"):
        read_record(GREEDY, tmp_path)


def test_a_stopped_run_goes_on_and_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_runs_that_differ_in_the_test_share_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    perform(RNN, tmp_path)
    monkeypatch.setattr(RnnLearner, "iterate", lambda _: pytest.fail("trained again"))
    perform(replace(RNN, test="dlrm-40x4"), tmp_path)
    (training,) = (tmp_path / TRAINING).iterdir()
    assert set(read_json(training / TRAINED)) == {"seconds", "queries", "iterations"}
    assert not list(training.glob("training.safetensors")), "what is only needed to go on is dropped"


def test_the_error_of_dreamshards_surrogate_is_recorded(tmp_path: Path) -> None:
    errors = perform(DREAM, tmp_path)["estimate_errors"]
    assert set(errors) == {"random", "greedy", "own"}
    assert all(error > 0 for error in errors.values())
