"""The arrays of `Tables`: what they may hold, and how arguments become them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.checks import as_array, is_iterable, require_name
from shard_gym.errors import InvalidTablesError, short_repr
from shard_gym.table_features import MAX_DIM, MAX_ROWS

LIMITS: Mapping[str, tuple[type[Any], float, float]] = {
    "num_embeddings": (np.int64, 1, MAX_ROWS),
    "embedding_dim": (np.int64, 4, MAX_DIM),
    "num_features": (np.int64, 1, 4096),
    "pooling_factor": (np.float64, 0, 1e6),
    "distinct_rows": (np.float64, 0, MAX_ROWS),
    "reuse_histogram": (np.float64, 0, 1),
    "access_histogram": (np.float64, 0, 1),
}
"""Dtype, smallest and largest value of each array of `Tables`."""

MAX_SEQUENCE = 2**14
"""The longest mean sequence of a sample; so the bytes of outputs stay below 2**63."""


def as_table_array(name: str, value: Any, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """`value` as an array of any shape, one number as one of `shape`; lists of different lengths are refused."""
    array = as_array(name, value, InvalidTablesError)
    return array if array.ndim else np.full(shape, array)


def pooled_of(given: Any, count: int) -> NDArray[np.bool_]:
    """`given` as (T,) bool; one truth value is that of all tables, and none is True."""
    array = as_table_array("pooled", given, (count,))
    if array.size == 0:
        array = np.ones(count, np.bool_)
    if array.shape != (count,) or array.dtype != np.bool_:
        raise InvalidTablesError(f"pooled must be a truth value for each of {count} tables, not {short_repr(given)}.")
    array = array.copy()
    array.setflags(write=False)
    return array


def names_of(given: Any, count: int) -> tuple[str, ...]:
    """`given` as T names; without any, "table_0", "table_1", ..."""
    names = tuple(given) if is_iterable(given) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidTablesError(f"names must be a list of {count} texts, one for each table, not {short_repr(given)}.")
    for name in names:
        require_name("A name of a table", name, InvalidTablesError)
    if names and len(names) != count:
        raise InvalidTablesError(f"There are {count} tables but {len(names)} names.")
    return names or tuple(f"table_{i}" for i in range(count))
