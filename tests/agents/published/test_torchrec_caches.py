"""The miss rates that TorchRec's planner is told, against an LRU cache that is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torchrec")

from shard_gym.agents.published.torchrec_calls import lru_statistics
from shard_gym.tables import RowPopularity, Tables, Workload

ROWS, BATCH = 2000, 256


def simulated(exponent: float, slots: Sequence[int]) -> list[float]:
    """Misses of LRU caches of so many rows, as a share of the distinct rows of a batch; both after a warm-up.

    Of the rows that were read last in one batch, it keeps any.
    """
    rng = np.random.default_rng(0)
    weights = np.arange(1, ROWS + 1) ** -exponent
    last, missed, looked_up = np.full(ROWS, -1), np.zeros(len(slots)), 0
    for batch in range(100):
        rows = np.unique(rng.choice(ROWS, 2 * BATCH, p=weights / weights.sum()))
        if batch >= 40:
            newest = np.lexsort((rng.random(ROWS), -last))
            for number, kept in enumerate(newest[:most] for most in slots):
                missed[number] += len(rows) - int(np.isin(rows, kept[last[kept] >= 0]).sum())
            looked_up += len(rows)
        last[rows] = batch
    return (missed / looked_up).tolist()


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_equals_a_simulated_cache(exponent: float) -> None:
    tables, slots = Tables.from_zipf([ROWS], 4, [2.0], exponent, Workload(BATCH)), (700, 1000, 1500)
    found = [lru_statistics(tables)[0].expected_miss_rate(each / ROWS) for each in slots]
    assert found == pytest.approx(simulated(exponent, slots), abs=0.03)


def test_the_ends_of_the_curve_and_its_area() -> None:
    """Of equal rows a cache misses what it does not hold, so the area is a half."""
    tables = Tables.from_zipf([10_000, 10_000, 10], 4, [0.05, 0.05, 0.0], [0.0, 1.1, 1.0], Workload(1024))
    even, skewed, unread = lru_statistics(tables)
    for each in (even, skewed, unread):
        assert [each.expected_miss_rate(0.0), each.expected_miss_rate(1.0)] == pytest.approx([1.0, 0.0])
        assert (np.diff(each.load_factors) >= 0).all()
        assert (np.diff(each.miss_rates) <= 0).all()
    assert even.cacheability == pytest.approx(0.5, abs=0.01)
    assert skewed.cacheability < 0.4
    assert unread.expected_lookups == 0.0
    np.testing.assert_allclose([even.expected_lookups, skewed.expected_lookups], tables.distinct_rows[:2], rtol=1e-3)


def test_the_popularity_of_the_tables_counts() -> None:
    tables = Tables.from_zipf([10_000], 4, [0.05], 0.0, Workload(1024))
    other = replace(tables, popularity=RowPopularity.zipf([1.1]))
    assert lru_statistics(other)[0].expected_miss_rate(0.1) < 0.5 * lru_statistics(tables)[0].expected_miss_rate(0.1)
