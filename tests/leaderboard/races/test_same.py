"""What a record may differ in from its raw rounds: the last digits of fractions, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from shard_gym.leaderboard.race_files import _same


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"a": [1.0471, 2]}, True),
        ({"a": [1.0471 * (1 + 2e-16), 2]}, True),
        ({"a": [1.0471 * (1 + 1e-10), 2]}, False),
        ({"a": [1.0471, 2.0]}, False),
        ({"a": [1.0471, True]}, False),
        ({"a": [1.0471]}, False),
        ({"b": [1.0471, 2]}, False),
        ({"a": (1.0471, 2)}, False),
    ],
)
def test_only_last_digits_may_differ(found: Any, same: bool) -> None:
    assert _same(found, {"a": [1.0471, 2]}) is same
