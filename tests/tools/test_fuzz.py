"""The fuzz command damages files, restores them, and tells the ways in which reading them ends."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from shard_gym.errors import DamagedFileError
from tools import fuzz, fuzz_subjects
from tools.fuzz_subjects import Subject


def a_file(path: Path, read: Any) -> Subject:
    path.write_text('{"a": [1, 2], "b": "text"}\n')
    return Subject("a file", path, read)


def test_the_ends_of_a_case_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    subject = a_file(path, path.read_bytes)
    assert fuzz.outcome(subject, True)[0] == fuzz.SAME
    path.write_text("{}")
    assert fuzz.outcome(subject, True)[0] == fuzz.SILENT
    assert fuzz.outcome(a_file(path, path.read_bytes), False)[0] == fuzz.SAME
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 1)
    ends = [(DamagedFileError("x"), fuzz.REFUSED), (DamagedFileError(), fuzz.FOREIGN), (KeyError(1), fuzz.FOREIGN)]
    for error, end in ends:

        def read(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(subject, "read", read)
        assert fuzz.outcome(subject, True)[0] == end
    monkeypatch.setattr(subject, "read", lambda: time.sleep(5))
    assert fuzz.outcome(subject, True)[0] == fuzz.SLOW


def test_every_way_changes_a_file_and_repeats_for_a_seed() -> None:
    text, data = b'{"a": [1, 2], "b": "text"}\nc = 1\n', bytes(range(256))
    for way in fuzz.DAMAGES:
        for content in (text, data):
            found = [way(random.Random(seed), content) for seed in range(20)]
            assert found == [way(random.Random(seed), content) for seed in range(20)]
            assert any(each != content for each in found)


def test_a_damaged_cache_suite_and_evaluation_end_well(tmp_path: Path) -> None:
    found = [*fuzz_subjects.cache(tmp_path), *fuzz_subjects.documents(tmp_path)]
    for case in range(60):
        subject = found[case % len(found)]
        _, has_checksum = fuzz.damage(subject, random.Random(f"test-{case}"))
        end, detail = fuzz.outcome(subject, has_checksum)
        assert end not in fuzz.BAD, detail
        for leftover in tmp_path.glob(f"{subject.path.name}[.-]*"):
            leftover.unlink()
        subject.path.write_bytes(subject.content)
