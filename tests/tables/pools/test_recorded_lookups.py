"""Lookups of NPZ and Parquet files are what was written, and damaged and hostile files are refused by name."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidTablesError
from shard_gym.tables import Tables, Workload
from shard_gym.tables.pools import recorded_lookups
from shard_gym.tables.pools.recorded_lookups import RecordedLookups, lookups_of_file, tables_with_lookups

SAMPLES = 10
BAGS = [[3, 3, 1], [], [2], [0, 9], [1], [], [7, 7, 7, 7], [5], [4], [8, 2]]
IDS = [4, 1, 1, 0, 2, 2, 2, 3, 4, 1]
PAIRS = [[row % 6, 5] for row in range(SAMPLES)]


def arrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    return pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def joined(bags: Iterable[list[int]]) -> list[int]:
    return [row for bag in bags for row in bag]


def npz(path: Path) -> Path:
    flat, lengths = np.array(joined(BAGS), np.uint16), np.array([len(bag) for bag in BAGS])
    np.savez_compressed(
        path / "log.npz",
        **{
            "bags.values": flat,
            "bags.lengths": lengths.astype(np.int8),
            "ids": np.array(IDS),
            "pairs": np.array(PAIRS),
        },
        label=np.full(SAMPLES, 0.5),
    )
    return path / "log.npz"


def parquet(path: Path) -> Path:
    pa, parquet_files = arrow()
    columns = {
        "label": pa.array([0.5] * SAMPLES),
        "bags": pa.array([bag or None if row == 1 else bag for row, bag in enumerate(BAGS)], pa.list_(pa.int32())),
        "ids": pa.array(IDS, pa.int64()),
        "pairs": pa.array(PAIRS, pa.list_(pa.int16(), 2)),
    }
    parquet_files.write_table(pa.table(columns), path / "log.parquet", row_group_size=4)
    return path / "log.parquet"


both = pytest.mark.parametrize("write", [npz, parquet])


@both
def test_a_file_has_the_lookups_of_each_sample(write: Callable[[Path], Path], tmp_path: Path) -> None:
    lookups = lookups_of_file(write(tmp_path), ["ids", "bags", "pairs"])
    assert lookups.num_samples == SAMPLES
    assert lookups.left_out == ("label",)
    for feature, wanted in (("bags", BAGS), ("ids", [[row] for row in IDS]), ("pairs", PAIRS)):
        ends = np.cumsum(lookups.lengths[feature])
        assert [part.tolist() for part in np.split(lookups.values[feature], ends[:-1])] == wanted


@both
def test_batches_are_cut_one_after_another(write: Callable[[Path], Path], tmp_path: Path) -> None:
    batches = list(lookups_of_file(write(tmp_path), ["ids", "bags"]).batches(4))
    assert [samples for samples, _ in batches] == [4, 4]  # two samples fill no batch
    assert [read["ids"].tolist() for _, read in batches] == [IDS[:4], IDS[4:8]]
    assert [read["bags"].tolist() for _, read in batches] == [joined(BAGS[:4]), joined(BAGS[4:8])]


def model(batch_size: int = 5) -> Tables:
    return Tables.from_zipf([10, 5, 6], [8, 16, 32], 1.0, 1.0, Workload(batch_size), names=["bags", "ids", "pairs"])


@both
def test_tables_get_the_statistics_of_files(write: Callable[[Path], Path], tmp_path: Path) -> None:
    lookups = lookups_of_file(write(tmp_path), model().names)
    tables = tables_with_lookups(model(), [lookups, lookups], 5)
    for table, bags in enumerate([BAGS, [[row] for row in IDS], PAIRS]):
        counts = [Counter(joined(bags[first : first + 5])) for first in (0, 5)]
        assert tables.pooling_factor[table] == sum(map(len, bags)) / SAMPLES
        assert tables.distinct_rows[table] == sum(map(len, counts)) / 2
        once = sum(list(count.values()).count(1) for count in counts)
        assert tables.reuse_histogram[table, 0] == pytest.approx(once / sum(map(len, counts)))
    assert tables.workload == model().workload
    assert tables.embedding_dim.tolist() == [8, 16, 32]
    assert tables_with_lookups(model(), [lookups], 2).workload.batch_size == 2


@pytest.mark.parametrize(
    ("change", "batch_size", "message"),
    [
        ({}, 11, "log.npz: A batch of 11 samples cannot be taken from 10 recorded ones"),
        ({}, 0, "A batch of 0 samples"),
        ({}, True, "A batch of True samples"),
        ({"num_embeddings": [9, 5, 6]}, 5, r"log\.npz: Table 'bags' has 9 rows, but row 9 is read"),
        ({"names": ("bags", "ids", "other")}, 5, "no feature 'other', which table 'other' reads"),
    ],
)
def test_lookups_that_do_not_fit_the_tables_are_refused(
    change: dict[str, Any], batch_size: int, message: str, tmp_path: Path
) -> None:
    lookups = lookups_of_file(npz(tmp_path), ["bags", "ids", "pairs"])
    with pytest.raises(InvalidTablesError, match=message):
        tables_with_lookups(replace(model(), **change), [lookups], batch_size)
    with pytest.raises(InvalidTablesError, match="There is no batch"):
        tables_with_lookups(model(), [], 5)


def array(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


class Trap:
    """An object that would run code when unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


