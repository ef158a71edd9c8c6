"""A cache keeps times, and says in a sentence why a file cannot be one."""

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from shard_gym.cost_models.measured import cache as module
from shard_gym.cost_models.measured.cache import MeasurementCache
from shard_gym.errors import DamagedFileError, UnwritablePathError

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


def other_values(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE measurements SET ms = '{\"ms\": 1}'")


@pytest.mark.parametrize("damage", [not_a_database, another_database, damaged_page, cut, other_values])
def test_a_file_that_is_no_cache_is_refused(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    with pytest.raises(DamagedFileError, match=r"cache\.sqlite is .*damaged.*another file\."):
        MeasurementCache(path).get("7")


def test_a_file_that_is_damaged_while_it_is_used_is_refused(path: Path) -> None:
    cache = MeasurementCache(path)
    damaged_page(path)
    for use in (lambda: cache.get("1234"), lambda: cache.put("new", [1.0])):
        with pytest.raises(DamagedFileError, match="damaged"):
            use()


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


def test_a_full_disk_says_so_and_keeps_what_was_there(path: Path) -> None:
    cache = MeasurementCache(path)
    cache._connect().execute("PRAGMA max_page_count = 1")  # SQLite then takes no further page, as on a full disk
    with pytest.raises(UnwritablePathError, match=r"is full\. Free space"):
        cache.put("new", [0.0] * 100_000)
    assert cache.get("7") == [7.5] * 20


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes to every file")
def test_a_read_only_file_is_read_but_not_written(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        cache = MeasurementCache(path)
        assert cache.get("7") == [7.5] * 20
        with pytest.raises(UnwritablePathError, match="Make the file and its folder writable"):
            cache.put("new", [1.0])
    finally:
        path.parent.chmod(0o755)


def test_a_file_that_refuses_to_be_written_says_so(path: Path) -> None:
    """As a file without the right to write it, which root does not notice."""
    cache = MeasurementCache(path)
    cache._connect().execute("PRAGMA query_only = ON")
    with pytest.raises(UnwritablePathError, match="Make the file and its folder writable"):
        cache.put("new", [1.0])
