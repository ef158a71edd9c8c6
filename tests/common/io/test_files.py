"""Files: written whole or not at all, and refused by name when they are not what they should be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.errors import DamagedFileError, UnknownNameError, UnwritablePathError
from shard_gym.common.io.files import (
    INDEX,
    read_bytes,
    read_index,
    read_json,
    read_shipped,
    require_writable,
    sha256_of,
    write_atomically,
    write_json,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    path.write_text('{"old": 1}')
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {"c": -1e-300}}
    path = tmp_path / "new" / "folder" / "x.json"
    write_json(path, value)
    assert read_json(path) == value
    assert path.read_text().endswith("}\n")
    write_json(path, value, indent=None)
    assert read_json(path) == value
    assert path.read_text().count("\n") == 1
    plain = tmp_path / "plain"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


class Broken(Exception):
    """The fault that is injected."""


@pytest.mark.parametrize(
    ("call", "fault", "raised"),
    [
        *((call, Broken(), None) for call in ("fdopen", "fsync", "chmod")),
        ("replace", KeyboardInterrupt(), None),
        ("fsync", OSError(28, "No space left on device"), r"results\.json cannot be written: No space left on device"),
    ],
)
def test_a_fault_at_any_point_leaves_the_old_file_and_nothing_else(
    file: Path, call: str, fault: BaseException, raised: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise fault

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(UnwritablePathError if raised else type(fault), match=raised):
        write_json(file, {"new": 2})
    assert read_json(file) == {"old": 1}
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_what_json_does_not_know_is_refused_before_the_file_is_touched(file: Path, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_json(file, {"a": value})
    assert read_json(file) == {"old": 1}
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "it is a folder"),
        ("file/x.json", "Not a directory"),
        ("/dev/null", "it is not a regular file"),
        ("/proc/none/x.json", r"/proc/none/x\.json cannot be written: "),
        ("n" * 300, "name too long"),
    ],
)
@pytest.mark.parametrize("check", [require_writable, lambda path: write_atomically(path, b"")])
def test_where_nothing_can_be_written_is_said_and_left_as_it_was(
    tmp_path: Path, check: Any, path: str, reason: str
) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnwritablePathError, match=reason):
        check(tmp_path / path)  # an absolute path stays as it is
    assert os.listdir(tmp_path) == ["file"]
    assert not Path("/dev/null").is_file()


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")  # root is refused nothing, so it is not asked of the disk

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(UnwritablePathError, match=r"x\.json cannot be written: Permission denied"):
        require_writable(tmp_path / "x.json")
    monkeypatch.undo()
    require_writable(tmp_path / "new" / "folder" / "x.json")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("read", [read_bytes, read_json])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, read: Any) -> None:
    with pytest.raises(DamagedFileError, match=r"none\.json cannot be read: No such file"):
        read(tmp_path / "none.json")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "bad.json").write_bytes(b"{")
    with pytest.raises(DamagedFileError, match=r"bad\.json is not readable JSON"):
        read_json(tmp_path / "bad.json")


# Shipped data


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A folder with the file a.json and an index."""
    (tmp_path / "a.json").write_bytes(b"content")
    write_json(tmp_path / INDEX, {"a": sha256_of(b"content")})
    return tmp_path


def test_a_shipped_file_is_checked(shipped: Path) -> None:
    assert read_shipped(shipped, "a", "pool") == b"content"
    (shipped / "a.json").write_bytes(b"contend")
    with pytest.raises(DamagedFileError, match=r"a\.json has SHA-256 .*, but the pool 'a' was published with"):
        read_shipped(shipped, "a", "pool")
    (shipped / "a.json").unlink()
    with pytest.raises(DamagedFileError, match=r"a\.json cannot be read"):
        read_shipped(shipped, "a", "pool")


@pytest.mark.parametrize("name", ["b", "../a", "index", None, ["a"]])
def test_a_name_that_is_not_in_the_index_is_refused(shipped: Path, name: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"There is no suite named .*Known: a\."):
        read_shipped(shipped, name, "suite")


@pytest.mark.parametrize("content", [None, "[]", '{"a": 3}', "{"])
def test_a_damaged_index_is_named(shipped: Path, content: str | None) -> None:
    (shipped / INDEX).unlink()
    if content is not None:
        (shipped / INDEX).write_text(content)
    for read in (read_index, lambda folder: read_shipped(folder, "a", "pool")):
        with pytest.raises(DamagedFileError, match=r"index\.json"):
            read(shipped)
