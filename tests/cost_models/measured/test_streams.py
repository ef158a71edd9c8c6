"""Streams of lookups: the statistics of their table, the same however they are cut, and FBGEMM's layout."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTablesError
from shard_gym.cost_models.measured.arrays import TorchArrays
from shard_gym.cost_models.measured.streams import HistogramStream, IndexStream, fused_batch, row_counts
from shard_gym.tables import BIN_UPPER_EDGES, NUM_BINS, Tables, Workload, load_pool


@cache
def shipped(pool: str) -> Tables:
    return load_pool(pool).tables


def measured(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of the rows read, and both histograms, by the edges as they are written in the class's docstring."""
    counts = np.unique(indices, return_counts=True)[1]
    inside = (counts[:, None] > np.append(0, BIN_UPPER_EDGES[:-1])) & (counts[:, None] <= BIN_UPPER_EDGES)
    return counts, inside.mean(axis=0), (counts[:, None] * inside).sum(axis=0) / counts.sum()


def check_statistics(tables: Tables, table: int, indices: np.ndarray) -> None:
    """All statistics of one epoch, as near as whole rows and shares of five decimals allow.

    The reuse histogram may be off by two rows, for a bin has a whole number of them, and by the rounding of the shares.
    The access histogram may be off by the reads of one row of the hottest bin, and by the rounding.
    """
    counts, reuse, access = measured(indices)
    lookups = tables.lookups_per_batch[table]
    assert len(indices) == pytest.approx(lookups, abs=0.5)
    assert len(counts) == pytest.approx(tables.distinct_rows[table], abs=0.5)
    np.testing.assert_allclose(reuse, tables.reuse_histogram[table], atol=2 / len(counts) + 2e-5)
    hottest = np.flatnonzero(tables.reuse_histogram[table]).max()
    one_row = min(2.0**hottest, 2.0**15) / lookups
    np.testing.assert_allclose(access, tables.access_histogram[table], atol=one_row + 3e-5)


@pytest.mark.parametrize(
    ("pool", "table"),
    [  # small, large, hot, fewer than one lookup for each sample, several features
        *(("dlrm-2021", table) for table in (17, 72, 608)),
        *(("dlrm-2022", table) for table in (222, 426)),
        *(("merlin-tiny", table) for table in (0, 3)),
    ],
)
def test_an_epoch_has_the_statistics_of_its_table(pool: str, table: int) -> None:
    tables = shipped(pool)
    lookups = HistogramStream(tables, table, 0).lookups(3 * tables.workload.batch_size, tables.workload.batch_size)
    assert lookups.indices.dtype == lookups.lengths.dtype == np.int64
    assert lookups.lengths.shape == (tables.num_features[table], tables.workload.batch_size)
    assert lookups.lengths.sum() == len(lookups.indices)
    assert 0 <= lookups.indices.min() <= lookups.indices.max() < tables.num_embeddings[table]
    check_statistics(tables, table, lookups.indices)


@st.composite
def streams_of(draw: Any) -> tuple[Tables, HistogramStream]:
    """A table of any statistics, agreeing with each other or not, and its stream with any seed."""
    batch_size, features = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    rows, pooling = draw(st.integers(1, 300)), draw(st.one_of(st.just(0.0), st.floats(0.01, 12)))
    most = min(rows, batch_size * pooling)
    shares = np.array(draw(st.lists(st.integers(0, 5), min_size=2 * NUM_BINS, max_size=2 * NUM_BINS)), float)
    reuse, access = shares.reshape(2, NUM_BINS) + np.eye(NUM_BINS)[draw(st.integers(0, NUM_BINS - 1))]
    some = float(pooling > 0)
    tables = Tables(
        num_embeddings=np.array([rows]),
        embedding_dim=np.array([16]),
        pooling_factor=np.array([pooling]),
        distinct_rows=np.array([draw(st.floats(0, 1)) * most]),
        reuse_histogram=some * (reuse / reuse.sum())[None],
        access_histogram=some * (access / access.sum())[None],
        workload=Workload(batch_size),
        num_features=np.array([features]),
    )
    return tables, HistogramStream(tables, 0, draw(st.integers(-5, 2**70)))


