"""The state of N episodes: what the devices hold, what was done, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import IntArray
from shard_gym.envs.core.devices import DeviceState

UNPLACED = -1


class Status(IntEnum):
    """The status of an episode."""

    RUNNING = 0
    COMPLETE = 1
    ILLEGAL_ACTION = 2  # the chosen device does not exist, or the table does not fit it; nothing was placed
    DEAD_END = 3  # the table was placed, and the next one fits no device


# As integers, because looking up a member of an enumeration takes longer than the comparison.
RUNNING, COMPLETE, ILLEGAL_ACTION, DEAD_END = (int(status) for status in Status)


@dataclass
class PlacementState(DeviceState):
    """N placements under way, as arrays; those of the devices are in `DeviceState`."""

    by_device: ClassVar[tuple[str, ...]] = (*DeviceState.by_device, "fits")

    step: IntArray  # (N,) int64, tables placed so far
    assignment: NDArray[np.int32]  # (N, T) int32, device of each table in placement order; UNPLACED if it has none
    fits: NDArray[np.bool_]  # (N, D) bool, the devices where the current table fits; all False unless RUNNING
    status: NDArray[np.int8]  # (N,) int8, a `Status`

    @property
    def over(self) -> NDArray[np.bool_]:
        """(N,) bool, True if the episode has ended; a new array."""
        return self.status.astype(np.bool_)  # RUNNING is 0


@dataclass
class ShardingState(PlacementState):
    """A `PlacementState` whose actions are those of `SplitRules`; U is `max_shards`.

    Its `step` counts completed tables. Its (N, T, U) `assignment` has the action that gave a shard to devices at the
    U-th of the columns where the shard begins, and UNPLACED elsewhere.
    """

    waiting: IntArray
    level: IntArray
