"""Streams of recorded lookups: what the file holds, round and round, and nothing that does not fit."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.measured.recorded import RecordedLookups, open_recorded
from shard_gym.cost_models.measured.streams import fused_batch
from shard_gym.errors import DamagedFileError, InvalidOptionError, InvalidTablesError

torch = pytest.importorskip("torch")

BATCH = 24
ROWS = (50, 10**10, 100, 7)


def recorded() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indices, offsets, lengths) of four tables; the third has no lookups."""
    rng = np.random.default_rng(5)
    lengths = rng.poisson(np.array([3.0, 1.0, 0.0, 0.4])[:, None], (len(ROWS), BATCH))
    indices = np.concatenate(
        [rng.integers(0, rows, count) for rows, count in zip(ROWS, lengths.sum(axis=1), strict=True)]
    )
    return indices, np.concatenate([[0], np.cumsum(lengths)]), lengths


def written(arrays: tuple[np.ndarray, ...], path: Path) -> Path:
    torch.save(tuple(torch.from_numpy(array) for array in arrays), path)
    return path


def bag(arrays: tuple[np.ndarray, ...], table: int, sample: int) -> list[int]:
    indices, offsets, _ = arrays
    place = table * BATCH + sample % BATCH
    return indices[offsets[place] : offsets[place + 1]].tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(recorded(), tmp_path / "lookups.pt")


@pytest.mark.parametrize(("start", "count"), [(0, BATCH), (5, 3), (0, 0), (20, 9), (100, 3 * BATCH + 1)])
def test_streams_give_the_bags_of_the_file_and_start_again_at_its_end(path: Path, start: int, count: int) -> None:
    arrays = recorded()
    with open_recorded(path, num_embeddings=ROWS) as streams:
        assert len(streams) == len(ROWS)
        for table, stream in enumerate(streams):
            lookups = stream.lookups(start, count)
            bags = [bag(arrays, table, sample) for sample in range(start, start + count)]
            assert lookups.indices.dtype == lookups.lengths.dtype == np.int64
            assert lookups.lengths.tolist() == [[len(reads) for reads in bags]]
            assert lookups.indices.tolist() == [row for reads in bags for row in reads]


def test_the_batch_of_the_file_fused_is_the_file(path: Path) -> None:
    indices, offsets, _ = recorded()
    with open_recorded(path) as streams:
        for number in (0, 4):
            fused = fused_batch(streams, number, BATCH)
            np.testing.assert_array_equal(fused[0], indices)
            np.testing.assert_array_equal(fused[1], offsets)


def test_int32_and_packed_files_are_read_and_nothing_is_left(tmp_path: Path) -> None:
    indices, offsets, lengths = recorded()
    narrow = tuple(np.minimum(array, 2**31 - 1).astype(np.int32) for array in (indices, offsets, lengths))
    path = written(narrow, tmp_path / "lookups.pt")
    packed = tmp_path / "lookups.pt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "scratch").mkdir()
    calls: list[tuple[int, int]] = []
    with open_recorded(str(packed), tmp_dir=tmp_path / "scratch", progress=lambda *done: calls.append(done)) as streams:
        assert list((tmp_path / "scratch").iterdir())
        fused = fused_batch(streams, 0, BATCH)
    assert fused[0].dtype == fused[1].dtype == np.int64
    np.testing.assert_array_equal(fused[0], narrow[0])
    assert calls
    assert not list((tmp_path / "scratch").iterdir())


def test_an_index_that_does_not_fit_the_table_is_refused(path: Path) -> None:
    highest = max(row for sample in range(BATCH) for row in bag(recorded(), 0, sample))
    with open_recorded(path, num_embeddings=[highest, 10**10, 1, 7]) as streams:
        with pytest.raises(InvalidTablesError, match=rf"Table 0 of .* reads row {highest}, but .* {highest} rows"):
            streams[0].lookups(0, 1)
        streams[1].lookups(0, 1)
        streams[2].lookups(0, 1)
    with open_recorded(path, num_embeddings=np.array([highest + 1, 10**10, 1, 7])) as streams:
        streams[0].lookups(0, 1)


@pytest.mark.parametrize(("rows", "says"), [([1, 2], "holds 4 tables, but num_embeddings has 2"), ([1.5] * 4, "integ")])
def test_rows_must_be_one_number_for_each_table(path: Path, rows: Any, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says), open_recorded(path, num_embeddings=rows):
        pass


def test_a_file_that_contradicts_itself_is_refused_for_the_table_that_does(tmp_path: Path) -> None:
    indices, offsets, lengths = recorded()
    lengths[0, 0] += 1
    with open_recorded(written((indices, offsets, lengths), tmp_path / "a.pt")) as streams:
        with pytest.raises(DamagedFileError, match=r"Table 0 of .*contradict"):
            streams[0].lookups(0, 1)
        streams[1].lookups(0, 1)
    for wrong in (-1, 2**41):
        indices, offsets, lengths = recorded()
        indices[0] = wrong
        with (
            open_recorded(written((indices, offsets, lengths), tmp_path / "b.pt")) as streams,
            pytest.raises(DamagedFileError, match="they must lie from 0 to"),
        ):
            streams[0].lookups(BATCH - 1, 1)
    with (
        pytest.raises(DamagedFileError, match="cannot be read"),
        open_recorded(tmp_path / "nowhere.pt"),
    ):
        pass


def test_streams_end_with_their_file(path: Path) -> None:
    with open_recorded(path) as streams, pytest.raises(InvalidOptionError, match="start of lookups"):
        streams[0].lookups(-1, 1)
    with pytest.raises(InvalidOptionError, match=r"Table 0 of .* is closed"):
        streams[0].lookups(0, 1)


def test_tables_find_their_lookups_by_name(path: Path, random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 4)
    many = np.full(4, 10**10)
    named = replace(
        tables, num_embeddings=many, num_features=np.ones(4, int), names=("table_3", "a/b/table_0", "x", "table_4")
    )
    lookups = RecordedLookups(path)
    with open_recorded(path) as streams:
        for table, number in ((0, 3), (1, 0)):
            found, wanted = lookups.stream(named, table, 7).lookups(5, 9), streams[number].lookups(5, 9)
            assert found.indices.tolist() == wanted.indices.tolist()
            assert found.lengths.tolist() == wanted.lengths.tolist()
    for table, name in ((2, "'x'"), (3, "'table_4'")):
        with pytest.raises(InvalidTablesError, match=f"Table {name} is none of the 4 tables"):
            lookups.stream(named, table, 7)
    with pytest.raises(InvalidTablesError, match="has 2 features"):
        lookups.stream(replace(named, num_features=np.full(4, 2)), 0, 7)
    with pytest.raises(InvalidTablesError, match="has only 1 rows"):
        lookups.stream(replace(named, num_embeddings=np.ones(4, int), distinct_rows=np.ones(4)), 1, 7).lookups(0, BATCH)
    lookups.close()
