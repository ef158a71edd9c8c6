from __future__ import annotations

import time

import pytest

from shard_gym.common import attempts
from shard_gym.common.attempts import tried_twice
from shard_gym.common.errors import DeviceMemoryError, MeasurementError, MemoryInUseError, WorkerDiedError


@pytest.mark.parametrize(
    ("error", "calls"), [(MemoryInUseError, 2), (WorkerDiedError, 2), (MeasurementError, 2), (DeviceMemoryError, 1)]
)
def test_what_may_succeed_later_is_tried_twice(
    error: type[MeasurementError], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)

    def attempt() -> str:
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return outcome

    outcomes = [error("The first time."), error("The second time.")]
    with pytest.raises(error, match="second" if calls == 2 else "first"):
        tried_twice(attempt)
    assert len(outcomes) == 2 - calls
    assert waits == [attempts.MEMORY_WAIT_S] * (error is MemoryInUseError)
    if calls == 2:
        outcomes = [error("The first time."), "measured"]
        assert tried_twice(attempt) == "measured"
