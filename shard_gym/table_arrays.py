"""The arrays of `Tables`: what they may hold, and how arguments become them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.checks import as_array, as_floats, is_iterable, is_number, require_name
from shard_gym.errors import InvalidTablesError, short_repr
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.table_features import MAX_DIM, MAX_ROWS
from shard_gym.text import counted

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

COLUMNS = 4
"""What divides an embedding dim: FBGEMM (v1.8.0, `construct_split_state`) and TorchRec 1.8 (`batched_embedding_kernel`,
`_assert_local_cols_divisible_by_4`) assert it of tables that are trained in the backward, on GPUs and CPUs."""

MAX_SEQUENCE = 2**14
"""The longest mean sequence of a sample; so the bytes of outputs stay below 2**63."""


def as_table_array(name: str, value: Any, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """`value` as an array of any shape, one number as one of `shape`; lists of different lengths are refused."""
    array = as_array(name, value, InvalidTablesError)
    return array if array.ndim else np.full(shape, array)


def dim_refused(names: Sequence[str], table: int, dim: Any) -> str:
    """Why an embedding dim is refused: out of range, or to be padded, by whom and to what."""
    which = f"table {table} ({names[table]})"
    if not is_number(dim) or dim != int(dim) or not 0 < dim <= MAX_DIM:
        most = f"{COLUMNS} to {MAX_DIM}"
        return f"embedding_dim of {which} is {short_repr(dim)}; it must be a multiple of {COLUMNS} from {most}."
    padded = -(-int(dim) // COLUMNS) * COLUMNS
    return (
        f"embedding_dim of {which} is {int(dim)}. FBGEMM trains {COLUMNS} columns at a time, and neither it nor "
        f"TorchRec pads. Give it dim {padded} here and in the model; use {counted(int(dim), 'column')} of its output."
    )


def checked_table_array(name: str, given: Any, names: Sequence[str]) -> NDArray[Any]:
    """The array `name` of the tables with these names as a read-only copy of its dtype; `LIMITS` says what it may hold.

    Raises:
        InvalidTablesError: it has a wrong shape, or a value that is impossible.
    """
    dtype, low, high = LIMITS[name]
    shape = (len(names), NUM_BINS) if name.endswith("histogram") else (len(names),)
    values = as_table_array(name, given)
    raw = as_floats(name, values, InvalidTablesError)
    if raw.shape != shape:
        raise InvalidTablesError(f"{name} must have shape {shape}, not {raw.shape}.")
    valid = (raw >= low) & (raw <= high)  # False for NaN too
    if dtype is np.int64:
        valid &= raw == np.floor(raw)
    if name == "embedding_dim":
        valid &= np.where(valid, raw, 0) % COLUMNS == 0
    if not valid.all():
        where = tuple(int(i) for i in np.argwhere(~valid)[0])
        if name == "embedding_dim":
            raise InvalidTablesError(dim_refused(names, where[0], values[where]))
        kind, most = ("an integer", str(high)) if dtype is np.int64 else ("a number", f"{high:g}")
        raise InvalidTablesError(
            f"{name} of table {where[0]} ({names[where[0]]}) is {short_repr(values[where])}; "
            f"it must be {kind} from {low:g} to {most}."
        )
    array = raw.astype(dtype)
    array.setflags(write=False)
    return array


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
