from typing import Any

import numpy as np
import pytest

from shard_gym.lookup_statistics import ReuseStatistics, rounded_statistics
from shard_gym.pools import dlrm, load_pool, pool
from shard_gym.row_popularity import reuse_statistics

POOLS = ("dlrm-2021", "dlrm-2022")


@pytest.mark.parametrize("name", POOLS)
def test_the_tables_add_up_to_the_published_totals(name: str) -> None:
    """From the stored rows, pooling factors and popularities, not from the stored statistics."""
    goal, loaded = dlrm.published_totals(name), load_pool(name)
    lookups, popularity = loaded.tables.lookups_per_batch, loaded.popularity
    assert popularity is not None
    stats = reuse_statistics(loaded.tables.num_embeddings, lookups, popularity.q, popularity.s)
    distinct, unique_hist, access_hist = dlrm.totals_of(stats, lookups)
    assert len(lookups) == goal.num_tables
    assert lookups.sum() == goal.lookups
    assert distinct == pytest.approx(goal.distinct_rows, rel=0.003)
    np.testing.assert_allclose(unique_hist, goal.unique_hist, atol=0.009)
    np.testing.assert_allclose(access_hist, goal.access_hist, atol=0.009)


@pytest.mark.parametrize("name", POOLS)
def test_the_generator_writes_the_shipped_file(name: str) -> None:
    shipped = (pool.DATA / f"{name}.json").read_bytes()
    assert pool.to_bytes(dlrm.make_pool(name)) == shipped
    assert len(shipped) < 400_000


@pytest.mark.parametrize("name", POOLS)
def test_single_tables_are_plausible(name: str, row_probabilities: Any) -> None:
    tables, popularity = load_pool(name).tables, load_pool(name).popularity
    assert popularity is not None
    assert tables.num_embeddings.min() >= 100
    assert 10_000_000 < tables.num_embeddings.max() <= 50_000_000
    assert 1e6 < tables.num_embeddings.mean() < 6e6
    assert tables.pooling_factor.min() < 1 < 100 < tables.pooling_factor.max() <= 300.001
    assert (tables.num_features == 1).all()
    # Heavy tails: a tenth of the tables has most of the rows and about half of the lookups.
    for values, share in ((tables.num_embeddings, 0.6), (tables.pooling_factor, 0.4)):
        top = np.sort(values)[-len(tables) // 10 :]
        assert top.sum() > share * values.sum()
    # No row takes a large part of its table's lookups. The first row's share is at most that among the first 10 000.
    head = [
        row_probabilities(min(int(rows), 10_000), q, s)[0]
        for rows, q, s in zip(tables.num_embeddings, popularity.q, popularity.s, strict=True)
    ]
    assert max(head) < 0.3


def test_rounding_never_passes_rows_or_lookups() -> None:
    rows = np.array([123_456_789.0, 10.0, 5.0])
    lookups = np.array([1e12, 9.87654321, 1e9])
    exact = ReuseStatistics(np.minimum(rows, lookups), *np.full((2, 3, 17), 1 / 17))
    stored = rounded_statistics(exact, rows, lookups)
    assert (stored.distinct_rows <= np.minimum(rows, lookups)).all()
    np.testing.assert_allclose(stored.distinct_rows, exact.distinct_rows, rtol=1e-6)
