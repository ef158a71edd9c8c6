"""A cache keeps times, and says in a sentence why a file cannot be one."""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnwritablePathError
from shard_gym.cost_models.measured import DamagedCacheWarning, MeasurementCache
from shard_gym.cost_models.measured import cache as module

MANY = 2_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with times under "0", "1", ..."""
    path = tmp_path / "cache.sqlite"
    cache = MeasurementCache(path)
    connection = cache._connect()
    connection.execute("BEGIN")
    for number in range(MANY):
        cache.put(str(number), [number + 0.5] * 20)
    connection.execute("COMMIT")
    connection.close()
    return path


def test_what_was_put_is_got_by_other_objects_and_copies(path: Path) -> None:
    first, second = MeasurementCache(path), MeasurementCache(path)
    first.put("a", [1.5, 2.0])
    assert second.get("a") == pickle.loads(pickle.dumps(second)).get("a") == [1.5, 2.0]
    first.put("a", [3.0])
    assert second.get("a") == [3.0]
    assert second.get("b") is None
    assert MeasurementCache().get("a") is None


def not_a_database(path: Path) -> None:
    path.write_text("no database, but longer than the header of one is: " * 10)


def another_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE measurements (name TEXT, seconds REAL, place TEXT)")


def damaged_page(path: Path) -> None:
    """All pages but the first, which has the header and the description of the table."""
    content = path.read_bytes()
    assert len(content) > 3 * 4096
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 2 * 4096])


def other_columns(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE times")
        connection.execute("CREATE TABLE times (name TEXT, seconds REAL)")


@pytest.mark.parametrize("other", [not_a_database, another_database, other_columns])
def test_a_file_that_is_no_cache_is_refused_and_stays(path: Path, other: Callable[[Path], None]) -> None:
    other(path)
    content = path.read_bytes()
    with pytest.raises(DamagedFileError, match=r"cache\.sqlite is no measurement cache.*another file\."):
        MeasurementCache(path).get("7")
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("damage", [damaged_page, cut])
def test_a_damaged_cache_is_begun_anew_and_kept(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    content = path.read_bytes()
    with pytest.warns(DamagedCacheWarning, match=r"cache\.sqlite is damaged .* kept as .*cache\.sqlite\.damaged"):
        assert MeasurementCache(path).get("7") is None
    cache = MeasurementCache(path)
    assert path.with_name("cache.sqlite.damaged").read_bytes() == content
    cache.put("7", [1.0])
    assert MeasurementCache(path).get("7") == [1.0]


@pytest.mark.parametrize(
    "ms",
    [
        *("[NaN]", "[1e999]", "[-1.0]", "[]", "3", '["x"]', "[1.0", "[" * 9_000, f"[{'9' * 400}]"),
    ],
)
def test_rows_that_are_no_times_are_measured_again(path: Path, ms: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE times SET ms = ?, sha256 = ? WHERE key = '7'", (ms, module._digest("7", ms)))
    with pytest.warns(DamagedCacheWarning, match=r"cache\.sqlite holds damaged times"):
        assert MeasurementCache(path).get("7") is None
    assert MeasurementCache(path).get("8") == [8.5] * 20


def test_a_changed_time_and_one_of_another_key_are_measured_again(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE times SET ms = replace(ms, '7.5', '7.4') WHERE key = '7'")
        nine = "SELECT ms, sha256 FROM times WHERE key = '9'"
        connection.execute(f"UPDATE times SET (ms, sha256) = ({nine}) WHERE key = '8'")
        connection.execute("UPDATE times SET ms = CAST(x'ff' AS TEXT) WHERE key = '6'")
    for key in "678":
        with pytest.warns(DamagedCacheWarning):
            assert MeasurementCache(path).get(key) is None
    assert MeasurementCache(path).get("5", 20) == [5.5] * 20
    with pytest.warns(DamagedCacheWarning):
        assert MeasurementCache(path).get("5", 19) is None  # another length


@pytest.mark.parametrize("on_disk", [True, False])
def test_threads_share_a_cache(path: Path, on_disk: bool) -> None:
    cache = MeasurementCache(path if on_disk else None)
    cache.put("new", [1.0])

    def use(number: int) -> list[float] | None:
        cache.put(f"thread {number}", [float(number)])
        return cache.get("new")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(40))) == [[1.0]] * 40
    assert cache.get("thread 39") == [39.0]


@pytest.mark.parametrize("key", [None, "\ud800", "two\nlines"])
def test_a_key_that_cannot_be_written_is_refused(key: Any) -> None:
    cache = MeasurementCache()
    cache.put("kept", [1.0])
    with pytest.raises(InvalidOptionError, match="key must be a text of printable characters, not"):
        cache.put(key, [1.0])
    with pytest.raises(InvalidOptionError, match="key must be a text of printable characters, not"):
        cache.get(key)
    assert cache.get("kept") == [1.0]


def test_a_path_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "cache.sqlite", tmp_path):
        with pytest.raises(UnwritablePathError, match=r"unable to open .* Name a file in a folder"):
            MeasurementCache(path)


def test_a_locked_file_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    cache = MeasurementCache(path)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        for use in (lambda: cache.get("7"), lambda: cache.put("7", [1.0]), lambda: MeasurementCache(path)):
            with pytest.raises(UnwritablePathError, match=r"is locked\. Another program holds it"):
                use()
        other.execute("ROLLBACK")
    assert cache.get("7") == [7.5] * 20


@pytest.mark.parametrize(
    ("pragma", "says"),
    [("max_page_count = 1", r"is full\. Free space"), ("query_only = ON", "Make the file and its folder writable")],
)
def test_a_disk_that_refuses_is_named_and_keeps_what_was_there(path: Path, pragma: str, says: str) -> None:
    """With these settings SQLite takes no further page, as on a full disk; or none at all, as without the right to
    write the file, which root does not notice."""
    cache = MeasurementCache(path)
    cache._connect().execute(f"PRAGMA {pragma}")
    with pytest.raises(UnwritablePathError, match=says):
        cache.put("new", [0.0] * 100_000)
    assert cache.get("7") == [7.5] * 20
