"""Counted lookups are those of `collections.Counter`, and batches that do not fit the tables are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidTablesError
from shard_gym.tables import BIN_UPPER_EDGES, Tables, Workload
from shard_gym.tables.pools.lookup_counter import LookupCounter

ROWS = {"hot": 3, "wide": 10**12, "unread": 7, "two": 500}
FEATURES = [["hot"], ["wide"], ["unread"], ["a", "b"]]
BATCH, BATCHES = 64, 3


def counter() -> LookupCounter:
    return LookupCounter(list(ROWS), list(ROWS.values()), FEATURES)


def batch(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "hot": rng.integers(0, 3, 900).astype(np.int8),
        "wide": np.floor(10**12 * rng.random(BATCH) ** 9).astype(np.int64),
        "unread": np.zeros(0, np.int64),
        "a": rng.zipf(1.3, BATCH).astype(np.uint64) % 500,
        "b": rng.zipf(1.3, 40) % 500,
        "no table reads it": np.array([-1]),
    }


def test_statistics_are_the_means_of_what_each_batch_reads() -> None:
    counted = counter()
    for seed in range(BATCHES):
        counted.add(BATCH, batch(seed))
    found = counted.statistics()
    Tables(list(ROWS.values()), [4] * 4, workload=Workload(BATCH), **found)  # type: ignore[arg-type]  # are possible
    for table, features in enumerate(FEATURES):
        reads = [
            count
            for seed in range(BATCHES)
            for count in Counter(int(row) for name in features for row in batch(seed)[name]).values()
        ]
        reuse, access = np.zeros(17), np.zeros(17)
        for count in reads:
            place = next(k for k, edge in enumerate(BIN_UPPER_EDGES) if count <= edge)
            reuse[place] += 1
            access[place] += count
        assert found["pooling_factor"][table] == sum(reads) / (BATCH * BATCHES)
        assert found["distinct_rows"][table] == len(reads) / BATCHES
        np.testing.assert_allclose(found["reuse_histogram"][table], reuse / max(len(reads), 1))
        np.testing.assert_allclose(found["access_histogram"][table], access / max(sum(reads), 1))


@pytest.mark.parametrize(
    ("samples", "changes", "message"),
    [
        (0, {}, "Batch 1 of the lookups has no samples"),
        (32, {}, "Batch 1 of the lookups has 32 samples, those before it 64; .* leave out a smaller one at the end"),
        (64, {"a": None}, "have no feature 'a', which table 'two' reads"),
        (64, {"b": [0.5]}, "The ids of feature 'b' are float64"),
        (64, {"b": [True]}, "The ids of feature 'b' are bool"),
        (64, {"b": np.array(["x"])}, "The ids of feature 'b' are <U1"),
        (64, {"b": [3, -1]}, "Table 'two' has 500 rows, but row -1 is read"),
        (64, {"b": [500]}, "Table 'two' has 500 rows, but row 500 is read"),
        (64, {"b": np.array([2**64 - 1], np.uint64)}, "but row 18446744073709551615 is read"),
    ],
)
def test_batches_that_do_not_fit_are_refused(samples: int, changes: dict[str, Any], message: str) -> None:
    counted = counter()
    counted.add(BATCH, batch(0))
    before = counted.statistics()
    read = {name: np.asarray(rows) for name, rows in (batch(1) | changes).items() if rows is not None}
    with pytest.raises(InvalidTablesError, match=message):
        counted.add(samples, read)
    np.testing.assert_array_equal(counted.statistics()["distinct_rows"], before["distinct_rows"])


def test_nothing_counted_is_no_statistics() -> None:
    with pytest.raises(InvalidTablesError, match="There is no batch of lookups to count"):
        counter().statistics()
