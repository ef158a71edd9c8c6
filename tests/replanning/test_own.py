"""Suites of replanning in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym import load_suite, save_suite
from shard_gym.common.errors import DamagedFileError
from shard_gym.replanning import DriftSuite
from shard_gym.replanning.drift.levels import MEDIUM


@pytest.fixture
def suite(drift_task: Any) -> DriftSuite:
    task = replace(drift_task(3, 2, 5, replace(MEDIUM, growth=0.5)), pause_s=7.0)
    return DriftSuite("mine", (task,), "train", 3, "", "Words.", padding=(9, 4))


def test_what_is_saved_is_loaded_and_played(suite: DriftSuite, tmp_path: Path, same: Any) -> None:
    path = tmp_path / "mine.json"
    save_suite(path, suite)
    loaded = load_suite(path)
    assert isinstance(loaded, DriftSuite)
    assert (loaded.split, loaded.version, loaded.description, loaded.padding) == ("train", 3, "Words.", (9, 4))
    [one], [other] = suite, loaded
    assert (one.name, one.level, one.seed, one.pause_s) == (other.name, other.level, other.seed, other.pause_s)
    assert np.array_equal(one.available, other.available)
    made = [gymnasium.make("EmbeddingReplanning-v0", suite=each) for each in (suite, path, str(path))]
    results = [[env.reset(seed=1), *(env.step(action) for action in (0, 3, 0))] for env in made]
    assert same(results[0], results[1])
    assert same(results[0], results[2])


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("seed", -1, "is not valid: .*seed"),
        ("level", {"daily": 0.1}, "Its level must have the fields of a DriftLevel"),
        ("popularity", {"q": [1.0], "s": [1.0]}, "row popularities of 1"),
        ("task", {}, "is not valid: It lacks"),
        ("more", 1, "unknown key 'more'"),
    ],
)
def test_a_damaged_file_is_named(suite: DriftSuite, tmp_path: Path, key: str, value: Any, says: str) -> None:
    path = tmp_path / "mine.json"
    save_suite(path, suite)
    record = json.loads(path.read_text())
    record["splits"]["train"][0][key] = value
    path.write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=says) as raised:
        load_suite(path)
    assert str(path) in str(raised.value)
