from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.checks import (
    MAX_NAME,
    as_floats,
    holds_integers,
    is_integer,
    is_iterable,
    is_name,
    is_not_negative,
    is_number,
    is_positive,
)
from shard_gym.errors import (
    InvalidOptionError,
    InvalidTablesError,
    InvalidTaskError,
    InvalidTopologyError,
    MissingExtraError,
    missing_extra,
)
from shard_gym.hardware import hardware_profile
from shard_gym.pools import load_pool
from shard_gym.sharding import column_wise, plan_of_placement
from shard_gym.tasks import TaskSuite


@pytest.mark.parametrize("value", [1, 0.5, 10**300, np.int64(3), np.float32(0.5), np.uint64(2**63)], ids=repr)
def test_numbers(value: Any) -> None:
    assert is_number(value)
    assert is_positive(value)
    assert is_not_negative(value)
    assert not is_positive(-float(value))
    assert not is_not_negative(-float(value))
    assert is_not_negative(0)
    assert not is_positive(0)


@pytest.mark.parametrize(
    "value",
    [10**400, float("inf"), float("nan"), True, "1", None, 1j, np.bool_(True), [1]],
    ids=repr,
)
def test_what_is_no_number_that_a_float_holds_is_neither_positive_nor_zero(value: Any) -> None:
    assert not is_number(value)
    assert not is_positive(value)
    assert not is_not_negative(value)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", np.timedelta64(1), np.array(1)], ids=repr)
def test_what_is_no_integer(value: Any) -> None:
    assert not is_integer(value)
    assert is_integer(np.uint8(1))


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[s]", "?", "f8", "O", "U1"])
def test_arrays_of_no_integers(dtype: str) -> None:
    assert not holds_integers(np.ones(2, "i8").astype(dtype))
    assert holds_integers(np.ones(2, ">u2"))


@pytest.mark.parametrize(
    "values",
    [np.ones(2, "m8[s]"), np.ones(2, "M8[s]"), np.array(["1", 2], object), np.array([True, 2], object), [10**400]],
    ids=repr,
)
def test_what_is_no_array_of_numbers(values: Any) -> None:
    with pytest.raises(InvalidTablesError, match="rows must be numbers, not"):
        as_floats("rows", values, InvalidTablesError)
    assert as_floats("rows", [10**30], InvalidTablesError).tolist() == [1e30]


def test_texts_and_arrays_of_no_dimension_have_no_items() -> None:
    assert not any(map(is_iterable, ("ab", np.array("ab"), np.array(1), 5, None)))
    assert all(map(is_iterable, ([], (1,), np.arange(2), iter([1]), {1: 2})))
    tables = load_pool("dlrm-2021").tables.select([0, 1])
    nothing: Any = np.array("x")
    for error, call in (
        (InvalidTablesError, lambda: replace(tables, names=nothing)),
        (InvalidTaskError, lambda: TaskSuite("mine", nothing)),
        (InvalidOptionError, lambda: plan_of_placement(nothing, tables)),
        (InvalidOptionError, lambda: column_wise(tables, 0, nothing)),
    ):
        with pytest.raises(error, match=r"must be .*list|must be a device"):
            call()


def test_caps_in_rows_of_different_lengths_are_refused_by_a_profile() -> None:
    with pytest.raises(InvalidTopologyError, match="memory_cap_bytes must be numbers in rows of one length"):
        hardware_profile("cpu").topology(2, memory_cap_bytes=[[1, 2], [3]])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["a", "dlrm-50x4/test/3", "größe", "x" * MAX_NAME])
def test_names(value: str) -> None:
    assert is_name(value)


@pytest.mark.parametrize("value", ["", "  ", "a\nb", "\x1b[2J", "\ud800", "a\u202eb", "x" * (MAX_NAME + 1), 5, None])
def test_what_is_no_name(value: Any) -> None:
    assert not is_name(value)


def test_a_missing_package_names_what_installs_it_from_a_clone_and_into_an_installation() -> None:
    error = missing_extra("torch", "sb3", "Training")
    assert str(error) == (
        "Training needs the package 'torch', which is not installed. In a clone of ShardGym: pip install -e '.[sb3]'. "
        "Where it is installed: pip install 'shard-gym[sb3]'."
    )
    assert isinstance(error, ImportError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (MissingExtraError, str(error))
