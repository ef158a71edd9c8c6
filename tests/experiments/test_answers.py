from __future__ import annotations

import pytest

from shard_gym.experiments.answers import Spread, student_t


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)]
)
def test_students_t_is_that_of_printed_tables(degrees: int, value: float) -> None:
    assert student_t(degrees) == pytest.approx(value, abs=1e-4)


def test_a_spread_is_the_mean_and_half_its_interval() -> None:
    spread = Spread.of([1.0, 2.0, 3.0])
    assert spread.mean == 2.0
    assert spread.half == pytest.approx(4.30265 / 3**0.5, rel=1e-4)
    assert Spread.of([5.0]) == Spread(5.0, None)
