import numpy as np
import pytest

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
