"""What lower bounds know of constraints that keep tables to few devices, or together: `crowds_of`, `with_mates`.

A phase takes at least as long as on the mean device of any set, and that one has all of the tables that may be nowhere
else. Tables that stay together are on a device of the lane level of the widest of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import LinearCosts
from shard_gym.plans.constraints import Constraints


class Crowd(NamedTuple):
    """Tables that have some devices alone."""

    tables: NDArray[np.bool_]  # (T,)
    devices: int  # how many


def crowds_of(limits: Constraints | None) -> list[Crowd]:
    """The tables of each set of devices that some table is kept to, and those that are together on one device."""
    if limits is None:
        return []
    of_sets = limits.devices[~limits.devices.all(axis=1)]
    found = [Crowd((limits.devices <= own).all(axis=1), int(own.sum())) for own in np.unique(of_sets, axis=0)]
    numbers = np.arange(len(limits))
    return found + [Crowd(np.isin(numbers, members), 1) for members in limits.together]


def with_mates(costs: LinearCosts, table: NDArray[np.int64], limits: Constraints | None) -> LinearCosts:
    """The costs, where parts of tables that stay together have the highest lane level of them.

    Args:
        costs: of parts.
        table: of each part.
        limits: of the tables; they let tables that stay together be whole alone.
    """
    if limits is None:
        return costs
    levels = costs.levels.copy()
    for members in limits.together:
        of_set = np.isin(table, members)
        levels[of_set] = levels[of_set].max()
    return replace(costs, levels=levels)
