"""Folders of leaderboards with what does not belong there: links, other names, files beside entries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shard_gym.leaderboard.store import read_files
from shard_gym.leaderboard.verify import verify_all, verify_entry

ROWS = "placements.json"


def said_of(entry) -> list[str]:
    return [str(finding) for finding in verify_entry(entry.place)[1]]


def test_a_linked_file_is_not_read(random_entry, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    shutil.move(random_entry.folder / ROWS, secret)
    (random_entry.folder / ROWS).symlink_to(secret)
    assert said_of(random_entry) == [
        "simulated/dlrm-20x4/random/placements.json: It is a link; put the file itself there."
    ]
    assert ROWS not in read_files(random_entry.place)[0]


@pytest.mark.parametrize("level", ["entry", "suite", "track"])
def test_a_linked_folder_is_not_followed(root: Path, random_entry, tmp_path: Path, level: str) -> None:
    folder = {"entry": random_entry.folder, "suite": random_entry.folder.parent, "track": root / "simulated"}[level]
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    called = folder.relative_to(root).as_posix()
    expected = f"{called}: It is a link; put the folder itself there."
    assert expected in [str(finding) for finding in verify_all(root)[1]]
    assert said_of(random_entry) == [expected]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("simulated/dlrm-20x4/Random", "is named with 1 to 64 of a-z, 0-9"),
        ("simulated/dlrm-20x4/ran dom", "is named with 1 to 64 of a-z, 0-9"),
        ("simulated/dlrm-20x4/..evil", "is named with 1 to 64 of a-z, 0-9"),
        ("Simulated/dlrm-20x4/random", "There is no such track"),
        ("hidden/x", "There is no such track"),
    ],
)
def test_folders_of_other_names_are_found(root: Path, folder: str, expected: str) -> None:
    (root / folder).mkdir(parents=True)
    said = [str(finding) for finding in verify_all(root)[1]]
    assert any(each.startswith(folder.split("/")[0]) and expected in each for each in said), said


@pytest.mark.parametrize("file", ["notes.txt", "simulated/run.sh", "simulated/dlrm-20x4/.DS_Store"])
def test_files_beside_entries_are_found(root: Path, file: str) -> None:
    (root / file).write_text("x")
    assert f"{file}: No file belongs here; take it away." in [str(finding) for finding in verify_all(root)[1]]


def test_an_entry_in_another_suites_folder_is_refused(root: Path, random_entry) -> None:
    shutil.move(random_entry.folder.parent, root / "simulated" / "dlrm-20x4-moved")
    shutil.move(root / "simulated" / "dlrm-20x4-moved", root / "simulated" / "dlrm-40x4")
    said = [str(finding) for finding in verify_all(root)[1]]
    assert any(
        "dlrm-40x4/random/entry.toml: suite.name is 'dlrm-20x4', but the entry stands in simulated/dlrm-40x4" in each
        for each in said
    ), said
    assert any("task dlrm-40x4/test/0, seed 0: The task is missing" in each for each in said)


def test_an_entry_of_no_suite_is_refused(root: Path, random_entry) -> None:
    shutil.move(random_entry.folder.parent, root / "simulated" / "my-suite")
    said = [str(finding) for finding in verify_all(root)[1]]
    assert any("There is no suite named 'my-suite'" in each for each in said), said


@pytest.mark.parametrize("name", ["The random agent", "THE RANDOM AGENT", "The Random-Agent", "Therandom agent"])
def test_two_names_that_look_alike_are_refused(root: Path, greedy_entry, name: str) -> None:
    greedy_entry.toml("The size-greedy agent", name)
    findings = verify_all(root)[1]
    assert len(findings) == 1
    assert f"The name {name!r} is that of simulated/dlrm-20x4/random, 'The random agent'." in str(findings[0])
