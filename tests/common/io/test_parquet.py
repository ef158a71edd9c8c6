"""Parquet of strangers: a few kilobytes can stand for gigabytes, and are refused before they are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.parquet import MAX_VALUES, lists_of, read_table, values_of, write_table

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("ms", pa.list_(pa.float64()), nullable=False),
        pa.field("late", pa.int64(), nullable=False),
    ]
)


def file(names: list[str], ms: list[np.ndarray]) -> bytes:
    return write_table({"name": names, "ms": ms, "late": [1] * len(names)}, SCHEMA)


def test_what_is_written_is_read() -> None:
    ms = [np.array([1.0, 2.0]), np.array([]), np.array([3.0])]
    table = read_table(file(["a", "b", "a"], ms), SCHEMA, "x")
    assert table["name"].to_pylist() == ["a", "b", "a"]
    assert [each.tolist() for each in lists_of(table["ms"])] == [[1.0, 2.0], [], [3.0]]
    assert values_of(table["ms"]).tolist() == [1.0, 2.0, 3.0]
    assert values_of(table["late"]).tolist() == [1, 1, 1]
    empty = read_table(file([], []), SCHEMA, "x")
    assert lists_of(empty["ms"]) == []


def test_few_bytes_that_stand_for_many_values_are_refused() -> None:
    bomb = file(["a"], [np.zeros(MAX_VALUES + 1)])
    assert len(bomb) < 100_000
    with pytest.raises(DamagedFileError, match=r"x is too large: 1 rows and up to 8,388,609 values"):
        read_table(bomb, SCHEMA, "x")
    with pytest.raises(DamagedFileError, match=r"x is too large: 3 rows"):
        read_table(file(["a"] * 3, [np.zeros(1)] * 3), SCHEMA, "x", max_rows=2)


def test_a_long_text_of_many_rows_is_refused_before_it_is_repeated() -> None:
    texts = pa.DictionaryArray.from_arrays(np.zeros(50_000, np.int32), ["x" * 10**6])  # 50 GB as texts
    fields = [pa.field("name", texts.type, nullable=False), *list(SCHEMA)[1:]]
    columns = [texts, pa.array([[0.0]] * 50_000), pa.array([1] * 50_000)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), sink, store_schema=False)
    bomb = sink.getvalue().to_pybytes()
    assert len(bomb) < 1_000_000
    with pytest.raises(DamagedFileError, match=r"x has a text of 1,000,000 bytes in name; the limit is 1,000"):
        read_table(bomb, SCHEMA, "x")


@pytest.mark.parametrize("content", [b"", b"PAR1" + b"\xff" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_refused(content: bytes) -> None:
    with pytest.raises(DamagedFileError, match="x is damaged, or no Parquet file"):
        read_table(content, SCHEMA, "x")
