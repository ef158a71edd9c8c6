"""Parquet files: written as bytes, and read if they have the expected columns and no more values than memory holds.

Needs pyarrow (extra `torch`). Who reads a file compares its SHA-256 first: what pyarrow does with damaged bytes is not
only an error. A few kilobytes of Parquet can stand for any number of values, because repeated values
and repeated texts are stored once; so the counts in the file's metadata are checked before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import DamagedFileError, missing_extra

MAX_VALUES = 2**23
"""The most values of a column; 64 MiB of numbers."""

MAX_ROWS = 2**20

MAX_TEXT = 1_000
"""The most bytes of one text."""

_MAX_ITEMS = 100_000
"""The most items of a list in the metadata of a file."""


def require_arrow() -> Any:
    """The module pyarrow.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "torch", "Reading and writing measured costs") from error
    return pyarrow


def write_table(columns: Mapping[str, Any], schema: Any) -> bytes:
    """A Parquet file with these columns, which are of the kinds that the pyarrow `schema` says."""
    arrow = require_arrow()
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.table(dict(columns), schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_table(content: bytes, schema: Any, name: str, max_rows: int = MAX_ROWS) -> Any:
    """The pyarrow table in a Parquet file, which messages call `name`.

    Args:
        content: of the file.
        schema: its columns.
        name: what messages call it.
        max_rows: the most rows.

    Raises:
        DamagedFileError: it is no Parquet file, has other columns than `schema`, or is too large.
    """
    arrow = require_arrow()
    texts = [field.name for field in schema if field.type == arrow.string()]
    try:
        source = arrow.BufferReader(content)
        file = arrow.parquet.ParquetFile(source, thrift_container_size_limit=_MAX_ITEMS)
        if not file.schema_arrow.equals(schema):
            raise DamagedFileError(f"{name} has other columns than {', '.join(schema.names)}.")
        _check_counts(file.metadata, name, max_rows)
        # In this thread alone: an exception in one of Arrow's ends the process.
        table = arrow.parquet.ParquetFile(source, read_dictionary=texts, pre_buffer=False).read(use_threads=False)
        for text in texts:
            table = _with_checked_texts(arrow, table, text, name)
        table.validate(full=True)
        # Beyond its own errors, pyarrow lets those of C++ through as OSError, and of wrong UTF-8 as ValueError.
    except (OSError, ValueError, OverflowError, MemoryError, arrow.ArrowException) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{name} is damaged, or no Parquet file: {error}.") from error
    return table


def _check_counts(about: Any, name: str, max_rows: int) -> None:
    """Refuse a file by what its metadata say of its size."""
    groups = map(about.row_group, range(about.num_row_groups))
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    values: dict[str, int] = {}
    for chunk in chunks:
        values[chunk.path_in_schema] = values.get(chunk.path_in_schema, 0) + chunk.num_values
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    most = max(values.values(), default=0)
    if about.num_rows > max_rows or most > MAX_VALUES or size > 8 * MAX_VALUES * max(1, len(values)):
        raise DamagedFileError(
            f"{name} is too large: {about.num_rows:,} rows and up to {most:,} values of a column; the limits are "
            f"{max_rows:,} and {MAX_VALUES:,}."
        )


def _with_checked_texts(arrow: Any, table: Any, column: str, name: str) -> Any:
    """`table` with the texts of a column, none too long: each is stored once, however often it occurs."""
    import pyarrow.compute

    for chunk in table[column].chunks:
        longest = pyarrow.compute.max(pyarrow.compute.binary_length(chunk.dictionary)).as_py() or 0
        if longest > MAX_TEXT:
            raise DamagedFileError(f"{name} has a text of {longest:,} bytes in {column}; the limit is {MAX_TEXT:,}.")
    field = arrow.field(column, arrow.string(), nullable=False)
    return table.set_column(table.column_names.index(column), field, table[column].cast(arrow.string()))


def values_of(column: Any) -> NDArray[Any]:
    """A column of numbers, or all numbers of a column of lists, as a new array."""
    flat = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    flat = flat.flatten() if hasattr(flat, "flatten") else flat
    return np.array(flat.to_numpy(zero_copy_only=False))


def lists_of(column: Any) -> list[NDArray[Any]]:
    """A column of lists of numbers, as one new array for each row."""
    combined = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    sizes = np.diff(np.asarray(combined.offsets))
    return np.split(values_of(combined), np.cumsum(sizes)[:-1]) if len(sizes) else []
