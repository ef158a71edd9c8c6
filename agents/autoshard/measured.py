"""The last measured devices: which tables each had, and its time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import InvalidCheckpointError
from shard_gym.io.arrays import Arrays, require_arrays

CAPACITY = 5_000


class MeasuredDevices:
    """Up to `CAPACITY` sets of tables on a device, by number, and its ms of forward and backward compute."""

    def __init__(self) -> None:
        self._sets: list[NDArray[np.int64]] = []
        self._costs_ms: list[float] = []

    def __len__(self) -> int:
        return len(self._sets)

    def add(self, tables: NDArray[np.int64], cost_ms: float) -> None:
        """Remember a device, and forget the oldest if there are too many."""
        self._sets.append(tables)
        self._costs_ms.append(cost_ms)
        del self._sets[:-CAPACITY], self._costs_ms[:-CAPACITY]

    def batch(
        self, size: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Drawn devices: the tables of all, one device after another; (B,) where each begins; (B,) ms."""
        drawn = rng.integers(len(self), size=size).tolist()
        sets = [self._sets[each] for each in drawn]
        starts = np.cumsum([0, *(len(tables) for tables in sets[:-1])])
        return np.concatenate(sets), starts, np.array([self._costs_ms[each] for each in drawn], np.float32)

    def to_arrays(self) -> Arrays:
        """All that is remembered."""
        return {
            "tables": np.concatenate([np.empty(0, np.int64), *self._sets]),
            "counts": np.array([len(tables) for tables in self._sets], np.int64),
            "costs_ms": np.array(self._costs_ms, np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, num_tables: int) -> MeasuredDevices:
        """What `to_arrays` returned, of `num_tables` tables; raises InvalidCheckpointError for other arrays."""
        try:
            tables, counts, costs_ms = (arrays[name] for name in ("tables", "counts", "costs_ms"))
        except KeyError as error:
            raise InvalidCheckpointError(f"The measured devices lack the array {error}.") from error
        expected = {
            "tables": np.zeros(tables.size, np.int64),
            "counts": np.zeros(costs_ms.size, np.int64),
            "costs_ms": np.zeros(costs_ms.size, np.float64),
        }
        require_arrays("The record of measured devices", arrays, expected)
        fit = len(counts) <= CAPACITY and (counts > 0).all() and counts.sum() == len(tables)
        if not fit or (len(tables) and not 0 <= tables.min() <= tables.max() < num_tables):
            raise InvalidCheckpointError("The record of measured devices is not of these tables.")
        made = cls()
        if len(counts):
            made._sets, made._costs_ms = np.split(tables, np.cumsum(counts)[:-1]), costs_ms.tolist()
        return made
