import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTablesError
from shard_gym.cost_models.measured.streams import HistogramStream
from shard_gym.tables import BIN_UPPER_EDGES, NUM_BINS, ReuseStatistics, load_pool, rounded_statistics
from shard_gym.tables.lookup_statistics import part_of_batch
from shard_gym.tables.row_popularity import reuse_statistics


def one_table(rows_of_bin: dict[int, float], reads_of_row: dict[int, float]) -> tuple[np.ndarray, ReuseStatistics]:
    """Lookups and statistics of a table that reads some rows of each bin, each row equally often."""
    rows, reads = np.zeros((2, 1, NUM_BINS))
    for where, count in rows_of_bin.items():
        rows[0, where], reads[0, where] = count, count * reads_of_row[where]
    total = reads.sum(axis=1)
    return total, ReuseStatistics(rows.sum(axis=1), rows / rows.sum(), reads / total)


def binomial(trials: int, share: float) -> np.ndarray:
    """The probability of each number of successes, from 0 to `trials`."""
    counts = np.arange(trials + 1)
    factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])  # its logarithm
    ways = factorial[-1] - factorial - factorial[::-1]
    return np.asarray(np.exp(ways + counts * np.log(share) + counts[::-1] * np.log1p(-share)))


@pytest.mark.parametrize("reads", [1, 2, 7, 100, 100_000])
@pytest.mark.parametrize("share", [1 / 1024, 0.3])
def test_rows_that_are_all_read_equally_often_follow_the_binomial_distribution(reads: int, share: float) -> None:
    where = int(np.searchsorted(BIN_UPPER_EDGES, reads))
    lookups, whole = one_table({where: 50.0}, {where: reads})
    part = part_of_batch(lookups, whole, share)
    counts = np.arange(1, reads + 1)
    probability = binomial(reads, share)[1:]
    bins = np.searchsorted(BIN_UPPER_EDGES, counts)
    reuse = np.bincount(bins, probability, NUM_BINS)
    access = np.bincount(bins, probability * counts, NUM_BINS)
    assert part.distinct_rows[0] == pytest.approx(50 * probability.sum(), rel=1e-4)
    np.testing.assert_allclose(part.reuse_histogram[0], reuse / reuse.sum(), atol=2e-3)
    np.testing.assert_allclose(part.access_histogram[0], access / access.sum(), atol=2e-3)


@given(
    rows=st.lists(st.floats(0, 1e6), min_size=NUM_BINS, max_size=NUM_BINS).filter(lambda rows: sum(rows) > 1),
    share=st.floats(1e-4, 1),
)
def test_a_part_has_at_most_the_rows_and_its_share_of_the_lookups(rows: list[float], share: float) -> None:
    counts = {where: min(1.4 * 2.0 ** (where - 1), 60_000) if where else 1 for where in range(NUM_BINS)}
    lookups, whole = one_table(dict(enumerate(rows)), counts)
    part = part_of_batch(lookups, whole, share)
    assert part.distinct_rows[0] <= min(whole.distinct_rows[0], share * lookups[0]) * (1 + 1e-6)
    assert part.reuse_histogram.sum() == pytest.approx(1)
    assert part.access_histogram.sum() == pytest.approx(1)
    # The halves of a half are those of a quarter, up to the spread inside the bins.
    half = part_of_batch(lookups * share, part, 0.5)
    assert half.distinct_rows[0] == pytest.approx(part_of_batch(lookups, whole, share / 2).distinct_rows[0], rel=0.05)


@pytest.mark.parametrize("batch_size", [256, 32_768])
def test_tables_of_a_pool_get_the_statistics_of_its_law(batch_size: int) -> None:
    pool = load_pool("dlrm-2021")
    assert pool.popularity is not None
    tables = pool.tables.at_batch_size(batch_size)
    lookups = pool.tables.pooling_factor * batch_size
    exact = reuse_statistics(tables.num_embeddings, lookups, pool.popularity.q, pool.popularity.s)
    read = lookups > 0
    np.testing.assert_allclose(tables.distinct_rows[read], exact.distinct_rows[read], rtol=0.011)
    off = np.abs(tables.reuse_histogram - exact.reuse_histogram).sum(axis=1) / 2
    assert np.median(off) < 0.01
    assert off.max() < 0.07  # where many rows are read equally often, near the edge of a bin
    assert tables.workload.batch_size == batch_size
    np.testing.assert_array_equal(tables.num_embeddings, pool.tables.num_embeddings)


