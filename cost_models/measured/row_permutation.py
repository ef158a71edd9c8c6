"""Which row of a table is hot and which is not: a permutation of row numbers that needs no memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class RowPermutation:
    """A keyed permutation of the row numbers 0 .. rows - 1.

    It is a Feistel network on the bits of a number: by turns one half is changed by a hash of the other, which can be
    undone, so no two numbers give the same. It permutes the numbers below a power of two that is less than twice
    `rows`; what falls outside the table is permuted again until it falls inside (cycle walking), which keeps it one
    to one. Unlike multiplication by a number without common factor, it leaves no equal steps between rows that
    follow each other.

    Args:
        rows: rows of the table, at most 2**40.
        keys: (ROUNDS,) uint64.
    """

    ROUNDS = 4
    _CHUNK = 2**15  # numbers worked on at once, so that they stay in the cache

    def __init__(self, rows: int, keys: NDArray[np.uint64]) -> None:
        bits = (rows - 1).bit_length()
        self._rows, self._keys = rows, keys
        self._shift = np.uint64((bits + 1) // 2)
        self._masks = [np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** ((bits + 1) // 2) - 1)]  # upper and lower half

    def __call__(self, numbers: Ints) -> Ints:
        """(n,) int64, the rows that `numbers`, (n,) int64 from 0 to rows - 1, stand for."""
        rows = numbers.astype(np.uint64)
        for start in range(0, len(rows), self._CHUNK):
            part = self._permuted(rows[start : start + self._CHUNK])
            while (outside := np.flatnonzero(part >= self._rows)).size:
                part[outside] = self._permuted(part[outside])
            rows[start : start + self._CHUNK] = part
        return rows.view(np.int64)

    def _permuted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        halves = [numbers >> self._shift, numbers & self._masks[1]]
        for turn, key in enumerate(self._keys):
            changed, other = turn % 2, 1 - turn % 2
            halves[changed] ^= _hash(halves[other], key) & self._masks[changed]
        return (halves[0] << self._shift) | halves[1]


def _hash(numbers: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """24 bits from each number: two multiplications by odd constants (those of SplitMix64), high bits folded down."""
    mixed = (numbers + key) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(40)
