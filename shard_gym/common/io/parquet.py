"""Parquet files: written as bytes, and read if they have the expected columns and no more values than memory holds.

Needs pyarrow (extra `torch`). Who reads a file of strangers compares its SHA-256 first: what pyarrow does with damaged
bytes is not only an error. A few kilobytes of Parquet can stand for any number of values, because repeated values
and repeated texts are stored once; so the counts in the file's metadata are checked before anything is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import DamagedFileError, missing_extra

MAX_VALUES = 2**23  # the most values of a column; 64 MiB of numbers

MAX_ROWS = 2**20

MAX_TEXT = 1_000  # the most bytes of one text
_MAX_ITEMS = 100_000  # the most items of a list in the metadata of a file


def require_arrow() -> Any:
    """The module pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "torch", "Reading and writing Parquet files") from error
    return pyarrow


def write_table(columns: Mapping[str, Any], schema: Any) -> bytes:
    """A Parquet file with these columns, which are of the kinds that the pyarrow `schema` says."""
    arrow = require_arrow()
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.table(dict(columns), schema=schema), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_table(content: bytes, schema: Any, name: str, max_rows: int = MAX_ROWS) -> Any:
    """The pyarrow table in a Parquet file of the `schema`; a DamagedFileError, which names `name`, if it is another
    file.
    """
    arrow = require_arrow()
    texts = [field.name for field in schema if field.type == arrow.string()]
    with _named_errors(arrow, name):
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
    return table


@contextmanager
def _named_errors(arrow: Any, name: str) -> Iterator[None]:
    """Errors of reading become a DamagedFileError, which names `name`."""
    try:
        yield
        # Beyond its own errors, pyarrow lets those of C++ through as OSError, and of wrong UTF-8 as ValueError.
    except (OSError, ValueError, OverflowError, MemoryError, arrow.ArrowException) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{name} is damaged, or no Parquet file: {error}.") from error


Lists = tuple[NDArray[Any], NDArray[Any]]
"""The (N,) values of a column of lists, one after another, and the (rows,) lengths of the lists."""


def integer_lists(
    path: Path, columns: Collection[str] | None, max_values: int
) -> tuple[dict[str, Lists], tuple[str, ...]]:
    """Columns of integers, or of lists of integers, of the file at `path`, and the names of those that are not read.

    An integer is a list of one; where there is no value, the list is empty.

    Args:
        columns: to read; all if not given. Those that the file lacks are left out.
        max_values: of these columns together.

    Raises:
        DamagedFileError: it is no Parquet file, names a column twice, has too many values, or a column has others.
        MissingExtraError: pyarrow is not installed.
    """
    arrow = require_arrow()
    with _named_errors(arrow, str(path)), arrow.OSFile(str(path)) as source:
        file = arrow.parquet.ParquetFile(source, thrift_container_size_limit=_MAX_ITEMS, pre_buffer=False)
        names = file.schema_arrow.names
        asked = [name for name in names if columns is None or name in columns]
        for name in asked:
            if names.count(name) > 1:
                raise DamagedFileError(f"{path} has two columns named {name!r}; give each its own.")
            kind = file.schema_arrow.field(name).type
            item = kind.value_type if _is_list(arrow, kind) else kind
            if not arrow.types.is_integer(item):
                raise DamagedFileError(f"Column {name!r} of {path} has {kind}; ids are integers, or lists of integers.")
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        count = sum(chunk.num_values for chunk in chunks if _column_of(chunk.path_in_schema, names) in asked)
        if count > max_values:
            raise DamagedFileError(
                f"{path} is too large: {count:,} values in the columns that are read; the limit is {max_values:,}. "
                "Write some of its rows to a file of their own."
            )
        read = {name: _lists(arrow, file.read(columns=[name], use_threads=False)[name], path) for name in asked}
    return read, tuple(name for name in names if name not in asked)


def _is_list(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _column_of(path: str, names: Collection[str]) -> str:
    """The column of a path in a schema, such as ids.list.element; names may have dots."""
    while path not in names and "." in path:
        path = path.rpartition(".")[0]
    return path


def _lists(arrow: Any, column: Any, path: Path) -> Lists:
    import pyarrow.compute

    if not _is_list(arrow, column.type):
        lengths = column.is_valid().cast(arrow.int64())
        return values_of(column.drop_null()), values_of(lengths)
    lengths = pyarrow.compute.list_value_length(column).fill_null(0)
    flat = pyarrow.compute.list_flatten(column)
    if flat.null_count:
        raise DamagedFileError(f"A list in {path} has an item without a value; leave it out of the list.")
    return values_of(flat), values_of(lengths)


def _check_counts(about: Any, name: str, max_rows: int) -> None:
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
