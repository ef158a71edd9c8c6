"""The named suites of replanning: what they hold, and that what is wrong is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidTaskError, UnknownNameError
from shard_gym.common.io.files import INDEX, sha256_of
from shard_gym.envs.core.config import task_source
from shard_gym.replanning import DriftSuite, DriftTask, drifting
from shard_gym.replanning.drift.levels import GROWING, MEDIUM, SPOT, STRONG, DriftLevel
from shard_gym.replanning.env.episodes import drift_source
from shard_gym.tasks import TaskSuite, load_suite, suite_info, suite_names

MakeDriftTask = Callable[..., DriftTask]

LEVELS = {"drift-medium": MEDIUM, "drift-strong": STRONG, "growth": GROWING, "spot": SPOT}
NAMES = [
    *("drift-medium-30", "drift-medium-120", "drift-medium-600"),
    *("drift-strong-30", "drift-strong-120", "drift-strong-600"),
    *("growth-600", "spot-120", "spot-600"),
]

PINNED = DriftLevel(
    daily=0.3,
    weekend=0.3,
    shifts=0.15,
    shift=0.5,
    incidents=0.5,
    incident=0.5,
    walk=0.1,
    growth=0.5,
    age_days=(3.0, 30.0),
    pruned=0.05,
    arrivals=0.1,
    skew=0.02,
    departures=1.0,
    leaving=(1, 3),
    away_hours=(4.0, 24.0),
)

PUBLISHED = {
    "lookups": "4d8060f4921a8387",
    "rows": "1f869d4ca3963a8a",
    "exponent": "04eaee6ae2f1d360",
    "available": "a70b13eecbcca387",
    "noise": "6d4ff293e6941432",
}
"""The first 16 digits of the SHA-256 of a task's arrays, rounded to 9 digits."""


