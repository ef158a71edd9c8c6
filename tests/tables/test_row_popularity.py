import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidTablesError
from shard_gym.tables import BIN_UPPER_EDGES, NUM_BINS, RowPopularity, RowSteps, Tables, Workload
from shard_gym.tables.row_popularity import (
    EXACT_ROWS,
    _bin_shares,
    assumed_popularity,
    reuse_statistics,
    statistics_of_rates,
)

CASES = [  # rows, lookups, q, s
    (100, 500.0, 0.0, 0.0),
    (300, 20_000.0, 0.0, 1.1),
    (2_000, 9_000.0, 20.0, 1.1),
    (50_000, 30_000.0, 5.0, 1.05),
    (20_000, 200_000.0, 300.0, 2.2),
]


def poisson_sums(rates: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The same expectations by adding Poisson probabilities row by row and count by count."""
    highest = int(rates.max() + 12 * math.sqrt(rates.max()) + 40)
    reuse, access = np.zeros(NUM_BINS), np.zeros(NUM_BINS)
    for count in range(1, highest + 1):
        probability = np.exp(count * np.log(rates) - rates - math.lgamma(count + 1))
        place = int(np.searchsorted(BIN_UPPER_EDGES, count))
        reuse[place] += probability.sum()
        access[place] += count * probability.sum()
    return float(-np.expm1(-rates).sum()), reuse / reuse.sum(), access / access.sum()


@pytest.mark.parametrize(("rows", "lookups", "q", "s"), CASES)
def test_equals_the_sums_over_all_rows(rows: int, lookups: float, q: float, s: float, row_probabilities: Any) -> None:
    stats = reuse_statistics([rows], [lookups], [q], [s])
    distinct, reuse, access = poisson_sums(lookups * row_probabilities(rows, q, s))
    # Where every row is a node, the distinct rows are exact; histograms are interpolated in a table of Poisson shares.
    assert stats.distinct_rows[0] == pytest.approx(distinct, rel=1e-12 if rows <= EXACT_ROWS else 1e-6)
    np.testing.assert_allclose(stats.reuse_histogram[0], reuse, atol=3e-5)
    np.testing.assert_allclose(stats.access_histogram[0], access, atol=3e-5)


def test_large_counts_fall_in_the_right_bins() -> None:
    # 8 rows of 3000 reads each, and 4 rows of 100 000: nowhere near an edge.
    stats = reuse_statistics([8, 4], [24_000.0, 400_000.0], [0.0, 0.0], [0.0, 0.0])
    for table, place in ((0, 12), (1, 16)):
        assert stats.reuse_histogram[table, place] == pytest.approx(1.0, abs=1e-6)
        assert stats.access_histogram[table, place] == pytest.approx(1.0, abs=1e-6)


def test_distinct_rows_pass_neither_rows_nor_lookups() -> None:
    rng = np.random.default_rng(3)
    rows = np.floor(10 ** rng.uniform(0, 9, 200))
    lookups = 10 ** rng.uniform(-2, 8, 200)
    stats = reuse_statistics(rows, lookups, 10 ** rng.uniform(-2, 5, 200), rng.uniform(0, 2.5, 200))
    assert (stats.distinct_rows <= np.minimum(rows, lookups)).all()
    assert (stats.distinct_rows > 0).all()
    np.testing.assert_allclose(stats.reuse_histogram.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(stats.access_histogram.sum(axis=1), 1.0, atol=1e-12)


def test_tables_from_a_law_have_its_statistics() -> None:
    workload = Workload(4096)
    tables = Tables.from_zipf([1000, 50_000], 16, [2.0, 0.5], [0.0, 1.1], workload, names=("a", "b"))
    exact = reuse_statistics([1000, 50_000], [8192, 2048], [0, 0], [0.0, 1.1])
    assert tables.names == ("a", "b")
    assert tables.embedding_dim.tolist() == [16, 16]
    np.testing.assert_allclose(tables.distinct_rows, exact.distinct_rows, rtol=1e-4)
    np.testing.assert_allclose(tables.access_histogram, exact.access_histogram, atol=1e-5)
    uniform = 1000 * -math.expm1(-8192 / 1000)
    assert tables.distinct_rows[0] == pytest.approx(uniform, rel=1e-4)
    assert not Tables.from_zipf([10], 4, 0.0, 1.0, workload).distinct_rows.any(), "no lookups read no row"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pooling_factor": "many"}, "pooling_factor must be numbers"),
        ({"exponent": -0.5}, "exponent must be one number from 0"),
        ({"exponent": [1.0]}, "There are 2 tables, but row popularities of 1"),
        ({"pooling_factor": [1.0]}, r"pooling_factor must have shape \(2,\)"),
        ({"num_embeddings": 100}, "num_embeddings must be a list of rows, not 100"),
        ({"exponent": [1.0, [2.0]]}, "exponent must be numbers in rows of one length"),
        ({"exponent": 1j}, "exponent must be numbers, not"),
        ({"exponent": [10**400, 1]}, "exponent must be numbers, not"),
    ],
)
def test_tables_that_cannot_be_are_refused_by_the_name_of_the_argument(changes: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"num_embeddings": [10, 20], "embedding_dim": 4, "pooling_factor": 1.0, "exponent": 1.0}
    with pytest.raises(InvalidTablesError, match=says):
        Tables.from_zipf(**{**arguments, **changes}, workload=Workload(64))
    with pytest.raises(TypeError, match=r"from_zipf\(\) got an unexpected keyword argument 'speed'"):
        Tables.from_zipf(**arguments, workload=Workload(64), speed=1)


@pytest.mark.parametrize("q", [[np.nan], [-0.1], [np.inf], [[1.0]], [[1.0], [1.0, 2.0]], ["a"]])
def test_an_impossible_popularity_is_refused(q: Any) -> None:
    with pytest.raises(InvalidTablesError, match="q must be"):
        RowPopularity(q, [1.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidTablesError, match=r"Table 1 has the row popularity q = 1e\+06 and s = 110, with which"):
        RowPopularity(np.array([1e6, 1e6]), np.array([1.0, 110.0]))


# Recorded lookups


@pytest.mark.parametrize(("rows", "lookups", "q", "s"), [(200_000, 40_000, 50.0, 1.1), (50_000, 30_000, 0.0, 0.8)])
def test_reads_of_recorded_batches_give_the_popularity_that_they_are_drawn_from(
    rows: int, lookups: int, q: float, s: float
) -> None:
    """Of the lookups, each number of most popular rows gets about the share that it truly gets: of 16 batches."""
    law = (np.arange(1, rows + 1) + q) ** -s
    law /= law.sum()
    reads = np.random.default_rng(0).poisson(law * lookups * 16)
    found = RowSteps.of_reads([reads[reads > 0]], [rows])
    assert found.rows.sum() == pytest.approx(rows)
    above = np.append(0.0, np.cumsum(found.rows[0])), np.append(0.0, np.cumsum(found.shares[0]))
    ranks = np.geomspace(10, rows, 30)
    true = np.interp(ranks, np.arange(rows + 1), np.append(0.0, np.cumsum(law)))
    assert np.interp(ranks, *above) == pytest.approx(true, abs=0.03)


def test_where_every_row_is_read_often_the_popularity_is_that_of_the_reads() -> None:
    reads = np.array([640, 320, 320, 20, 100])
    found = RowSteps.of_reads([reads], [5])
    each = np.repeat(found.shares[0] / np.maximum(found.rows[0], 1e-9), found.rows[0].astype(int))
    assert each == pytest.approx(np.sort(reads)[::-1] / reads.sum())


def test_of_a_table_without_reads_all_rows_are_equal_and_tables_have_their_own_steps() -> None:
    found = RowSteps.of_reads([np.empty(0, np.int64), np.array([7, 1])], [9, 4])
    assert (found.rows[0, 0], found.shares[0, 0]) == (9, 1)
    assert found.rows[0, 1:].sum() == found.shares[0, 1:].sum() == 0
    assert found.rows[1].sum() == pytest.approx(4)
    assert found.select(np.array([1])).rows.tolist() == [found.rows[1].tolist()]


# Popularity for rows in host memory


def test_the_steps_of_a_law_are_its_shares_of_single_rows(row_probabilities: Any) -> None:
    share, rows = RowPopularity(np.array([20.0, 0.0]), np.array([1.1, 0.0])).steps(np.array([400.0, 90.0]))
    for table, (size, q, s) in enumerate([(400, 20.0, 1.1), (90, 0.0, 0.0)]):
        assert share[table, rows[table] > 0] == pytest.approx(row_probabilities(size, q, s))
    assert (rows.sum(axis=1) == [400, 90]).all()


def test_a_block_of_a_law_has_every_nth_row(row_probabilities: Any) -> None:
    whole, law = row_probabilities(4_000, 100.0, 1.2), RowPopularity(np.array([100.0]), np.array([1.2]))
    share, rows = law.of_blocks(4).steps(np.array([1_000.0]))
    assert np.repeat(share[0, :512], 1) == pytest.approx(4 * whole[3::4][:512], rel=0.02)
    assert (share * rows).sum() == pytest.approx(1.0)
    assert np.array_equal(law.select(np.array([0, 0])).q, [100.0, 100.0])


def test_steps_say_what_each_row_gets() -> None:
    steps = RowSteps(np.array([[1, 4, 5], [0, 0, 10]]), np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    share, rows = steps.steps(np.array([10.0, 10.0]))
    assert share[0] == pytest.approx([0.5, 0.125, 0.0])
    assert share[1, 2] == pytest.approx(0.1)
    assert (np.diff(share, axis=1) <= 0).all()  # falling, also where the first steps have no rows
    assert (share * rows).sum(axis=1) == pytest.approx([1.0, 1.0])
    assert rows.sum(axis=1).tolist() == [10.0, 10.0]
    half = steps.of_blocks(2)
    assert half.rows.sum(axis=1).tolist() == [5.0, 5.0]
    assert half.steps(np.array([5.0, 5.0]))[0] == pytest.approx(2 * share)
    assert len(half.select(np.array([1, 1, 0]))) == 3


@pytest.mark.parametrize(
    ("rows", "shares", "says"),
    [
        ([[5, 5]], [[0.5, 0.6]], "table 0 are none: shares must sum to 1"),
        ([[5, 5]], [[0.4, 0.6]], "table 0 are none.*no more lookups than one of the step before"),
        ([[5, 5], [5, 0]], [[0.6, 0.4], [0.6, 0.4]], "table 1 are none.*0 where a step has no rows"),
        ([[5, 5]], [[1.0]], r"rows of shape \(1, 2\) but shares of \(1, 1\)"),
        ([5, 5], [0.5, 0.5], "rows of steps of popularity must be .*J for each table"),
        ([[5, -5]], [[0.5, 0.5]], "rows of steps of popularity must be numbers of at least 0"),
        ([[5, 5]], [[np.nan, 0.5]], "shares of steps of popularity must be numbers of at least 0"),
        ([["a", 5]], [[0.5, 0.5]], "rows of steps of popularity must be numbers"),
        ([[5, 5], [5]], [[0.5, 0.5]], "rows of steps of popularity must be numbers"),
    ],
)
def test_impossible_steps_are_refused(rows: Any, shares: Any, says: str) -> None:
    with pytest.raises(InvalidTablesError, match=says):
        RowSteps(rows, shares)


def test_tables_are_refused_with_a_popularity_of_others() -> None:
    tables = Tables.from_zipf([10, 20], 4, 1.0, 1.0, Workload(64))
    for popularity, says in (
        (RowPopularity.zipf([1.0]), "There are 2 tables, but row popularities of 1"),
        ("zipf", "popularity must be a RowPopularity or RowSteps.*not 'zipf'"),
        (RowSteps([[10], [19]], [[1.0], [1.0]]), "Table 1 .*has 20 rows, but its popularity has 19"),
        (RowSteps([[11], [20]], [[1.0], [1.0]]), "Table 0 .*has 10 rows, but its popularity has 11"),
    ):
        with pytest.raises(InvalidTablesError, match=says):
            replace(tables, popularity=popularity)
    known = replace(tables, popularity=RowSteps([[3, 7], [20, 0]], [[0.9, 0.1], [1.0, 0.0]]))
    assert known.select([1]).row_popularity.rows.tolist() == [[20.0, 0.0]]
    assert replace(known, num_embeddings=[10, 20]).popularity is known.popularity


def test_an_assumed_law_has_the_distinct_rows_of_a_batch_and_those_read_once() -> None:
    rng = np.random.default_rng(2)
    rows = np.floor(10 ** rng.uniform(2, 7, 30))
    lookups, q, s = rows * 10 ** rng.uniform(-2, 1, 30), rng.choice([0.0, 30.0], 30), rng.uniform(0, 1.8, 30)
    exact = reuse_statistics(rows, lookups, q, s)
    once = exact.distinct_rows * exact.reuse_histogram[:, 0]
    law = assumed_popularity(rows, lookups, exact.distinct_rows, once)
    found = reuse_statistics(rows, lookups, law.q, law.s)
    errors = found.distinct_rows / exact.distinct_rows - 1.0
    assert np.abs(errors).mean() < 0.015
    assert np.abs(errors).max() < 0.1  # of laws so steep that few rows get all lookups
    of_once = (found.distinct_rows * found.reuse_histogram[:, 0] - once) / exact.distinct_rows
    assert np.abs(of_once).max() < 0.1


def test_what_no_law_has_is_taken_as_uniform_and_no_lookups_as_well() -> None:
    given = np.array([1000]), np.array([100.0]), np.array([100.0]), np.array([100.0])  # each lookup reads another row
    assert assumed_popularity(*given).s == pytest.approx(0.0, abs=1e-3)
    nothing = assumed_popularity(np.array([1000]), *np.zeros((3, 1)))
    assert (nothing.q.tolist(), nothing.s.tolist()) == ([0.0], [0.0])


def test_tables_with_a_law_know_it_and_others_assume_one() -> None:
    tables = Tables.from_zipf([50_000, 3_000], 16, [20.0, 3.0], [1.1, 0.4], Workload(4096))
    assert tables.row_popularity is tables.popularity
    assumed = replace(tables, popularity=None).row_popularity
    assert isinstance(assumed, RowPopularity)
    exact = reuse_statistics(tables.num_embeddings, tables.lookups_per_batch, assumed.q, assumed.s)
    assert exact.distinct_rows == pytest.approx(tables.distinct_rows, rel=0.02)


def test_the_statistics_of_steps_are_those_of_the_rows_one_by_one() -> None:
    rows, lookups = np.array([40.0, 7.0, 1000.0]), np.array([90.0, 0.0, 30.0])
    shares = np.array([[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]])
    found = RowSteps(np.array([[10.0, 30.0], [7.0, 0.0], [1.0, 999.0]]), shares).statistics(rows, lookups)
    each = np.repeat([0.75 / 10, 0.25 / 30], [10, 30])
    distinct, reuse, access = poisson_sums(90.0 * each)
    assert found.distinct_rows[0] == pytest.approx(distinct, rel=1e-6)
    assert found.reuse_histogram[0] == pytest.approx(reuse, abs=1e-5)
    assert found.access_histogram[0] == pytest.approx(access, abs=1e-5)
    assert (found.distinct_rows[1], found.reuse_histogram[1].sum()) == (0.0, 0.0)
    assert found.distinct_rows[2] == pytest.approx(poisson_sums(np.append(15.0, np.full(999, 15 / 999)))[0], rel=1e-6)


def test_steps_without_rows_change_no_bit_and_tables_do_not_depend_on_those_beside_them() -> None:
    rng = np.random.default_rng(4)
    rate, rows = 10 ** rng.uniform(-9, 6, (4, 60)), 10 ** rng.uniform(0, 6, (4, 60))
    rows[:, 20:40] = 0.0
    together = statistics_of_rates(rate, rows)
    reuse, access = _bin_shares(rate)  # of all steps
    for weights, shares, found in (
        (-np.expm1(-rate) * rows, reuse, together.reuse_histogram),
        (rate * rows, access, together.access_histogram),
    ):
        every = np.einsum("tn,tnb->tb", weights, shares)
        assert (every / np.maximum(every.sum(axis=1, keepdims=True), 1e-300)).tolist() == found.tolist()
    for table in range(4):
        alone = statistics_of_rates(rate[table : table + 1], rows[table : table + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            assert one[0].tolist() == all_of_them[table].tolist()
    lone = [reuse_statistics(1000, lookups, 2.0, 1.1) for lookups in (10.0, 1e4)]  # of one law, which is kept
    both = reuse_statistics([1000, 1000], [10.0, 1e4], [2.0, 2.0], [1.1, 1.1])
    for field, of_both in enumerate(both):
        assert np.concatenate([each[field] for each in lone]).tolist() == of_both.tolist()


@pytest.mark.parametrize(
    "popularity", [RowPopularity(np.zeros(2), np.ones(2)), RowSteps(np.ones((2, 1)), np.ones((2, 1)))]
)
def test_tables_that_are_not_there_cannot_be_selected(popularity: Any) -> None:
    with pytest.raises(InvalidTablesError, match="There is no table 9; the tables are 0 to 1"):
        popularity.select([1, 9])