@given(streams_of(), st.integers(0, 100), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_any_cut_in_another_order_gives_the_same_sequence(
    case: tuple[Tables, HistogramStream], start: int, counts: list[int]
) -> None:
    tables, stream = case
    whole = stream.lookups(start, sum(counts))
    assert whole.lengths.shape == (tables.num_features[0], sum(counts))
    assert whole.lengths.sum() == len(whole.indices)
    assert ((whole.indices >= 0) & (whole.indices < tables.num_embeddings[0])).all()
    starts = (start + np.cumsum([0, *counts[:-1]])).tolist()
    last_first = [stream.lookups(at, count) for at, count in zip(starts[::-1], counts[::-1], strict=True)]
    parts = last_first[::-1]
    np.testing.assert_array_equal(np.concatenate([part.lengths for part in parts], axis=1), whole.lengths)
    by_feature = [np.split(part.indices, np.cumsum(part.lengths.sum(axis=1))[:-1]) for part in parts]
    indices = np.concatenate([reads for each in zip(*by_feature, strict=True) for reads in each])
    np.testing.assert_array_equal(indices, whole.indices)


@given(streams_of())
def test_any_statistics_are_kept_with_bags_as_equal_as_possible(case: tuple[Tables, HistogramStream]) -> None:
    tables, stream = case
    batch_size, features = tables.workload.batch_size, int(tables.num_features[0])
    reads = round(float(tables.lookups_per_batch[0]))
    indices = stream.lookups(0, batch_size).indices
    assert len(indices) == reads
    wanted = max(round(float(tables.distinct_rows[0])), 1)
    assert len(np.unique(indices)) == min(wanted, reads, int(tables.num_embeddings[0]))
    mean = reads / batch_size / features
    lengths = stream.lookups(0, 2 * batch_size).lengths
    assert lengths.min() >= np.floor(mean)
    assert lengths.max() <= np.ceil(mean)
    totals = lengths[:, :batch_size].sum(axis=1)
    assert totals.max() - totals.min() <= 1
    running = np.cumsum(lengths, axis=1)
    assert (np.abs(running - totals[:, None] / batch_size * np.arange(1, 2 * batch_size + 1)) < 1).all()


@settings(max_examples=50)
@given(streams_of(), st.integers(0, 2**60))
def test_epochs_share_their_hot_rows_and_take_cold_ones_cyclically(
    case: tuple[Tables, HistogramStream], number: int
) -> None:
    tables, stream = case
    batch_size = tables.workload.batch_size
    first, second = (
        np.unique(stream.lookups(k * batch_size, batch_size).indices, return_counts=True) for k in (number, number + 1)
    )
    hot = first[0][first[1] > 1]
    np.testing.assert_array_equal(hot, second[0][second[1] > 1])
    cold = [rows[counts == 1] for rows, counts in (first, second)]
    assert len(cold[0]) == len(cold[1])
    others = int(tables.num_embeddings[0]) - len(hot)
    assert len(np.union1d(*cold)) == min(2 * len(cold[0]), others)


@given(st.integers(1, 2**40), st.integers(1, 3), st.integers(0, 2**62))
def test_tensors_of_any_table_have_the_lookups_of_arrays(rows: int, features: int, seed: int) -> None:
    batch_size = 64
    histogram = np.full((1, NUM_BINS), 1 / NUM_BINS)
    tables = Tables(
        *([rows], [16], [3.0], [min(rows, 100.0)], histogram, histogram, Workload(batch_size)),
        num_features=np.array([features]),
    )
    on_torch = HistogramStream(tables, 0, seed, TorchArrays(pytest.importorskip("torch").device("cpu")))
    for first in (seed % 1000, 3 * batch_size):  # from one epoch to another, and back
        found, expected = on_torch.lookups(first, 100), HistogramStream(tables, 0, seed).lookups(first, 100)
        assert str(found.indices.dtype) == "torch.int64"
        np.testing.assert_array_equal(found.indices.numpy(), expected.indices)
        np.testing.assert_array_equal(found.lengths, expected.lengths)


def test_column_shards_read_the_same_rows_and_other_tables_others() -> None:
    tables = shipped("merlin-tiny")

    def reads(tables: Tables, table: int = 10, seed: int = 0) -> list[int]:
        return HistogramStream(tables, table, seed).lookups(0, 500).indices.tolist()

    assert reads(tables.with_dims(4)) == reads(tables)
    assert reads(tables.with_training(weight_dtype="fp16", optimizer="sgd")) == reads(tables)
    assert reads(tables.select([3, 10]), 1) == reads(tables)
    names = ("other",) * len(tables)
    assert reads(replace(tables, names=names)) != reads(tables)
    assert reads(tables, seed=1) != reads(tables)
    assert reads(replace(tables, distinct_rows=tables.distinct_rows - 1)) != reads(tables)


@pytest.mark.parametrize(
    ("pool", "table", "number", "batch_size", "digest"),
    [  # recorded once, at the first version of the streams
        ("dlrm-2021", 608, 5, 65_536, "a158cf141e50edaf"),
        ("dlrm-2022", 222, 1, 30_000, "823d584a56bee629"),
        ("mlperf-dlrm-dcnv2", 2, 7, 65_536, "1cebea83188148a8"),
    ],
)
def test_large_and_small_tables_keep_their_lookups(
    pool: str, table: int, number: int, batch_size: int, digest: str
) -> None:
    found = HistogramStream(shipped(pool), table, 3).lookups(number * batch_size, batch_size)
    assert hashlib.sha256(found.indices.tobytes() + found.lengths.tobytes()).hexdigest()[:16] == digest


def test_fused_batch_is_laid_out_as_a_plain_loop_would() -> None:
    tables = shipped("merlin-tiny")
    chosen = [4, 0, 3, 0]
    streams: list[IndexStream] = [HistogramStream(tables, table, 1) for table in chosen]
    indices, offsets = fused_batch([stream.lookups(3 * 70, 70) for stream in streams])
    assert indices.dtype == offsets.dtype == np.int64
    wanted: list[int] = []
    ends = [0]
    for stream, table in zip(streams, chosen, strict=True):
        for feature in range(tables.num_features[table]):
            for sample in range(210, 280):
                bag = stream.lookups(sample, 1)
                begin = int(bag.lengths[:feature, 0].sum())
                wanted += bag.indices[begin : begin + int(bag.lengths[feature, 0])].tolist()
                ends.append(len(wanted))
    assert indices.tolist() == wanted
    assert offsets.tolist() == ends
    assert len(offsets) == tables.num_features[chosen].sum() * 70 + 1


ONCE, HOTTEST = np.eye(NUM_BINS)[[0, -1]]


def test_counts_stay_inside_the_edges_that_the_histograms_name() -> None:
    reuse, access = np.zeros(NUM_BINS), np.zeros(NUM_BINS)
    reuse[[0, 2, 5]] = 0.5, 0.3, 0.2
    access[[0, 2, 5]] = 5 / 71, 10 / 71, 56 / 71  # 28 for a row of (16, 32]
    assert row_counts(71, 10, reuse, access).tolist() == [28, 28, 4, 3, 3, 1, 1, 1, 1, 1]
    access[[2, 5]] = 1 / 71, 65 / 71  # less than the three rows of (2, 4] must have, more than the two may have
    assert row_counts(71, 10, reuse, access).tolist() == [29, 28, 3, 3, 3, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("lookups", "distinct", "histogram", "expected"),
    [(10, 10, ONCE, [1] * 10), (12, 10, ONCE, [2] * 2 + [1] * 8), (5, 3, HOTTEST, [2, 2, 1])],
)
def test_rows_move_to_the_next_bin_only_if_they_must(
    lookups: int, distinct: int, histogram: np.ndarray, expected: list[int]
) -> None:
    assert row_counts(lookups, distinct, histogram, histogram).tolist() == expected


def test_too_many_lookups_are_refused(zipf_tables: Any) -> None:
    with pytest.raises(InvalidTablesError, match=r"Table 0 \(table_0\) has 3000000000 lookups.*smaller batch"):
        HistogramStream(zipf_tables([100], pooling=3e5, batch_size=10_000), 0, 0)