HUGE = array(np.zeros(0, np.int64)).replace(b"(0,), }" + b" " * 12, b"(1099511627776,), }")
assert b"1099511627776" in HUGE


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"f.npy": array(np.array([Trap()], object))}, "is damaged, or no NPZ file of plain arrays"),
        ({"f.npy": pickle.dumps(Trap())}, "'f(.npy)?' is no array of NumPy|is damaged"),
        ({"f": b"a text"}, "'f' is no array of NumPy"),
        ({"f.npy": array(np.arange(3))[:-5]}, "is damaged"),
        ({"f.npy": HUGE}, "is damaged"),
        ({"f.npy": array(np.array([1.0, 2.0]))}, "The values of feature 'f' have .* float64"),
        ({"f.npy": array(np.array([True]))}, "The values of feature 'f' have .* bool"),
        ({"f.npy": array(np.array(["a"]))}, "The values of feature 'f' have .* <U1"),
        ({"f.npy": array(np.zeros(1, "i4,i4"))}, "The values of feature 'f' have"),
        ({"f.npy": array(np.int64(3))}, r"'f' has shape \(\); it must be"),
        ({"f.npy": array(np.zeros((2, 2, 2), int))}, r"'f' has shape \(2, 2, 2\)"),
        ({"f.npy": array(np.zeros(0, int))}, "There are no samples"),
        ({}, "has no feature 'f'; it has"),
        ({"g.npy": array(np.zeros(3, int))}, r"has no feature 'f'; it has \['g'\]"),
        ({"f.npy": array(np.arange(3)), "f": array(np.arange(3))}, "two arrays of one name"),
        ({"f.values.npy": array(np.arange(3))}, "has 'f.values', but no 'f.lengths'"),
        ({"f.lengths.npy": array(np.arange(3))}, "has 'f.lengths', but no 'f.values'"),
        (
            {
                "f.npy": array(np.arange(3)),
                "f.values.npy": array(np.arange(3)),
                "f.lengths.npy": array(np.ones(3, int)),
            },
            "has 'f' twice",
        ),
        *(
            ({"f.values.npy": array(np.arange(3)), "f.lengths.npy": array(np.array(lengths))}, message)
            for lengths, message in (
                ([1, 1], "do not sum up to its 3 values: they sum up to 2"),
                ([4, -1], "do not sum up to its 3 values: one is 4"),
                ([2**63 - 1, 2**63 - 1, 5], "do not sum up to its 3 values: one is 9,223,372,036,854,775,807"),
                ([-1, 2, 2], "do not sum up to its 3 values: one is -1"),
                ([1.0, 2.0], "The lengths of feature 'f' have .* float64"),
                ([[1, 2]], r"The lengths of feature 'f' have shape \(1, 2\)"),
            )
        ),
        ({"f.npy": array(np.arange(3)), "a.npy": array(np.arange(4))}, "'a' has 4 samples, but 'f' has 3"),
    ],
)
def test_damaged_and_hostile_npz_files_are_refused(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    features = ["f", "a"] if "a.npy" in members else ["f"]
    with pytest.raises(DamagedFileError, match=message) as caught:
        lookups_of_file(path, features)
    assert str(path) in str(caught.value)


def test_files_that_unpack_to_too_much_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_lookups, "MAX_LOOKUPS", 1000)
    np.savez_compressed(tmp_path / "bomb.npz", f=np.zeros(10**6, np.int64))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    np.savez(tmp_path / "empty.npz", f=np.zeros((2**24 + 1, 0), np.int64))
    with pytest.raises(DamagedFileError, match="too large: 16,777,217 samples of 'f'; the limit is 16,777,216"):
        lookups_of_file(tmp_path / "empty.npz")
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(DamagedFileError, match="it unpacks to 8,000,128 bytes; the limit is 8,000"):
        lookups_of_file(tmp_path / "bomb.npz")
    pa, parquet_files = arrow()
    table = pa.table({"f": pa.array(np.zeros(10**6, np.int64)), "label": pa.array(np.zeros(10**6))})
    parquet_files.write_table(table, tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 10_000
    monkeypatch.setattr(parquet_files.ParquetFile, "read", None)
    with pytest.raises(DamagedFileError, match=r"too large: 1,000,000 values in the columns that are read"):
        lookups_of_file(tmp_path / "bomb.parquet", ["f"])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lambda pa: pa.array([1.0, 2.0]), "Column 'f' of .* has double; ids are integers"),
        (lambda pa: pa.array(["a", "b"]), "Column 'f' of .* has string"),
        (lambda pa: pa.array([[1.0]]), "Column 'f' of .* has list<.*double>"),
        (lambda pa: pa.array([[[1]]]), "Column 'f' of .* has list<.*list"),
        (lambda pa: pa.array([{"x": 1}]), "Column 'f' of .* has struct"),
        (lambda pa: pa.array([[1, None], [2]]), "A list in .* has an item without a value"),
        (lambda pa: pa.array([], pa.int64()), "There are no samples"),
        (lambda pa: pa.array([], pa.list_(pa.int64())), "There are no samples"),
    ],
)
def test_other_parquet_files_are_refused(column: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    pa, parquet_files = arrow()
    path = tmp_path / "odd.parquet"
    parquet_files.write_table(pa.table({"f": column(pa)}), path)
    with pytest.raises(DamagedFileError, match=message) as caught:
        lookups_of_file(path, ["f"])
    assert str(path) in str(caught.value)


def test_parquet_files_without_the_feature_or_with_it_twice_are_refused(tmp_path: Path) -> None:
    pa, parquet_files = arrow()
    path = tmp_path / "odd.parquet"
    parquet_files.write_table(pa.Table.from_arrays([pa.array([1])] * 3, ["f", "f", "g"]), path)
    with pytest.raises(DamagedFileError, match="two columns named 'f'"):
        lookups_of_file(path, ["f"])
    with pytest.raises(DamagedFileError, match="has no feature 'h'; it has"):
        lookups_of_file(path, ["h"])
    assert lookups_of_file(path, ["g"]).left_out == ("f", "f")


def test_a_value_that_is_missing_is_no_lookup(tmp_path: Path) -> None:
    pa, parquet_files = arrow()
    columns = {"one": pa.array([1, None, 2]), "many": pa.array([[1, 2], None, []]), "user.id": pa.array([0, 0, 0])}
    parquet_files.write_table(pa.table(columns), tmp_path / "log.pq")
    lookups = lookups_of_file(tmp_path / "log.pq")
    assert [lookups.lengths[name].tolist() for name in columns] == [[1, 0, 1], [2, 0, 0], [1, 1, 1]]
    assert lookups.values["one"].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["log.npz", "log.parquet"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_truncated_and_other_files_are_named(name: str, share: float, tmp_path: Path) -> None:
    path = (npz if name.endswith("npz") else parquet)(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedFileError, match=rf"{name} is damaged, or no"):
        lookups_of_file(path)
    path.unlink()
    with pytest.raises(DamagedFileError, match=f"There is no file .*{name}"):
        lookups_of_file(path)
    with pytest.raises(InvalidOptionError, match=r"from \.npz and \.parquet files, not from .*log\.csv"):
        lookups_of_file(tmp_path / "log.csv")


def test_features_need_equal_numbers_of_samples() -> None:
    ones = np.ones(3, np.int64)
    with pytest.raises(InvalidTablesError, match="Feature 'b' has 2 samples, but 'a' has 3"):
        RecordedLookups({"a": ones, "b": ones}, {"a": ones, "b": np.array([1, 2])})
