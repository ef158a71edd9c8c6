"""Levels: the parts into which a search may cut the columns of a table, in halves or in nearly equal parts.

The rule: a table may be cut into a number of parts, of which each has as many groups of four columns as the others, or
one fewer. The numbers are 1, 2, 4, 8, .. while the columns can be halved. Where they cannot be halved up to the most
parts that are allowed, because half of a part would be no multiple of four columns, every number is one: 100 columns
are 52 + 48, 36 + 32 + 32, .., 5 x 20, .. A part of k parts may be halved to two of 2 k parts, and two of these merged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import IntArray

UNIT = 4  # columns that FBGEMM reads at once; a part has a multiple of them
FINE = 8  # numbers of parts above have an odd factor below this: 10, 12, 14, 16, 20, .., so that they stay few
NONE = -1  # no level


def near_equal_widths(dim: int, parts: int) -> list[int]:
    """The columns of so many parts of `dim` columns, widest first: multiples of 4 that differ by 4 at most.

    There are no more parts than groups of four columns.
    """
    narrow, wider = divmod(dim // UNIT, parts)
    return [UNIT * (narrow + 1)] * wider + [UNIT * narrow] * (parts - wider)


def part_counts(dim: int, max_shards: int, every: bool = False) -> list[int]:
    """The numbers of parts, ascending, that `dim` columns may be cut into; see the module for the rule.

    Args:
        max_shards: the most parts, a power of two.
        every: whether columns that can be halved so often may have every number of parts, too.
    """
    units = dim // UNIT
    halves = [1 << h for h in range(max_shards.bit_length()) if units % (1 << h) == 0]
    if not every and halves[-1] in (units, max_shards):
        return halves
    most = min(units, max_shards)
    return sorted({*halves, *(k for k in range(1, most + 1) if k // (k & -k) < FINE)})


@dataclass(frozen=True, eq=False)
class ColumnLevels:
    """L levels of T tables. A level is a number of parts, and whether a part is one of the wider or the narrower ones.

    Level 0 is the whole table and level h its columns halved h times; then come, if a table has any, the wider parts of
    other numbers of parts, and the narrower parts. Where a table does not have a level, its `width` is the dim.
    """

    parts: IntArray  # (L,), how many parts a table of such parts has
    width: IntArray  # (T, L), columns of a part
    legal: NDArray[np.bool_]  # (T, L), whether the table has parts of the level
    is_form: NDArray[np.bool_]  # (T, L), whether they are its wider or its only parts, which stand for all of them
    counts: IntArray  # (T, L, 2), how many parts of the level, and of `narrower`, the table has in this form
    narrower: IntArray  # (L,), the level of the narrower parts of as many; itself where there is none
    halves: IntArray  # (T, L, 2), the levels of both halves of a part, the wider one first, or NONE
    _kind: IntArray  # (T,), tables with equal dims have equal numbers
    _merged: IntArray  # (kinds, L, L)

    @staticmethod
    def of(dims: IntArray, max_shards: int, every: bool = False) -> ColumnLevels:
        """The levels of tables with these (T,) dims; see `part_counts`."""
        different, kind = np.unique(dims, return_inverse=True)
        counts = [part_counts(dim, max_shards, every) for dim in different.tolist()]
        own = [_Cuts(dim // UNIT, some) for dim, some in zip(different.tolist(), counts, strict=True)]
        powers = [1 << h for h in range(max_shards.bit_length())]
        wide = [*powers, *sorted({k for some in counts for k in some} - {*powers})]
        narrow = sorted({k for cuts in own for k in cuts.uneven})
        level = {(k, False): number for number, k in enumerate(wide)}
        level |= {(k, True): len(wide) + number for number, k in enumerate(narrow)}
        parts = np.array([*wide, *narrow])
        width, legal = np.repeat(different[:, None], len(parts), axis=1), np.zeros((len(own), len(parts)), np.bool_)
        shares = np.stack([np.tile(parts, (len(own), 1)), np.zeros_like(legal, np.int64)], axis=-1)
        halves, merged = np.full((*legal.shape, 2), NONE), np.full((*legal.shape, len(parts)), NONE)
        for row, cuts in enumerate(own):
            for (k, narrower), units in cuts.units.items():
                own_level = level[k, narrower]
                width[row, own_level], legal[row, own_level] = UNIT * units, True
                if not narrower:
                    shares[row, own_level] = cuts.shares(k)
                if both := cuts.halves(k, units):
                    halves[row, own_level] = [level[half] for half in both]
                for one, other in cuts.mergers(k, units):
                    merged[row, level[one], level[other]] = merged[row, level[other], level[one]] = own_level
        return ColumnLevels(
            parts,
            width[kind],
            legal[kind],
            (legal & (np.arange(len(parts)) < len(wide)))[kind],
            shares[kind],
            np.array([level.get((k, True), level[k, False]) for k in parts.tolist()]),
            halves[kind],
            kind.reshape(-1),
            merged,
        )

    def restricted(self, legal: NDArray[np.bool_]) -> ColumnLevels:
        """The same levels, of which a table has only those that (T, L) `legal` permits."""
        legal = self.legal & legal
        every = np.arange(len(legal))[:, None]
        narrower = (self.counts[..., 1] == 0) | legal[every, self.narrower]
        halved = self.halves != NONE
        both = (legal[every[..., None], np.where(halved, self.halves, 0)] | ~halved).all(axis=-1)
        return replace(
            self,
            legal=legal,
            is_form=self.is_form & legal & narrower,
            halves=np.where((legal & both)[..., None], self.halves, NONE),
        )

    def __len__(self) -> int:
        return len(self.parts)

    def merged(self, table: IntArray | int, one: IntArray | int, other: IntArray) -> IntArray:
        """The level of what two parts of `table` with these levels are together, or NONE; broadcasts."""
        return np.asarray(self._merged[self._kind[table], one, other])

    def fewest_parts(self, fits: NDArray[np.bool_]) -> IntArray:
        """(T,) the level of the form with the fewest parts whose wider parts (T, L) `fits` allows, or NONE."""
        fits = self.is_form & fits
        parts = np.where(fits, self.parts, np.iinfo(np.int64).max)
        return np.where(fits.any(axis=1), parts.argmin(axis=1), NONE)

    def in_form(self, table: IntArray, level: IntArray) -> tuple[IntArray, IntArray]:
        """(I,) table and level of all parts of each (N,) `table` in the form that its (N,) `level` stands for."""
        counts = self.counts[table, level].ravel()
        both = np.stack([level, self.narrower[level]], axis=-1).ravel()
        return np.repeat(np.repeat(table, 2), counts), np.repeat(both, counts)

    def forms(self, table: int) -> list[list[int]]:
        """The forms that a table may have: the levels of all its parts in each."""
        if table not in self._forms:
            every = self.is_form[table].nonzero()[0].tolist()
            self._forms[table] = [self.in_form(np.array([table]), np.array([form]))[1].tolist() for form in every]
        return self._forms[table]

    @cached_property
    def _forms(self) -> dict[int, list[list[int]]]:
        return {}


class _Cuts:
    """The parts of `total` groups of four columns, by number of parts and whether they are the narrower ones."""

    def __init__(self, total: int, counts: Iterable[int]) -> None:
        self._total, self._counts = total, set(counts)
        self.uneven = [k for k in self._counts if total % k]
        self.units = {(k, False): -(-total // k) for k in self._counts}
        self.units |= {(k, True): total // k for k in self.uneven}

    def shares(self, parts: int) -> tuple[int, int]:
        """How many of so many parts are wider ones, and narrower ones; all are wider where they are equal."""
        wider = self._total % parts or parts
        return wider, parts - wider

    def halves(self, parts: int, units: int) -> list[tuple[int, bool]]:
        """Both halves of a part; nothing if it has none."""
        if 2 * parts not in self._counts:
            return []
        return [self._of(2 * parts, units - units // 2), self._of(2 * parts, units // 2)]

    def mergers(self, parts: int, units: int) -> list[tuple[tuple[int, bool], tuple[int, bool]]]:
        """The pairs of halves, of any parts, that are such a part together."""
        halves = [(key, each) for key, each in self.units.items() if key[0] == 2 * parts]
        return [(one, other) for one, a in halves for other, b in halves if a + b == units]

    def _of(self, parts: int, units: int) -> tuple[int, bool]:
        return parts, units < self.units[parts, False]
