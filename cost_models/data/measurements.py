"""The measurements in a folder as models use them: the splits, the test tasks, and the repeated measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.dataset import CostDataset, IntArray
from shard_gym.cost_models.data.folder import INDEX, MeasurementIndex, read_index, read_parts
from shard_gym.cost_models.data.parquet import MeasurementInfo
from shard_gym.cost_models.data.sampling import CYCLE
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.errors import DamagedFileError, InvalidOptionError

MIN_TASK_PLACEMENTS = 3
"""Placements of the same tables that a test task has at least; the ranking of fewer says nothing."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """All measurements in a folder.

    Attributes:
        folder: where they are.
        index: its index.
        costs: all P measurements, repeated ones among them.
        info: of each of them.
    """

    folder: Path
    index: MeasurementIndex
    costs: SplitCosts
    info: MeasurementInfo

    @cached_property
    def first(self) -> SplitCosts:
        """The first measurement of every placement."""
        return SplitCosts(self.costs.data.take(self._first_rows), self.costs.table_split)

    @cached_property
    def test(self) -> CostDataset:
        """The first measurements of the test placements.

        Raises:
            InvalidOptionError: there are none.
        """
        return self.first.part("test")

    @cached_property
    def test_task_rows(self) -> list[IntArray]:
        """For each test task, which is a set of tables with `MIN_TASK_PLACEMENTS` or more, its rows of `test`."""
        is_test = self.first.placement_split == SPLITS.index("test")
        cycles = self.info.number[self._first_rows][is_test] // CYCLE
        groups = [np.flatnonzero(cycles == cycle) for cycle in np.unique(cycles)]
        return [rows for rows in groups if len(rows) >= MIN_TASK_PLACEMENTS]

    @cached_property
    def test_tasks(self) -> list[CostDataset]:
        """The placements of each test task."""
        return [self.test.take(rows) for rows in self.test_task_rows]

    @cached_property
    def repeated(self) -> tuple[CostDataset, CostDataset] | None:
        """The placements that were measured twice, the first time and the second; None if there are none."""
        numbers = self.info.number.tolist()
        row_of = {numbers[row]: row for row in self._first_rows}
        second = [row for row in np.flatnonzero(self.info.repeat == 1).tolist() if numbers[row] in row_of]
        if not second:
            return None
        return self.costs.data.take([row_of[numbers[row]] for row in second]), self.costs.data.take(second)

    @property
    def spreads(self) -> FloatArray:
        """(n,) float64, the spreads of all measurements that have one."""
        spread = self.info.spread
        return spread[~np.isnan(spread)]

    @cached_property
    def _first_rows(self) -> IntArray:
        return np.flatnonzero(self.info.repeat == 0)


def load_measurements(folder: str | Path) -> Measurements:
    """The measurements in `folder`.

    Raises:
        DamagedFileError: the folder holds none, or a file is missing or is not the one that was written.
        InvalidOptionError: nothing was measured yet.
        MissingExtraError: pyarrow is not installed.
    """
    index = read_index(folder)
    return Measurements(Path(folder), index, *read_parts(folder, index))


def load_workloads(folder: str | Path) -> dict[str, Measurements]:
    """The measurements in `folder`, under the name "", or those in its sub-folders by name, by rising batch size.

    Raises:
        DamagedFileError: there are none, or a file is damaged.
        InvalidOptionError: one folder holds no measurement yet; or two have the same workload or different hardware.
        MissingExtraError: pyarrow is not installed.
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        return {"": load_measurements(folder)}
    found = {path.parent.name: load_measurements(path.parent) for path in sorted(folder.glob(f"*/{INDEX}"))}
    if not found:
        raise DamagedFileError(f"{folder} holds no measurements; `shard-gym collect` makes such a folder.")
    _check_folders(folder, found)
    return dict(sorted(found.items(), key=lambda item: item[1].index.workload.batch_size))


def _check_folders(folder: Path, found: Mapping[str, Measurements]) -> None:
    hardware = sorted({each.index.hardware for each in found.values()})
    if len(hardware) > 1:
        raise InvalidOptionError(f"{folder} holds measurements of different hardware: {', '.join(hardware)}.")
    if len({each.index.workload for each in found.values()}) < len(found):
        raise InvalidOptionError(f"Two folders in {folder} hold measurements of one workload; name one of them.")
