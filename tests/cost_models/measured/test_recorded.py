"""Streams of recorded lookups: the bags of the file, cyclically, and nothing that does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidTablesError
from shard_gym.cost_models.measured.streams import LookupFile
from shard_gym.tables import Tables, Workload

torch = pytest.importorskip("torch")

BATCH = 24
ROWS = (50, 10**10, 100, 7)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def recorded() -> Arrays:
    """(indices, offsets, lengths) of four tables; the third has no lookups."""
    rng = np.random.default_rng(5)
    lengths = rng.poisson(np.array([3.0, 1.0, 0.0, 0.4])[:, None], (len(ROWS), BATCH))
    indices = np.concatenate(
        [rng.integers(0, rows, count) for rows, count in zip(ROWS, lengths.sum(axis=1), strict=True)]
    )
    return indices, np.concatenate([[0], np.cumsum(lengths)]), lengths


def write(arrays: Arrays, path: Path) -> Path:
    torch.save(tuple(torch.from_numpy(array) for array in arrays), path)
    return path


def tables(*rows: int, names: tuple[str, ...] = ()) -> Tables:
    """Tables called table_0, table_1, ... with so many rows; the statistics do not matter."""
    return Tables.from_zipf(rows, 4, 1.0, 0.0, Workload(BATCH), names=names)


def bag(arrays: Arrays, table: int, sample: int) -> list[int]:
    indices, offsets, _ = arrays
    place = table * BATCH + sample % BATCH
    return indices[offsets[place] : offsets[place + 1]].tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(recorded(), tmp_path / "lookups.pt")


@pytest.mark.parametrize(("start", "count"), [(0, BATCH), (5, 3), (0, 0), (20, 9), (100, 3 * BATCH + 1)])
def test_streams_give_the_bags_of_the_file_and_start_again_at_its_end(path: Path, start: int, count: int) -> None:
    arrays, lookups = recorded(), LookupFile(path)
    for table in range(len(ROWS)):
        found = lookups.stream(tables(*ROWS), table, seed=0).lookups(start, count)
        bags = [bag(arrays, table, sample) for sample in range(start, start + count)]
        assert found.indices.dtype == found.lengths.dtype == np.int64
        assert found.lengths.tolist() == [[len(reads) for reads in bags]]
        assert found.indices.tolist() == [row for reads in bags for row in reads]


def test_a_file_of_int32_gives_int64(tmp_path: Path) -> None:
    narrow = tuple(np.minimum(array, 2**31 - 1).astype(np.int32) for array in recorded())
    lookups = LookupFile(write(narrow, tmp_path / "lookups.pt"))
    found = lookups.stream(tables(*ROWS), 0, seed=0).lookups(0, BATCH)
    assert found.indices.dtype == found.lengths.dtype == np.int64
    assert found.indices.tolist() == narrow[0][: len(found.indices)].tolist()


def test_tables_find_their_lookups_by_name(path: Path) -> None:
    lookups, arrays = LookupFile(path), recorded()
    named = tables(*[10**10] * 4, names=("table_3", "a/b/table_0", "x", "table_4"))
    for table, number in ((0, 3), (1, 0)):
        assert lookups.stream(named, table, seed=7).lookups(5, 1).indices.tolist() == bag(arrays, number, 5)
    for table, name in ((2, "'x'"), (3, "'table_4'")):
        with pytest.raises(InvalidTablesError, match=f"Table {name} is none of the 4 tables"):
            lookups.stream(named, table, seed=7)
    with pytest.raises(InvalidTablesError, match="has 2 features"):
        lookups.stream(replace(named, num_features=np.full(4, 2)), 0, seed=7)


def test_an_index_that_does_not_fit_the_table_is_refused(path: Path) -> None:
    highest = max(row for sample in range(BATCH) for row in bag(recorded(), 0, sample))
    lookups, small = LookupFile(path), tables(highest, 10**10, 1, 7)
    with pytest.raises(InvalidTablesError, match=rf"Table 0 of .* reads row {highest}, but .* {highest} rows"):
        lookups.stream(small, 0, seed=0).lookups(0, 1)
    for table in (1, 2):
        lookups.stream(small, table, seed=0).lookups(0, 1)
    lookups.stream(tables(highest + 1), 0, seed=0).lookups(0, 1)


def test_a_file_that_contradicts_itself_is_refused_for_the_table_that_does(tmp_path: Path) -> None:
    indices, offsets, lengths = recorded()
    one_more = np.pad([[1]], [(0, len(ROWS) - 1), (0, BATCH - 1)])
    lookups = LookupFile(write((indices, offsets, lengths + one_more), tmp_path / "a.pt"))
    with pytest.raises(DamagedFileError, match=r"Table 0 of .*contradict"):
        lookups.stream(tables(*ROWS), 0, seed=0).lookups(0, 1)
    lookups.stream(tables(*ROWS), 1, seed=0).lookups(0, 1)
    for wrong in (-1, 2**41):
        spoilt = np.append(wrong, indices[1:])
        lookups = LookupFile(write((spoilt, offsets, lengths), tmp_path / "b.pt"))
        with pytest.raises(DamagedFileError, match="they must lie from 0 to"):
            lookups.stream(tables(*ROWS), 0, seed=0).lookups(BATCH - 1, 1)
