"""Measurements that may fail: each is tried twice, and many failures in a row are those of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from shard_gym.common.errors import DeviceMemoryError, MeasurementError, MemoryInUseError

MAX_FAILURES = 5  # placements in a row that cannot be measured, after which the cause is not the placements

MEMORY_WAIT_S = 2.0
"""Seconds before the second attempt when other programs use the memory; at once they would still use it."""

Result = TypeVar("Result")


def tried_twice(measure: Callable[[], Result]) -> Result:
    """What `measure` returns; if it raises a MeasurementError, it is called once more.

    Not so if the device has too little memory; if other programs use it, the second attempt is `MEMORY_WAIT_S` later.
    """
    try:
        return measure()
    except MemoryInUseError:
        time.sleep(MEMORY_WAIT_S)
        return measure()
    except DeviceMemoryError:
        raise
    except MeasurementError:
        return measure()


class FailuresInARow:
    """Counts placements in a row that could not be measured; if all that are `planned` fail, it is the machine."""

    def __init__(self, planned: int) -> None:
        self._most = min(MAX_FAILURES, planned)
        self._count = 0

    def end(self) -> None:
        """Begin to count anew, after a measurement."""
        self._count = 0

    def add(self, error: MeasurementError) -> None:
        """Count a failure; raises `error` if it is one too many."""
        self._count += 1
        if self._count >= self._most:
            raise error
