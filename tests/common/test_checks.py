from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.checks import (
    MAX_NAME,
    ReadOnlyArrays,
    as_floats,
    holds_integers,
    is_integer,
    is_iterable,
    is_name,
    is_not_negative,
    is_number,
    is_positive,
)
from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidTablesError,
    InvalidTaskError,
    InvalidTopologyError,
    MissingExtraError,
    missing_extra,
)
from shard_gym.hardware import hardware_profile
from shard_gym.plans import column_wise, plan_of_placement
from shard_gym.tables import RowPopularity, RowSteps, Tables, Workload, load_pool
from shard_gym.tasks import Task, TaskSuite


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
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin)) == (MissingExtraError, str(error))


def arrays_within(value: Any) -> list[Any]:
    """The arrays of a task and of what it holds, as far as they were checked when it was made."""
    if isinstance(value, np.ndarray):
        return [value]
    fields = vars(value).values() if isinstance(value, ReadOnlyArrays) else ()
    return [array for each in fields for array in arrays_within(each)]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))], ids=["copy", "deep", "pickle"]
)
@pytest.mark.parametrize("popularity", [RowPopularity.zipf([1.0, 0.5]), RowSteps([[1, 9], [2, 8]], [[0.5] * 2] * 2)])
def test_arrays_that_were_checked_are_read_only_in_copies(
    copied: Callable[[Task], Task], popularity: RowPopularity | RowSteps
) -> None:
    shares = np.eye(17)[[0, 0]]
    tables = Tables([10, 10], [4, 8], [1, 1], [2, 2], shares, shares, Workload(2), popularity=popularity)  # type: ignore[arg-type]
    task = Task("copied", tables, hardware_profile("a100-dgx").topology(2), known_placement=[0, 1])  # type: ignore[arg-type]
    twin = copied(task)
    arrays, twins = arrays_within(task), arrays_within(twin)
    assert len(arrays) == len(twins) == 8 + 2 + 1 + 1  # of the tables, their popularity, the caps, and the placement
    for array, its_twin in zip(arrays, twins, strict=True):
        assert np.array_equal(array, its_twin)
        assert not its_twin.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            its_twin.flat[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        twin.tables.select([1, 0]).embedding_dim[0] = 3


def test_what_is_derived_is_read_only_and_has_the_fields_of_its_class() -> None:
    popularity = RowPopularity.zipf([1.0, 2.0])
    derived = popularity.derived(q=np.array([0.5, 0.5]))
    assert np.array_equal(derived.s, popularity.s)
    with pytest.raises(ValueError, match="read-only"):
        derived.q[0] = 1.0
    with pytest.raises(TypeError, match=r"RowPopularity has no \['nope'\]"):
        popularity.derived(nope=1)
