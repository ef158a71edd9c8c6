"""Items that are not allowed in the folder of the leaderboards: links, other names, files beside entries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shard_gym.leaderboard import verify_all
from shard_gym.leaderboard.store import read_files

ROWS = "placements.json"
SUITE = "dlrm-20x4"


def findings_of(root: Path) -> list[str]:
    return [str(finding) for finding in verify_all(root)[1]]


def test_a_linked_file_is_not_read(random_entry, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    shutil.move(random_entry.path / ROWS, secret)
    (random_entry.path / ROWS).symlink_to(secret)
    assert random_entry.findings() == [f"{random_entry.folder.id}/{ROWS}: It is a link; put the file itself there."]
    assert ROWS not in read_files(random_entry.folder)[0]


@pytest.mark.parametrize("level", ["entry", "suite", "track"])
def test_a_linked_folder_is_not_followed(root: Path, random_entry, tmp_path: Path, level: str) -> None:
    folder = {"entry": random_entry.path, "suite": random_entry.path.parent, "track": root / "simulated"}[level]
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    expected = f"{folder.relative_to(root).as_posix()}: It is a link; put the folder itself there."
    assert expected in findings_of(root)
    assert random_entry.findings() == [expected]


SLUG = "The folder of an entry is named with 1 to 64 of a-z, 0-9 and single hyphens between them."
TRACKS = "There is no such track; the tracks are simulated, sharding, measured and replanning."


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((f"simulated/{SUITE}/{name}/", SLUG) for name in ("Random", "ran dom", "..evil", "x" * 65)),
        ("Simulated/", TRACKS),
        *((name, "No file is allowed here; remove it.") for name in ("notes.txt", "simulated/run.sh")),
        (f"simulated/{SUITE}/.DS_Store", "No file is allowed here; remove it."),
    ],
)
def test_other_folders_and_files_are_refused(root: Path, name: str, reason: str) -> None:
    if name.endswith("/"):
        (root / name).mkdir()
    else:
        (root / name).write_text("x")
    assert findings_of(root) == [f"{name.rstrip('/')}: {reason}"]


def test_an_entry_in_another_suites_folder_is_refused(root: Path, random_entry) -> None:
    shutil.move(random_entry.path.parent, root / "simulated" / "dlrm-40x4")
    found = findings_of(root)
    expected = "entry.toml: suite.name is 'dlrm-20x4', but in simulated/dlrm-40x4 it must be 'dlrm-40x4'"
    assert any(expected in each for each in found), found
    assert any("task dlrm-40x4/test/0, seed 0: The task is missing" in each for each in found), found


def test_an_entry_of_no_suite_is_refused(root: Path, random_entry) -> None:
    shutil.move(random_entry.path.parent, root / "simulated" / "my-suite")
    found = findings_of(root)
    assert any("There is no suite named 'my-suite'" in each for each in found), found
