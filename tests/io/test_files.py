"""Files: written whole or not at all, and refused by name when they are not what they should be."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from shard_gym.errors import DamagedFileError, UnwritablePathError
from shard_gym.io.files import parse_json, read_json, require_writable, sha256_of, write_atomically, write_json


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


class Broken(Exception):
    """The fault that is injected."""


@pytest.mark.parametrize("call", ["write", "fsync", "chmod", "replace"])
def test_a_fault_at_any_point_leaves_the_old_file_and_nothing_else(
    file: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise Broken

    if call == "write":
        honest = os.fdopen

        def opened(*args: Any, **kwargs: Any) -> Any:
            handle = honest(*args, **kwargs)
            handle.write(b'{"ne')  # half of the new content reaches the disk
            handle.flush()
            wrapper = type(
                "Torn", (), {"__enter__": lambda s: s, "__exit__": lambda s, *a: handle.close(), "write": fail}
            )
            return wrapper()

        monkeypatch.setattr(os, "fdopen", opened)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(Broken):
        write_json(file, {"new": 2})
    assert read_json(file) == {"old": 1}
    assert os.listdir(file.parent) == [file.name]


def test_an_interrupt_cleans_up_as_well(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, b"{}")
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_json_does_not_know_is_refused_before_the_file_is_touched(file: Path, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        write_json(file, {"a": value})
    assert read_json(file) == {"old": 1}
    assert os.listdir(file.parent) == [file.name]


def test_a_reader_sees_the_old_content_or_the_new(file: Path) -> None:
    contents = [json.dumps({"n": n, "pad": "x" * 20_000}).encode() for n in range(2)]
    write_atomically(file, contents[0])
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add(file.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(60):
        write_atomically(file, contents[n % 2])
    stop.set()
    reader.join()
    assert seen <= set(contents)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "it is a folder"),
        ("file/x.json", "Not a directory"),
        ("/dev/null", "it is no regular file"),
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


def test_a_full_disk_is_named_and_the_old_file_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnwritablePathError, match=r"results\.json cannot be written: No space left on device"):
        write_json(file, {"new": 2})
    assert read_json(file) == {"old": 1}
    assert os.listdir(file.parent) == [file.name]


def test_what_can_be_written_is_let_through_and_nothing_is_made(file: Path) -> None:
    require_writable(file)
    require_writable(file.parent / "new" / "folder" / "x.json")
    assert os.listdir(file.parent) == [file.name]


def test_the_file_has_the_rights_any_new_file_has(tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("")
    write_atomically(written, b"")
    assert written.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1', "delimiter"),
        (b'{"a": NaN}', "the number NaN is not allowed"),
        (b"[Infinity]", "Infinity is not allowed"),
        (b"[-Infinity]", "-Infinity is not allowed"),
        (b"[1e999]", "1e999 is too large"),
        (b"[-1e999]", "-1e999 is too large"),
        (b'{"a": 1, "b": {"k": 1, "k": 2}}', "the key 'k' stands twice"),
        (b'"\xff"', "codec can't decode"),
        (b"[" * 100_000, "recursion"),
        (b"1" * 10_000, "digits"),
    ],
)
def test_what_is_not_json_is_named_with_its_file_and_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(DamagedFileError, match=f"the source is not readable JSON: .*{reason}"):
        parse_json(data, "the source")
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"bad\.json is not readable JSON"):
        read_json(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"none\.json cannot be read: No such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_json(tmp_path)


def test_checksums_are_sha256() -> None:
    assert sha256_of(b"shard") == hashlib.sha256(b"shard").hexdigest()
    assert len(sha256_of(b"")) == 64
