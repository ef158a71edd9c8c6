"""Splits of the tables of a data set into training, validation and test tables.

A placement belongs to the split of its tables. None mixes two splits, so models are tested on tables they never saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.common.arrays import IntArray
from shard_gym.common.errors import InvalidOptionError, unknown_name
from shard_gym.cost_models.fitting.data.dataset import TABLE_ARRAYS, CostDataset, CostRecorder
from shard_gym.tables import Tables

SPLITS = ("train", "validation", "test")
SHARES = (0.7, 0.1, 0.2)  # the share of the different tables that each split gets; it gets one at least
Groups = Mapping[str, IntArray]  # the rows of each split in a set of tables, by the name of the split


@dataclass(frozen=True, eq=False)
class SplitCosts:
    """A data set with a split for each table.

    Raises:
        InvalidOptionError: a table has no split, or a placement mixes tables of two splits.
    """

    data: CostDataset  # P placements of M tables
    table_split: IntArray  # (M,) int64, for each table the number of its split in `SPLITS`

    def __post_init__(self) -> None:
        given, count = self.table_split, len(self.data.tables)
        if given.shape != (count,) or given.dtype != np.int64 or (given < 0).any() or (given >= len(SPLITS)).any():
            raise InvalidOptionError(
                f"table_split must hold a number from 0 to {len(SPLITS) - 1} for each of the {count} tables."
            )
        mixed = np.flatnonzero(np.repeat(self.placement_split, np.diff(self.data.start)) != given[self.data.members])
        if mixed.size:
            placement = int(np.searchsorted(self.data.start, mixed[0], side="right")) - 1
            raise InvalidOptionError(
                f"Placement {placement} mixes tables of two splits; they must belong to one, so that test tables are "
                "never trained on."
            )

    @property
    def placement_split(self) -> IntArray:
        """(P,) int64, the split of the tables of each placement."""
        return self.table_split[self.data.members[self.data.start[:-1]]]

    def part(self, split: str) -> CostDataset:
        """The placements of one of `SPLITS`; UnknownNameError if it is none, InvalidOptionError if it is empty."""
        if split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        chosen = np.flatnonzero(self.placement_split == SPLITS.index(split))
        if not chosen.size:
            raise InvalidOptionError(f"No placement belongs to the split {split!r}; measure some of its tables.")
        return self.data.take(chosen)

    def num_tables(self, split: str) -> int:
        """How many tables belong to `split`; a table with two different dims counts twice."""
        return int((self.table_split == SPLITS.index(split)).sum())

    @staticmethod
    def recorded(recorder: CostRecorder, placement_split: Sequence[int]) -> SplitCosts:
        """The placements of `recorder` and the split of each; InvalidOptionError if none are, or a table has two."""
        data = recorder.dataset()
        wanted = np.repeat(np.asarray(placement_split, np.int64), np.diff(data.start))
        table_split = np.zeros(len(data.tables), np.int64)
        table_split[data.members] = wanted
        twice = data.members[table_split[data.members] != wanted]
        if twice.size:
            raise InvalidOptionError(
                f"Table {data.tables.names[twice[0]]} is in placements of two splits; give every table one."
            )
        return SplitCosts(data, table_split)

    @staticmethod
    def joined(parts: Sequence[SplitCosts]) -> SplitCosts:
        """The placements of all `parts`; InvalidOptionError for several sources, workloads, or splits of a table."""
        sources = sorted({part.data.source for part in parts})
        if len(sources) != 1:
            raise InvalidOptionError(f"A data set has one source, but these have {sources}. Keep them apart.")
        if len(parts) == 1:
            return parts[0]
        recorder = CostRecorder(sources[0])
        for part in parts:
            recorder.extend(part.data)
        return SplitCosts.recorded(recorder, np.concatenate([part.placement_split for part in parts]).tolist())


def split_tables(tables: Tables, seed: int) -> dict[str, IntArray]:
    """Random groups of tables, one for each of `SPLITS`; tables that differ only in name or dim stay together.

    Equal seeds give equal groups. Raises InvalidOptionError if there are fewer than three different tables.
    """
    kinds = table_kinds(tables)
    count = int(kinds.max()) + 1
    if count < len(SPLITS):
        raise InvalidOptionError(
            f"There are {count} different tables, too few to give each of {', '.join(SPLITS)} its own."
        )
    ends = np.rint(np.cumsum(SHARES) / sum(SHARES) * count).astype(np.int64)
    ends[0] = np.clip(ends[0], 1, count - 2)
    ends[1] = np.clip(ends[1], ends[0] + 1, count - 1)
    split_of_kind = np.empty(count, np.int64)
    split_of_kind[np.random.default_rng(seed).permutation(count)] = np.searchsorted(ends, np.arange(count), "right")
    return {name: np.flatnonzero(split_of_kind[kinds] == number) for number, name in enumerate(SPLITS)}


def table_kinds(tables: Tables) -> IntArray:
    """(T,) int64, numbers from 0 up; equal for tables that differ in name and dim alone."""
    columns = [getattr(tables, name).reshape(len(tables), -1) for name in TABLE_ARRAYS if name != "embedding_dim"]
    rows = np.concatenate(columns, axis=1, dtype=np.float64)  # whole numbers up to 2^40 are exact
    return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), np.int64)
