"""Rows in host memory in the linear programs of lower bounds: `HostCuts`.

A device reads from its host for max(0, the largest over the thresholds of a linear function of its loads). So the mean
of a group of devices reads for at least that of the group's mean loads, because a maximum is convex and all devices
have one HBM. A program has a variable for the read time of each group and a row for each group and threshold.

Few thresholds matter, so programs have rows for those alone that a solution violated. A bound holds with any of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.base.linear import HostReads

TOLERANCE = 1e-6  # by which a solution may violate a threshold, as a share of the largest read time


class HostCuts:
    """The thresholds that the programs of one task need, in ascending order of their number; they become more.

    Args:
        host: of V shares of tables.
        even_ms: (G,) ms of the mean device, at least; its threshold is the first.
    """

    def __init__(self, host: HostReads, even_ms: FloatArray) -> None:
        self._host = host
        self._chosen = [int((even_ms - host.hbm_ms).argmax())]

    def rows(self, spread: FloatArray) -> Iterator[tuple[FloatArray, float]]:
        """Ms that are at most the read time of a group and what its HBM takes off, of (V,) shares.

        The mean device of the group has `spread`, (V,), of each share.
        """
        for threshold in self._chosen:
            yield self._host.ms[threshold] * spread, float(self._host.hbm_ms[threshold])

    def add(self, spreads: FloatArray, solution: FloatArray) -> bool:
        """Whether thresholds were added, because a solution violates them.

        Args:
            spreads: (N, V) of each share, how much the mean device of each group has.
            solution: (V + ... + N,) the shares, other numbers, and the read time of each group, ms.
        """
        shares, read_ms = solution[: spreads.shape[1]], solution[-len(spreads) :]
        above = (spreads * shares) @ self._host.ms.T - self._host.hbm_ms  # (N, G)
        violated = above.max(axis=1) > read_ms + TOLERANCE * max(float(above.max()), 0.0)
        new = np.setdiff1d(above.argmax(axis=1)[violated], self._chosen)
        self._chosen += new.tolist()
        return bool(new.size)
