"""What the oracle takes: data beside the suites, for one version of a suite and one cost model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift import oracle_seconds as data
from shard_gym.drift.suites import DriftSuite, load_drift_suite
from shard_gym.errors import DamagedFileError, InvalidTaskError

SUITE = "drift-strong-600"
MODEL = make_sharding_cost_model("analytical")


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriftSuite:
    """A suite whose data are in another folder."""
    monkeypatch.setattr(data, "ORACLE", tmp_path)
    return load_drift_suite(SUITE)


def test_what_is_written_is_read(suite: DriftSuite) -> None:
    assert data.oracle_seconds(suite, MODEL) == {}
    seconds = {task.name: 1.0 + number for number, task in enumerate(suite)}
    assert data.write_oracle_seconds(suite, seconds, MODEL, "a test") == data.oracle_path(SUITE)
    assert data.oracle_seconds(suite, MODEL) == seconds


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda record: record.update(suite_sha256="x"), "suite_sha256 of"),
        (lambda record: record.update(suite="x"), "suite of"),
        (lambda record: record.update(cost_model="x"), "cost_model of"),
        (lambda record: record.update(splits=[]), "must map every task of 'drift-strong-600'"),
        (lambda record: record["splits"]["test"].popitem(), "must map every task of 'drift-strong-600'"),
        (lambda record: record["splits"]["test"].update({f"{SUITE}/test/0": -1}), "a positive number, not -1"),
        (lambda record: record.pop("how"), "must be an object of schema 1"),
    ],
)
def test_damaged_data_are_refused(suite: DriftSuite, edit: Any, reason: str) -> None:
    path = data.write_oracle_seconds(suite, {task.name: 1.0 for task in suite}, MODEL, "a test")
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=reason):
        data.oracle_seconds(suite, MODEL)


def test_only_named_suites_have_data(suite: DriftSuite) -> None:
    with pytest.raises(InvalidTaskError, match="is not a named suite"):
        data.write_oracle_seconds(DriftSuite("mine", suite.tasks), {}, MODEL, "")
    with pytest.raises(InvalidTaskError, match="Give the seconds of every task"):
        data.write_oracle_seconds(suite, {}, MODEL, "")


def test_the_data_are_those_of_the_suites() -> None:
    names = sorted(path.stem for path in data.ORACLE.glob("*.json"))
    assert SUITE in names
    for name in names:
        assert len(data.oracle_seconds(load_drift_suite(name), MODEL)) == len(load_drift_suite(name))
