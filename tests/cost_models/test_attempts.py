from __future__ import annotations

import time

import pytest

from shard_gym.cost_models import attempts
from shard_gym.cost_models.attempts import tried_twice
from shard_gym.errors import DeviceMemoryError, MeasurementError, MemoryInUseError, WorkerDiedError


@pytest.mark.parametrize(
    ("error", "calls"), [(MemoryInUseError, 2), (WorkerDiedError, 2), (MeasurementError, 2), (DeviceMemoryError, 1)]
)
def test_what_may_succeed_later_is_tried_twice(
    error: type[MeasurementError], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    outcomes = [error("The first time."), error("The second time.")]
    with pytest.raises(error, match="second" if calls == 2 else "first"):
        tried_twice(lambda: _raise(outcomes.pop(0)))
    assert len(outcomes) == 2 - calls
    assert waits == [attempts.MEMORY_WAIT_S] * (error is MemoryInUseError)


def _raise(error: Exception) -> None:
    raise error


def test_a_second_attempt_that_succeeds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MEMORY_WAIT_S", 0)
    calls = iter([MemoryInUseError("Other programs have it."), None])

    def measure() -> str:
        if (error := next(calls)) is not None:
            raise error
        return "measured"

    assert tried_twice(measure) == "measured"
