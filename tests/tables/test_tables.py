"""Tables: memory to the byte, features that mean the same everywhere, and a named error for every bad value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTablesError
from shard_gym.tables import FEATURE_NAMES, MAX_DIM, RowPopularity, Tables, Workload
from shard_gym.tables.tables import FEATURE_BOUNDS, FEATURE_MEAN, FEATURE_STD, MAX_ROWS

ARRAYS = {
    **dict.fromkeys(("num_embeddings", "embedding_dim", "num_features"), np.int64),
    **dict.fromkeys(("pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram"), np.float64),
}


def simple(**changes: Any) -> Tables:
    """Three plain tables, with some arguments replaced."""
    bins = np.zeros((3, 17))
    bins[:, 2] = 1.0
    arguments: dict[str, Any] = {
        "num_embeddings": [1000, 2000, 3000],
        "embedding_dim": [16, 32, 64],
        "pooling_factor": [1.0, 2.5, 10.0],
        "distinct_rows": [500.0, 900.0, 3000.0],
        "reuse_histogram": bins,
        "access_histogram": bins.copy(),
        "workload": Workload(1024),
        "names": ("users", "items", "ads"),
    }
    return Tables(**{**arguments, **changes})


# Values


def test_a_sequence_table_returns_a_vector_for_each_lookup_and_one_at_least() -> None:
    tables = simple(pooled=[True, False, False], pooling_factor=[1.0, 2.5, 2e-4], distinct_rows=[500.0, 900.0, 0.2])
    assert tables.outputs_per_batch.tolist() == [1024.0, 2560.0, 1.0]


def test_arrays_are_read_only_copies_with_the_documented_dtypes_and_defaults() -> None:
    rows = np.array([1000, 2000, 3000])
    tables = simple(num_embeddings=rows)
    rows[0] = 1
    assert tables.num_embeddings.tolist() == [1000, 2000, 3000]
    for name, dtype in ARRAYS.items():
        assert getattr(tables, name).dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            getattr(tables, name)[0] = 4
    assert simple(names=()).names == ("table_0", "table_1", "table_2")
    assert simple().num_features.tolist() == [1, 1, 1]
    assert simple().lookups_per_batch.tolist() == [1024.0, 2560.0, 10240.0]


@pytest.mark.parametrize(
    ("weight_dtype", "optimizer", "bytes_of_the_second"),
    [
        ("fp16", "sgd", 2000 * 64),
        ("fp32", "sgd", 2000 * 128),
        ("fp16", "rowwise_adagrad", 2000 * 68),
        ("fp32", "rowwise_adagrad", 2000 * 132),
        ("bf16", "rowwise_adagrad", 2000 * 68),
        ("bf16", "adam", 2000 * (64 + 32 * 8)),
        ("fp32", "adam", 2000 * (128 + 32 * 8)),
    ],
)
def test_memory_is_weights_and_optimizer_state(weight_dtype: str, optimizer: str, bytes_of_the_second: int) -> None:
    tables = simple().with_training(weight_dtype=weight_dtype, optimizer=optimizer)
    assert tables.memory_bytes[1] == bytes_of_the_second
    assert tables.memory_bytes.dtype == np.int64
    assert tables.workload == Workload(1024, weight_dtype, optimizer)
    assert simple(workload=Workload(1024, weight_dtype, optimizer)).memory_bytes[1] == bytes_of_the_second


# Features


def test_features_are_standardised_logarithms_and_the_reuse_bins() -> None:
    tables = simple(num_embeddings=[2**30 - 1, 2000, 3000])
    row = tables.features()[0]
    assert row.dtype == np.float32
    logarithms = [np.log2(17), 30, 1, np.log2(1 + (2**30 - 1) * 32 / 2**30)]
    assert row[:4] == pytest.approx((np.array(logarithms) - FEATURE_MEAN) / FEATURE_STD, rel=1e-5)
    assert row[4:].tolist() == [0.0, 0.0, 1.0] + [0.0] * 14
    assert tables.features().shape == (3, len(FEATURE_NAMES)) == (3, 21)


@given(seed=st.integers(0, 2**32 - 1))
def test_a_table_has_the_same_features_in_every_company(random_tables: Callable[..., Tables], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, 9)
    chosen = rng.choice(9, size=4, replace=False)
    assert np.array_equal(tables.select(chosen).features(), tables.features()[chosen])
    assert np.isfinite(tables.features()).all()


# Other tables from these


def test_selecting_keeps_everything_of_a_table() -> None:
    tables = simple(num_features=[1, 2, 3])
    chosen = tables.select([2, 0, 2])
    assert chosen.names == ("ads", "users", "ads")
    for name in ARRAYS:
        assert np.array_equal(getattr(chosen, name), getattr(tables, name)[[2, 0, 2]])
    assert chosen.workload == tables.workload


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 3], "no table 3; the tables are 0 to 2"),
        ([-1], "no table -1"),
        ([True, False, True], "list of integers"),
        ([[0, 1]], "list of integers"),
        ("a", "list of integers, not 'a'"),
        (np.empty(0, np.int64), "at least one table"),
    ],
)
def test_selecting_what_is_not_there_is_a_named_error(indices: Any, message: str) -> None:
    with pytest.raises(InvalidTablesError, match=message):
        simple().select(indices)


def test_what_is_made_of_tables_is_valid_and_read_only_without_a_check_of_all() -> None:
    tables = simple(pooled=[True, False, True], popularity=RowPopularity.zipf([0.0, 1.0, 1.2]))
    made = tables.select([1, 0, 1]), tables.with_dims([8, 4, 12]), tables.with_training(optimizer="adam")
    for each in made:
        again = replace(each)  # which checks everything
        for name, dtype in {**ARRAYS, "pooled": np.bool_}.items():
            array = getattr(each, name)
            assert array.dtype == dtype
            assert not array.flags.writeable
            assert np.array_equal(array, getattr(again, name))
        assert (each.names, each.workload) == (again.names, again.workload)
        assert isinstance(each.popularity, RowPopularity)
        assert not each.popularity.s.flags.writeable
    assert made[0].popularity.s.tolist() == [1.0, 0.0, 1.0]
    assert made[0].row_popularity is made[0].popularity


def test_tables_made_of_tables_may_not_need_more_memory_than_any() -> None:
    large = simple(num_embeddings=[MAX_ROWS] * 3, embedding_dim=[64] * 3)
    many = large.select([0, 1, 2] * 1000)
    for too_much in (lambda: large.select([0, 1, 2] * 10**5), lambda: many.with_dims(MAX_DIM)):
        with pytest.raises(InvalidTablesError, match="All tables together need"):
            too_much()


def test_other_widths_are_one_for_all_or_one_each() -> None:
    assert simple().with_dims(8).embedding_dim.tolist() == [8, 8, 8]
    assert simple().with_dims([4, 8, 128]).embedding_dim.tolist() == [4, 8, 128]
    assert simple().embedding_dim.tolist() == [16, 32, 64]
    with pytest.raises(InvalidTablesError, match=r"is 6. FBGEMM .*Give it dim 8"):
        simple().with_dims([4, 6, 8])
    for strange in ("16", [[4], [4, 8]]):
        with pytest.raises(InvalidTablesError, match="embedding_dim must be numbers"):
            simple().with_dims(strange)


# Bad values


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_impossible_numbers_are_named_with_their_table(name: str, value: float) -> None:
    values = np.where(np.arange(3) == 1, value, 16.0)
    if name.endswith("histogram"):
        values = np.where(np.arange(17) == 4, values[:, None], 0.0)
    with pytest.raises(InvalidTablesError, match=rf"{name} of table \d \(\w+\) is .*; it must be"):
        simple(**{name: values})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_embeddings": [0, 1, 1]}, r"table 0 \(users\) is 0; it must be an integer from 1 to 1099511627776\."),
        ({"num_embeddings": np.array([2**40 + 1, 1, 1])}, "is 1099511627777; it"),
        (
            {"embedding_dim": [16, 18, 64]},
            r"table 1 \(items\) is 18. FBGEMM trains 4 columns at a time, .*Give it dim 20 .*use 18 columns",
        ),
        (
            {"embedding_dim": [1, 32, 64]},
            r"embedding_dim of table 0 \(users\) is 1. FBGEMM .*Give it dim 4 .*use 1 column of",
        ),
        ({"embedding_dim": [16, 32, 10.0]}, r"is 10. FBGEMM .*Give it dim 12 .*use 10 columns"),
        ({"embedding_dim": [16, 130, 64]}, "is 130. FBGEMM .*Give it dim 132 .*use 130 columns"),
        ({"embedding_dim": [16, 32, 2**16 - 1]}, "Give it dim 65536"),
        ({"embedding_dim": [16, 0, 64]}, r"table 1 \(items\) is 0; it must be a multiple of 4 from 4 to 65536"),
        ({"embedding_dim": [-8, 0, 64]}, "is -8; it must be a multiple of 4 from 4 to 65536"),
        ({"embedding_dim": [16, 10.5, 64]}, "is 10.5; it must be a multiple of 4 from 4 to 65536"),
        ({"embedding_dim": [16, 32, 2**16 + 2]}, "is 65538; it must be a multiple of 4 from 4 to 65536"),
        ({"embedding_dim": [16, 32]}, r"embedding_dim must have shape \(3,\), not \(2,\)"),
        ({"reuse_histogram": np.ones((3, 16)) / 16}, r"reuse_histogram must have shape \(3, 17\), not \(3, 16\)"),
        (
            {"access_histogram": np.ones((3, 17)) / 20},
            r"\(users\) has an invalid access_histogram: it sums to 0\.85",
        ),
        ({"pooling_factor": [0.0, 1.0, 1.0], "distinct_rows": [0.0, 1.0, 1.0]}, "sums to 1.0000 instead of 0"),
        ({"distinct_rows": [1001.0, 1.0, 1.0]}, r"Table 0 \(users\) reads 1001 distinct rows, more than its 1000 rows"),
        ({"pooling_factor": [0.1, 1.0, 1.0]}, r"reads 500 distinct rows.*its 102.4 lookups"),
        ({"names": ("a", "b")}, "3 tables but 2 names"),
        *(
            ({"names": ("a", "b", name)}, "A name of a table is printable text on one line")
            for name in ("", "two\nlines", "\u202egnirts")
        ),
        ({"names": "abc"}, "names must be a list of 3 texts, one for each table, not 'abc'"),
        ({"num_embeddings": []}, "at least one table"),
        ({"num_embeddings": [[1], [1, 2]]}, r"num_embeddings must be numbers in rows of one length, not \[\[1\]"),
        ({"num_embeddings": ["1000", "2000", "3000"]}, r"num_embeddings must be numbers, not \['1000'"),
        (
            {"workload": {"batch_size": 8}},
            r"workload must be a Workload, for example Workload\(.*not {'batch_size': 8}",
        ),
    ],
)
def test_tables_that_make_no_sense_are_named_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTablesError, match=message) as error:
        simple(**changes)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 2**30 + 1}, "batch_size must be an integer from 1 to 1,073,741,824, not 1073741825"),
        ({"batch_size": 1.5}, "not 1.5"),
        ({"batch_size": 8, "weight_dtype": "int4"}, "weight dtype must be one of .*bf16.*fp16.*fp32.*not 'int4'"),
        ({"batch_size": 8, "weight_dtype": np.array(["fp16", "fp32"])}, "weight dtype must be one of .*not array"),
        ({"batch_size": 8, "optimizer": "lars"}, "optimizer must be one of .*adam.*rowwise_adagrad.*sgd.*not 'lars'"),
        ({"batch_size": 8, "optimizer": ["adam", "sgd"]}, "optimizer must be one of .*not \\['adam', 'sgd'"),
    ],
)
def test_a_workload_that_makes_no_sense_is_a_named_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTablesError, match=message):
        Workload(**arguments)


def test_tables_whose_bytes_overflow_are_refused() -> None:
    """64 tables of 2**58 bytes: their sum is 0 modulo 2**64, so any memory cap would hold them."""
    arguments = {"num_embeddings": [2**40] * 64, "embedding_dim": 2**16, "pooling_factor": 1.0, "exponent": 0.0}
    with pytest.raises(InvalidTablesError, match=r"All tables together need 1.84e\+19 bytes; the limit is 4.61e\+18"):
        Tables.from_zipf(**arguments, workload=Workload(64, "fp32"))  # type: ignore[arg-type]


def test_the_bounds_of_features_are_reached_and_never_exceeded() -> None:
    workload = Workload(1, "fp32", "sgd")
    ends = [
        Tables.from_zipf([rows], [dim], [pooling], 0.0, workload)
        for rows, dim, pooling in ((1, 4, 0.0), (MAX_ROWS, 4, 1e6), (2**40 // 2**14, MAX_DIM, 1e6))
    ]
    found = np.concatenate([each.features() for each in ends])
    low, high = FEATURE_BOUNDS
    assert (found >= low).all()
    assert (found <= high).all()
    assert np.array_equal(found[0, :3], low[:3])
    assert np.array_equal(found.max(axis=0)[:3], high[:3])
