"""The measurements in a folder as models use them: the splits, the test tasks, and the repeated measurements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.data.folder import INDEX, MeasurementIndex, read_index, read_parts
from shard_gym.cost_models.fitting.data.parquet import MeasurementInfo
from shard_gym.cost_models.fitting.data.sampling import CYCLE
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts
from shard_gym.tables import Workload

MIN_TASK_PLACEMENTS = 3
"""Placements of the same tables that a test task has at least; the ranking of fewer says nothing."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """All measurements in a folder, or in several whose measurements belong together."""

    folder: Path  # where they are
    index: MeasurementIndex  # its index; of several folders, that of the first with what failed in all
    costs: SplitCosts  # all P measurements, repeated ones among them
    info: MeasurementInfo  # of each of them

    @cached_property
    def first(self) -> SplitCosts:
        """The first measurement of every placement."""
        return SplitCosts(self.costs.data.take(self._first_rows), self.costs.table_split)

    @cached_property
    def test(self) -> CostDataset:
        """The first measurements of the test placements; raises InvalidOptionError if there are none."""
        return self.first.part("test")

    @cached_property
    def test_task_rows(self) -> list[IntArray]:
        """The rows of `test` of each test task: a set of tables with `MIN_TASK_PLACEMENTS` placements or more."""
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

    def require_splits(self) -> None:
        """Raise InvalidOptionError unless there are placements of training, validation and test tables."""
        try:
            for split in SPLITS:
                self.first.part(split)
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{self.folder} is too small to fit a model to. {error}") from error

    @property
    def spreads(self) -> FloatArray:
        """(n,) float64, the spreads of all measurements that have one."""
        spread = self.info.spread
        return spread[~np.isnan(spread)]

    @cached_property
    def _first_rows(self) -> IntArray:
        return np.flatnonzero(self.info.repeat == 0)


def load_measurements(folder: str | Path) -> Measurements:
    """The measurements in `folder`; for errors see `folder`, and `read_parts` there."""
    index = read_index(folder)
    return Measurements(Path(folder), index, *read_parts(folder, index))


def load_workloads(folder: str | Path) -> dict[str, Measurements]:
    """The measurements in `folder` and its sub-folders, those of one workload joined, by rising batch size.

    Each has the name of its first sub-folder, or "" where there is one workload only.

    Raises:
        DamagedFileError: there are none, or a file is damaged.
        InvalidOptionError: a folder holds no measurement yet, or two have different hardware; or two of one workload
            have different sources or the same placements.
    """
    folder = Path(folder)
    groups: dict[Workload, list[Measurements]] = {}
    for path in _folders(folder):
        found = load_measurements(path)
        groups.setdefault(found.index.workload, []).append(found)
    if not groups:
        raise DamagedFileError(f"{folder} holds no measurements; `shard-gym collect` makes such a folder.")
    hardware = sorted({each.index.hardware for parts in groups.values() for each in parts})
    if len(hardware) > 1:
        raise InvalidOptionError(f"{folder} holds measurements of different hardware: {', '.join(hardware)}.")
    joined = [_joined(groups[workload]) for workload in sorted(groups, key=lambda each: each.batch_size)]
    return {"" if len(joined) == 1 else each.folder.relative_to(folder).as_posix(): each for each in joined}


def _folders(folder: Path) -> list[Path]:
    """`folder` and those in it that hold measurements, sorted."""

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return
        raise DamagedFileError(f"{error.filename} cannot be read: {error.strerror or error}.") from error

    return sorted(Path(path) for path, _, files in os.walk(folder, onerror=refuse) if INDEX in files)


def _joined(parts: Sequence[Measurements]) -> Measurements:
    """All measurements of one workload; placements get other numbers where two folders use the same."""
    if len(parts) == 1:
        return parts[0]
    for number, part in enumerate(parts):
        for other in parts[:number]:
            if part.index.sampling == other.index.sampling:
                raise InvalidOptionError(
                    f"{other.folder} and {part.folder} hold measurements of the same placements. Take one of them, or "
                    "collect with another --seed into each."
                )
    info, first = [], 0
    for part in parts:
        info.append(replace(part.info, number=part.info.number + first))
        first = (int(info[-1].number.max()) // CYCLE + 1) * CYCLE  # no test task spans two folders
    failed = tuple(failed for part in parts for failed in part.index.failed)
    return Measurements(
        folder=parts[0].folder,
        index=replace(parts[0].index, failed=failed),
        costs=SplitCosts.joined([part.costs for part in parts]),
        info=MeasurementInfo.joined(info),
    )
