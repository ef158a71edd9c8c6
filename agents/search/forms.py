"""`TableForms`: what each table of a task can become, and what a part of each form takes, for rules that choose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.own_times import OwnTimes
from shard_gym.agents.search.splits import SplitOptions
from shard_gym.common.arrays import IntArray
from shard_gym.cost_models.analytical.model import lane_share


class TableForms:
    """The F forms of the T tables of a task: first those in column shards, one for each of the L levels of parts, then
    those on many devices.

    Args:
        options: what is possible, with the loads of `model`.
        model: the estimate.

    Attributes:
        count: L.
        ways: of each form on many devices the numbers of its spreads; several where it may be on any one of the hosts.
        legal: (T, F) bool, whether the table has the form, and its constraints leave a device to each table that it
            stays apart from.
        loads: (T, F, K) float64, of a part.
        width: (T, F) int64, columns of a part.
        memory: (T, F) int64, bytes of a part.
        parts: (T, F) float64; narrower parts count as less than one.
        bytes: (T, F) float64, of all parts.
        part_ms: (T, F) float64, ms that a part adds to a device beside parts as wide.
        most_devices: (T,) int64, how many devices may have anything of each table.
    """

    def __init__(self, options: SplitOptions, model: OwnTimes) -> None:
        levels, count, task = options.levels, len(options.levels), options.task
        self.options, self.count = options, count
        ways: dict[int, list[int]] = {}
        for number, way in enumerate(options.spreads):
            ways.setdefault(way.variant, []).append(number)
        self.ways = list(ways.values())
        variant = np.array([*range(count), *ways])
        may = [options.may_spread[:, numbers].any(axis=1) for numbers in self.ways]
        legal = np.concatenate([levels.is_form, np.array(may, np.bool_).reshape(-1, len(levels.legal)).T], axis=1)
        dims = np.repeat(task.tables.embedding_dim[:, None], len(ways), axis=1)
        self.loads = options.loads[:, variant]
        self.width = np.concatenate([levels.width, dims], axis=1)
        self.memory = options.memory[:, variant]
        narrower = levels.width[:, levels.narrower] / levels.width
        members = [np.full(len(dims), len(options.spreads[numbers[0]].devices)) for numbers in self.ways]
        parts = levels.counts[..., 0] + levels.counts[..., 1] * narrower
        self.parts = np.concatenate([parts, np.array(members).reshape(-1, len(dims)).T], axis=1)
        self.bytes = self.memory * self.parts
        self.part_ms = model.part_ms(self.loads, lane_share(self.width))
        self.most_devices = self._most_devices()
        few = legal.copy()
        few[:, count:] &= self.parts[:, count:] <= self.most_devices[:, None]
        self.legal = where_any(few, legal)

    def _most_devices(self) -> IntArray:
        """So that one is left for each table it stays apart from."""
        task = self.options.task
        most = np.full(task.num_tables, task.num_devices)
        for tables in task.constraints.apart if task.constraints is not None else ():
            most[[*tables]] = np.minimum(most[[*tables]], max(1, task.num_devices - len(tables) + 1))
        return most


def where_any(some: NDArray[np.bool_], otherwise: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(T, F) `some`; in rows that have none, `otherwise`."""
    return np.where(some.any(axis=1, keepdims=True), some, otherwise)