@pytest.mark.parametrize(("steps", "drift"), [([8_192, 512], 0.01), ([32_768, 16_384, 8_192, 4_096, 2_048], 0.02)])
def test_smaller_batches_step_by_step_drift_little(steps: list[int], drift: float) -> None:
    direct = load_pool("dlrm-2021").tables.at_batch_size(steps[-1])
    restated = load_pool("dlrm-2021").tables
    for batch_size in steps:
        restated = restated.at_batch_size(batch_size)
    assert restated.workload == direct.workload
    read = direct.distinct_rows > 0
    np.testing.assert_allclose(restated.distinct_rows[read], direct.distinct_rows[read], rtol=drift)
    for name in ("reuse_histogram", "access_histogram"):
        off = np.abs(getattr(restated, name) - getattr(direct, name)).sum(axis=1) / 2
        assert np.median(off) < drift
        assert off.max() < 10 * drift  # of a few tables, whose rows are read about as often as the edge of a bin


@pytest.mark.parametrize("table", [0, 300])
def test_drawn_batches_have_these_statistics(table: int) -> None:
    tables = load_pool("dlrm-2021").tables
    stream, share = HistogramStream(tables, table, seed=0), 1 / 32
    small = tables.at_batch_size(2_048)
    reuse, access, distinct = np.zeros(NUM_BINS), np.zeros(NUM_BINS), []
    for batch in range(32):
        counts = np.unique(stream.lookups(batch * 2_048, 2_048).indices, return_counts=True)[1]
        bins = np.searchsorted(BIN_UPPER_EDGES, counts)
        reuse += np.bincount(bins, minlength=NUM_BINS)
        access += np.bincount(bins, counts, NUM_BINS)
        distinct.append(len(counts))
    assert access.sum() / 32 == pytest.approx(tables.lookups_per_batch[table] * share, abs=1)
    assert np.mean(distinct) == pytest.approx(small.distinct_rows[table], rel=0.01)
    np.testing.assert_allclose(reuse / reuse.sum(), small.reuse_histogram[table], atol=0.01)
    np.testing.assert_allclose(access / access.sum(), small.access_histogram[table], atol=0.02)


def test_statistics_of_tables_together_are_those_of_each_alone() -> None:
    """To the bit, also where bins of several tables have the same numbers of reads."""
    tables = load_pool("dlrm-2021").tables.select([5, 3, 5, 100, 0, 3])
    for batch_size in (1000, 2**14):
        together = tables.at_batch_size(batch_size)
        for table in range(len(tables)):
            alone = tables.select([table]).at_batch_size(batch_size)
            for name in ("distinct_rows", "reuse_histogram", "access_histogram"):
                assert getattr(together, name)[table].tobytes() == getattr(alone, name)[0].tobytes()


def test_the_same_batch_size_changes_nothing_and_a_larger_one_is_refused() -> None:
    tables = load_pool("dlrm-2021").tables
    size = tables.workload.batch_size
    assert tables.at_batch_size(size) is tables
    with pytest.raises(InvalidTablesError, match="does not follow from them"):
        tables.at_batch_size(2 * size)
    with pytest.raises(InvalidTablesError, match="batch_size must be an integer"):
        tables.at_batch_size(0)


def test_a_table_without_lookups_stays_without() -> None:
    part = part_of_batch(np.zeros(1), ReuseStatistics(np.zeros(1), *np.zeros((2, 1, NUM_BINS))), 0.5)
    assert not np.concatenate([statistic.ravel() for statistic in part]).any()


def test_rounding_never_passes_rows_or_lookups() -> None:
    rows, lookups = np.array([123_456_789.0, 10.0, 5.0]), np.array([1e12, 9.87654321, 1e9])
    exact = ReuseStatistics(np.minimum(rows, lookups), *np.full((2, 3, NUM_BINS), 1 / NUM_BINS))
    stored = rounded_statistics(exact, rows, lookups)
    assert (stored.distinct_rows <= np.minimum(rows, lookups)).all()
    np.testing.assert_allclose(stored.distinct_rows, exact.distinct_rows, rtol=1e-6)