def test_all_names_are_listed() -> None:
    assert suite_names("replanning") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_suite_loads_in_both_splits(name: str) -> None:
    train, test = (load_suite(name, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (60, 50)
    for suite in (train, test):
        assert (suite.max_parts, suite.max_devices) == (train.max_parts, train.max_devices)
        file, pause = name.rsplit("-", 1)
        for number, task in enumerate(suite):
            assert task.name == f"{name}/{suite.split}/{number}"
            assert (task.level, task.pause_s) == (LEVELS[file], float(pause))
            assert task.task.num_tables * (8 if task.task.splittable else 1) <= suite.max_parts
        assert {task.task.name.split("/")[0] for task in suite} == {"mixdim-8", "shard-8"}
        assert sum(task.task.splittable for task in suite) == len(suite) / 2
        assert suite.grows == (file == "growth")
        assert repr(suite) == f"DriftSuite('{name}', '{suite.split}', {len(suite)} tasks)"
    assert load_suite(name, "train") is train
    info, every = suite_info(name), [*train, *test]
    assert (info.track, info.tasks, info.sha256) == ("replanning", {"train": 60, "test": 50}, test.sha256)
    assert info.num_tables == (min(task.num_tables for task in every), max(task.num_tables for task in every))
    assert info.num_devices == (8, 8)
    assert (info.pool, info.hardware) == ("dlrm-2021", "a100-dgx")


@pytest.mark.parametrize("name", ["drift-medium-30", "drift-strong-30", "growth-600", "spot-600"])
def test_splits_share_neither_tables_nor_seeds(name: str) -> None:
    train, test = (load_suite(name, split) for split in ("train", "test"))
    tables = [{table for task in suite for table in task.task.tables.names} for suite in (train, test)]
    assert tables[0].isdisjoint(tables[1])
    seeds = [task.seed for suite in (train, test) for task in suite]
    assert len(set(seeds)) == len(seeds) == 110


def test_pauses_share_the_placement_tasks() -> None:
    every = [load_suite(f"drift-medium-{pause}") for pause in (30, 120, 600)]
    for one, *others in zip(*every, strict=True):
        for other in others:
            assert other.task is one.task
            assert (other.seed, other.level) == (one.seed, one.level)
    assert len({suite.sha256 for suite in every}) == 1


def test_drift_of_a_task_stays_as_it_is_published() -> None:
    """A change of NumPy's streams or of the processes changes these numbers, and with them all results."""
    task = replace(load_suite("growth-600")[0], level=PINNED)
    drift = task.drift
    arrays = (drift.lookups, drift.rows, drift.exponent, task.available.astype(float), task.noise)
    digits = [np.round(array, 9) + 0.0 for array in arrays]  # no -0
    assert {name: sha256_of(array.tobytes())[:16] for name, array in zip(PUBLISHED, digits, strict=True)} == PUBLISHED
    assert drift.first_weekday == 2


def test_tasks_with_other_caps_are_else_the_same() -> None:
    capped = [task for task in load_suite("growth-600") if task.task.known_placement is None]
    assert capped
    for task in capped[:4]:
        suite, split, _ = task.task.name.split("/")
        origin = load_suite(suite, split)[task.task.name]
        assert origin.tables.names == task.task.tables.names
        assert np.array_equal(origin.tables.features(), task.task.tables.features())
        assert len(set(task.task.topology.memory_cap_bytes.tolist())) == 1


def test_unknown_names_and_splits_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no suite named 'drift-medium'.*spot-600"):
        load_suite("drift-medium")
    with pytest.raises(InvalidOptionError, match=r"'spot-600' has the splits \['test', 'train'\], not 'val'"):
        load_suite("spot-600", "val")


def test_a_custom_suite_has_the_size_of_its_largest_task_or_of_its_padding(drift_task: MakeDriftTask) -> None:
    tasks = drift_task(5, 2), drift_task(3, 4, seed=1, splittable=True)
    suite = DriftSuite("own", tasks)
    assert (suite.max_parts, suite.max_devices, suite.grows) == (3 * 8, 4, False)
    assert (DriftSuite("own", tasks[:1]).max_parts, DriftSuite("own", tasks[:1]).max_devices) == (5, 2)
    padded = DriftSuite("own", tasks[:1], padding=(9, 3))
    assert (padded.max_parts, padded.max_devices) == (9, 3)
    wrong: Any
    for wrong in ([1], tasks[0], (tasks[0].task,)):
        with pytest.raises(InvalidTaskError, match="tasks of suite 'own' must be a list of DriftTasks"):
            DriftSuite("own", wrong)


def test_a_source_is_a_name_or_a_suite(drift_task: MakeDriftTask) -> None:
    own = DriftSuite("own", (drift_task(),))
    assert drift_source(own, "test") is own
    assert drift_source("spot-600", "train") is load_suite("spot-600", "train")
    wrong: Any
    for wrong in (3, drift_task(), DriftSuite, TaskSuite("own", (drift_task().task,))):
        with pytest.raises(InvalidOptionError, match="suite must be the name of a suite of replanning"):
            drift_source(wrong, "train")
    for wrong in ("spot-600", own):
        told = "suite must be the name of a suite of placement or sharding.*its environment is EmbeddingReplanning-v0"
        with pytest.raises(InvalidOptionError, match=told):
            task_source(wrong, "train")


# Files


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the files that the loader now reads."""
    folder = tmp_path / "data"
    shutil.copytree(drifting.DRIFTING, folder)
    monkeypatch.setattr(drifting, "DRIFTING", folder)
    for cached in (drifting.load, drifting._record):
        cached.cache_clear()
    yield folder
    for cached in (drifting.load, drifting._record):
        cached.cache_clear()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_single_flipped_bit_is_found(copied: Path, share: float) -> None:
    path = copied / "spot.json"
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"spot\.json has SHA-256 .* 'spot' was published with"):
        load_suite("spot-600")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "The file of suite 'spot' must be an object of schema 1 with"),
        ({"extra": 1}, "The file of suite 'spot' must be an object"),
        ({"pool": {"name": "dlrm-2021", "sha256": "0" * 64}}, "made for pool 'dlrm-2021' with SHA-256 0000.*Reinstall"),
        ({"suites": {"mixdim-8": "0" * 64}}, "made for suite 'mixdim-8' with SHA-256 0000.*Reinstall"),
    ],
)
def test_a_file_with_other_content_is_refused(copied: Path, changes: dict[str, Any], message: str) -> None:
    record = json.loads((copied / "spot.json").read_text()) | changes
    data = json.dumps(record).encode()
    (copied / "spot.json").write_bytes(data)
    index = json.loads((copied / INDEX).read_text())
    (copied / INDEX).write_text(json.dumps({**index, "spot": sha256_of(data)}))
    with pytest.raises(DamagedFileError, match=message):
        load_suite("spot-600")
