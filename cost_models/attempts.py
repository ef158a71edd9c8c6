"""Measurements that may fail: each is tried twice, and many failures in a row are those of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shard_gym.errors import DeviceMemoryError, MeasurementError

MAX_FAILURES = 5
"""Placements in a row that cannot be measured, after which the cause is not the placements."""

Result = TypeVar("Result")


def tried_twice(measure: Callable[[], Result]) -> Result:
    """What `measure` returns; if a measurement fails in it, but not for want of memory, it is called once more.

    Raises:
        MeasurementError: it failed both times, or for want of memory.
    """
    try:
        return measure()
    except DeviceMemoryError:
        raise
    except MeasurementError:
        return measure()


class FailuresInARow:
    """Counts the placements in a row that could not be measured.

    Args:
        planned: placements to measure; if all of them fail, it is the machine, however few they are.
    """

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
