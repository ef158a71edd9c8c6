"""Measurements as models use them: first ones, repeated ones, test tasks; one data set for each workload."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.cost_models.fitting import PlacementSampler, load_workloads
from shard_gym.cost_models.fitting.data.folder import FailedMeasurement, append_failed
from shard_gym.cost_models.fitting.data.sampling import CYCLE
from shard_gym.tables import Workload

SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 3, 2**30, tables_per_device=8)


def test_first_measurements_repeats_and_test_tasks(tmp_path: Path, measure: Any) -> None:
    found = measure(tmp_path / "many", again=10.0)
    assert len(found.costs.data) == 2 * CYCLE + 7  # 9, 19, ... 69 are repeated; 79 is the last
    assert len(found.first.data) == 2 * CYCLE
    assert found.repeated is not None
    first, second = found.repeated
    assert len(first) == len(second) == 7
    assert np.array_equal(first.members, second.members)
    assert np.array_equal(first.devices, second.devices)
    assert second.cost_ms == pytest.approx(10 * first.cost_ms)
    assert [rows.tolist() for rows in found.test_task_rows] == [list(range(8)), list(range(8, 16))]
    for data in found.test_tasks:
        assert len({data.members[data.start[p] : data.start[p + 1]].tobytes() for p in range(len(data))}) == 1
    few = measure(tmp_path / "few", count=13)  # 4 and 9 are for the test
    assert (few.test_tasks, few.test_task_rows, len(few.test)) == ([], [], 2)
    assert measure(tmp_path / "fewest", count=3).repeated is None


def test_sub_folders_of_one_workload_are_joined(tmp_path: Path, measure: Any) -> None:
    parts = [measure(tmp_path / "a" / str(k), replace(SAMPLER, seed=k), 40 + k, again=10.0) for k in (0, 1)]
    append_failed(tmp_path / "a" / "1", [FailedMeasurement(70, 0, "It died.")])
    (joined,) = load_workloads(tmp_path).values()
    assert joined.first.data.cost_ms.tolist() == [ms for part in parts for ms in part.first.data.cost_ms.tolist()]
    assert [len(rows) for rows in joined.test_task_rows] == [8, 8]
    assert joined.repeated is not None
    assert joined.repeated[1].cost_ms == pytest.approx(10 * joined.repeated[0].cost_ms)
    assert len(joined.repeated[0]) == sum(len(part.repeated[0]) for part in parts if part.repeated) == 7
    assert [failed.reason for failed in joined.index.failed] == ["It died."]
    measure(tmp_path / "b", replace(SAMPLER, seed=1), 5)
    with pytest.raises(InvalidOptionError, match=r"a/1 and .*b hold .* of the same placements.*another --seed"):
        load_workloads(tmp_path)


def test_sub_folders_are_sorted_by_batch_size(tmp_path: Path, measure: Any) -> None:
    for name, size in (("b", 512), ("a", 2048)):
        measure(tmp_path / name, replace(SAMPLER, workload=Workload(size)), 5)
    assert list(load_workloads(tmp_path)) == ["b", "a"]
    assert list(load_workloads(tmp_path / "a")) == [""]
    measure(tmp_path / "d", replace(SAMPLER, workload=Workload(64)), 5, name="other-device")
    with pytest.raises(InvalidOptionError, match="fake-device, other-device"):
        load_workloads(tmp_path)
    with pytest.raises(DamagedFileError, match="shard-gym collect"):
        load_workloads(tmp_path / "nowhere")


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after chmod 000, which root does not notice."""
    (tmp_path / "secret").mkdir()
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DamagedFileError, match=r"secret cannot be read: Permission denied"):
        load_workloads(tmp_path)
