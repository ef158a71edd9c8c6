"""Loading suites: every byte is checked, and what is wrong is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnknownNameError
from shard_gym.common.io.files import INDEX, sha256_of
from shard_gym.tasks import load_suite, suite_info, suite_names
from shard_gym.tasks.suites import placing

NAME = "dlrm-20x4"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the data folder that the loader now reads."""
    folder = tmp_path / "data"
    folder.mkdir()
    for path in (placing.DATA / INDEX, placing.DATA / f"{NAME}.json", placing.DATA / "dlrm-40x4.json"):
        shutil.copy(path, folder)
    monkeypatch.setattr(placing, "DATA", folder)
    for cache in (placing.load, placing.info):
        cache.cache_clear()
    yield folder
    for cache in (placing.load, placing.info):
        cache.cache_clear()


def publish(folder: Path, data: bytes) -> None:
    """Put `data` in place of the suite, with its checksum in the index."""
    (folder / f"{NAME}.json").write_bytes(data)
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps({**index, NAME: sha256_of(data)}))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_a_single_flipped_bit_is_found(copied: Path, share: float) -> None:
    path = copied / f"{NAME}.json"
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 1
    path.write_bytes(data)
    for read in (load_suite, suite_info):
        with pytest.raises(DamagedFileError, match=rf"{NAME}\.json has SHA-256 .*the suite '{NAME}' was published"):
            read(NAME)
    assert len(load_suite("dlrm-40x4")) == 50  # the others stand


@pytest.mark.parametrize(
    ("changes", "of_task", "message"),
    [
        ({"schema": 2}, {}, rf"{NAME}\.json is not a suite file of schema 1"),
        ({"extra": 1}, {}, rf"{NAME}\.json is not a suite file of schema 1"),
        ({"pool_sha256": "0" * 64}, {}, f"'{NAME}' was made for pool 'dlrm-2021' with SHA-256 0000"),
        *(({}, of_task, f"'{NAME}/test/3' of suite '{NAME}' is not valid")
          for of_task in (
              {"tables": [0, 10**6]}, {"tables": ["a"]}, {"tables": 3}, {"embedding_dim": 6}, {"num_devices": 0},
              {"num_devices": "4"}, {"memory_cap_bytes": 1}, {"known_placement": [9] * 20}, {"known_placement": [0]},
          )),
        *(({}, {key: ...}, f"A task of suite '{NAME}' must have the keys") for key in ("tables", "name")),
    ],
)  # fmt: skip
def test_a_file_with_other_content_is_refused(
    copied: Path, changes: dict[str, Any], of_task: dict[str, Any], message: str
) -> None:
    record = json.loads((copied / f"{NAME}.json").read_text()) | changes
    task = record["splits"]["test"][3] | of_task
    record["splits"]["test"][3] = {key: value for key, value in task.items() if value is not ...}
    publish(copied, json.dumps(record).encode())
    with pytest.raises(DamagedFileError, match=message):
        load_suite(NAME)


def test_a_caller_changes_no_facts_of_others() -> None:
    count = suite_info(NAME).tasks["train"]
    dict.update(suite_info(NAME).tasks, train=0)  # type: ignore[arg-type]
    assert suite_info(NAME).tasks["train"] == count > 0


@pytest.mark.parametrize("track", ["nope", 5, []])
def test_an_unknown_track_is_refused(track: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"no track named .* replanning"):
        suite_names(track)


def test_who_asks_for_training_tasks_of_a_whole_model_is_told_a_suite_of_its_problem() -> None:
    for name, other in (("mlperf-x8", "mixdim-8"), ("shard-mlperf-x8", "shard-8")):
        with pytest.raises(InvalidOptionError, match=f"such as {other}, and"):
            load_suite(name, "train")
        with pytest.raises(InvalidOptionError, match=f"such as {other}@7"):
            load_suite(f"{name}@7")


def test_an_unknown_name_suggests_the_closest() -> None:
    for read in (load_suite, suite_info):
        with pytest.raises(UnknownNameError, match=r"no suite named 'dlrm-20x5'. Did you mean 'dlrm-20x4'.*mixdim-4"):
            read("dlrm-20x5")
        for name in (None, 5, [NAME]):
            with pytest.raises(UnknownNameError, match="no suite named"):
                read(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        (NAME, "val", r"has the splits \['test', 'train'\], not 'val'\. Pass split='test' or split='train'\.$"),
        ("mlperf-x8", "train", r"has no training tasks, only the splits \['test'\]\. Train on another suite"),
    ],
)
def test_an_unknown_split_is_named_with_the_hint(name: str, split: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"Suite '{name}' {message}"):
        load_suite(name, split)
    for bad in (None, 0, ["test"]):
        with pytest.raises(InvalidOptionError, match=r"split must be the name of a split.*not "):
            load_suite(name, bad)  # type: ignore[arg-type]


def test_the_padding_is_that_of_all_splits(copied: Path) -> None:
    """So that an agent trained on one split can place the others."""
    record = json.loads((copied / f"{NAME}.json").read_text())
    task = record["splits"]["train"][0]
    both = task["tables"] + record["splits"]["train"][1]["tables"]
    task.update(tables=both, num_devices=7, memory_cap_bytes=2**33, known_placement=[0] * 40)
    publish(copied, json.dumps(record).encode())
    for split in ("train", "test"):
        suite = load_suite(NAME, split)
        assert (suite.max_tables, suite.max_devices) == (40, 7)
    assert max(task.num_tables for task in load_suite(NAME)) == 20
    assert suite_info(NAME).num_tables == (20, 40)
