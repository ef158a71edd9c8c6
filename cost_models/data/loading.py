"""Collected measurements as they are read: what to learn from, what to be judged by, and how exact they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.dataset import CostDataset, IntArray
from shard_gym.cost_models.data.folder import INDEX, Collected, load_collected, load_costs
from shard_gym.cost_models.data.parquet import Notes
from shard_gym.cost_models.data.sampling import CYCLE
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.errors import DamagedFileError, InvalidOptionError

FEWEST_RIVALS = 3
"""Placements that test tables must have to say anything about the order of placements."""

_TEST = SPLITS.index("test")


@dataclass(frozen=True, eq=False)
class Measured:
    """A collected data set.

    Attributes:
        folder: where it lies.
        about: what is known beside the costs.
        costs: all measurements, those that measure a draw again among them.
        notes: one for each of them.
    """

    folder: Path
    about: Collected
    costs: SplitCosts
    notes: Notes

    @cached_property
    def first(self) -> SplitCosts:
        """Every draw once: its first measurement."""
        return SplitCosts(self.costs.data.take(self._first), self.costs.table_split)

    @cached_property
    def test(self) -> CostDataset:
        """The first measurements of the test tables.

        Raises:
            InvalidOptionError: there are none.
        """
        return self.first.part("test")

    @cached_property
    def rivals(self) -> list[IntArray]:
        """For each set of test tables that was placed in `FEWEST_RIVALS` ways or more, its rows of `test`."""
        numbers = self.notes.number[self._first][self.first.placement_split == _TEST] // CYCLE
        groups = [np.flatnonzero(numbers == cycle) for cycle in np.unique(numbers)]
        return [rows for rows in groups if len(rows) >= FEWEST_RIVALS]

    @cached_property
    def rival_sets(self) -> list[CostDataset]:
        """The same as a data set for each set of tables."""
        rivals = self.rivals
        return [self.test.take(rows) for rows in rivals] if rivals else []

    @cached_property
    def twice(self) -> tuple[CostDataset, CostDataset] | None:
        """The draws that were measured twice, the first time and the second; None if there are none."""
        row_of = {number: row for row, number in zip(self._first, self.notes.number[self._first].tolist(), strict=True)}
        again = [row for row in np.flatnonzero(self.notes.repeat == 1).tolist() if self.notes.number[row] in row_of]
        if not again:
            return None
        data = self.costs.data
        return data.take([row_of[int(self.notes.number[row])] for row in again]), data.take(again)

    @property
    def spreads(self) -> FloatArray:
        """(n,) float64, the spreads of all measurements that have one."""
        spread = self.notes.spread
        return spread[~np.isnan(spread)]

    @cached_property
    def _first(self) -> IntArray:
        return np.flatnonzero(self.notes.repeat == 0)


def read_measured(folder: str | Path) -> Measured:
    """The data set in `folder`.

    Raises:
        DamagedFileError: the folder holds no collection, or a file is missing or is not the one that was written.
        InvalidOptionError: nothing was measured yet.
        MissingExtraError: pyarrow is not installed.
    """
    about, costs = load_collected(folder), load_costs(folder)
    assert about.notes is not None  # `load_costs` refuses a folder without measurements
    return Measured(Path(folder), about, costs, about.notes)


def read_all(folder: str | Path) -> dict[str, Measured]:
    """The data set in `folder`, under the name "", or those in its sub-folders, each under its own.

    Raises:
        DamagedFileError: there is none, or one is damaged.
        InvalidOptionError: in one, nothing was measured yet; or two are of one workload or of different hardware.
        MissingExtraError: pyarrow is not installed.
    """
    folder = Path(folder)
    if (folder / INDEX).exists():
        return {"": read_measured(folder)}
    found = {each.parent.name: read_measured(each.parent) for each in sorted(folder.glob(f"*/{INDEX}"))}
    if not found:
        raise DamagedFileError(f"{folder} holds no measurements; `shard-gym collect` makes such a folder.")
    _require_apart(folder, found)
    by_size = sorted(found.items(), key=lambda item: item[1].about.workload.batch_size)
    return dict(by_size)


def _require_apart(folder: Path, found: Mapping[str, Measured]) -> None:
    hardware = sorted({each.about.hardware for each in found.values()})
    if len(hardware) > 1:
        raise InvalidOptionError(f"{folder} holds measurements of different hardware: {', '.join(hardware)}.")
    if len({each.about.workload for each in found.values()}) < len(found):
        raise InvalidOptionError(f"Two folders in {folder} hold measurements of one workload; name one of them.")
