import math
from typing import Any

import numpy as np
import pytest

from shard_gym.errors import InvalidTablesError
from shard_gym.lookup_statistics import BIN_UPPER_EDGES, NUM_BINS
from shard_gym.row_popularity import EXACT_ROWS, RowPopularity, reuse_statistics
from shard_gym.tables import Tables
from shard_gym.workload import Workload

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


def test_a_table_without_lookups_has_zeros() -> None:
    stats = reuse_statistics([1000, 1000], [0.0, 10.0], [1.0, 1.0], [1.1, 1.1])
    assert stats.distinct_rows[0] == 0
    assert not stats.reuse_histogram[0].any()
    assert not stats.access_histogram[0].any()
    assert stats.access_histogram[1].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("lookups", [1e-3, 0.5, 3.0])
def test_few_lookups_read_that_many_rows_once(lookups: float) -> None:
    stats = reuse_statistics([10_000_000], [lookups], [1000.0], [0.5])
    assert stats.distinct_rows[0] == pytest.approx(lookups, rel=1e-3)
    assert stats.distinct_rows[0] <= lookups
    assert stats.reuse_histogram[0, 0] == pytest.approx(1.0, abs=1e-3)


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
    ("arguments", "says"),
    [
        (([10], 6, 1.0, 1.0), "embedding_dim 6, which is not a multiple of 4"),
        (([10, 0], 4, 1.0, 1.0), "num_embeddings of table 1"),
        (([10], 4, -1.0, 1.0), "pooling_factor of table 0"),
        (([10], 4, "many", 1.0), "pooling_factor must be numbers"),
        (([10], 4, 1.0, -0.5), "exponent must be one number from 0"),
        (([10, 20], 4, 1.0, [1.0]), "There are 2 tables, but row popularities of 1"),
        (([10, 20], 4, [1.0], 1.0), r"pooling_factor must have shape \(2,\)"),
    ],
)
def test_tables_that_cannot_be_are_refused(arguments: Any, says: str) -> None:
    with pytest.raises(InvalidTablesError, match=says):
        Tables.from_zipf(*arguments, Workload(64))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_embeddings": 100}, "num_embeddings must be a list of rows, not 100"),
        ({"num_embeddings": [[10], [10, 20]]}, "num_embeddings must be numbers in rows of one length"),
        ({"exponent": [1.0, [2.0]]}, "exponent must be numbers in rows of one length"),
        ({"exponent": 1j}, "exponent must be numbers, not"),
        ({"exponent": [10**400, 1]}, "exponent must be numbers, not"),
        ({"pooling_factor": 2j}, "pooling_factor must be numbers, not"),
    ],
)
def test_messages_name_the_argument_of_from_zipf(changes: dict[str, Any], says: str) -> None:
    arguments = {"num_embeddings": [10, 20], "embedding_dim": 4, "pooling_factor": 1.0, "exponent": 1.0}
    with pytest.raises(InvalidTablesError, match=says):
        Tables.from_zipf(**{**arguments, **changes}, workload=Workload(64))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"from_zipf\(\) got an unexpected keyword argument 'speed'"):
        Tables.from_zipf(**arguments, workload=Workload(64), speed=1)  # type: ignore[arg-type, call-arg]


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidTablesError, match="The row popularity's q must be numbers in rows of one length"):
        RowPopularity([[1.0], [1.0, 2.0]], [1.0])  # type: ignore[arg-type]
