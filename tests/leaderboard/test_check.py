"""A pull request of entries adds entries; it leaves those of others, and the text around the tables, as they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.markdown import END, begin
from shard_gym.leaderboard.check import check_changes

ENTRY = "simulated/dlrm-20x4/random"
RACE = "measured/gpu-40x4/races/mine/race.json"


def page(block: str, table: str = "old") -> str:
    return f"# Rules\n\n{begin(block)}\n\n{table}\n\n{END}\n\nMore.\n"


@pytest.fixture
def before(root: Path) -> Path:
    (root / "README.md").write_text(page("leaderboards"))
    (root.parent / "README.md").write_text(page("suites to learn"))
    (root / "replayed.json").write_text("{}")
    return root


@pytest.fixture
def after(before: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "change"
    shutil.copytree(before, copy / "leaderboards")
    shutil.copy(before.parent / "README.md", copy)
    return copy / "leaderboards"


def test_new_entries_and_new_tables_are_allowed(before: Path, after: Path) -> None:
    shutil.copytree(after / ENTRY, after / "simulated/dlrm-20x4/another")
    (after / "README.md").write_text(page("leaderboards", "new"))
    (after.parent / "README.md").write_text(page("suites to learn", "new"))
    assert check_changes(after, before) == []


def remove(name: str) -> Callable[[Path], object]:
    return lambda root: (root / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return change


def link(root: Path) -> None:
    (root / ENTRY / "entry.toml").unlink()
    (root / ENTRY / "entry.toml").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("change", "file", "says"),
    [
        (remove(f"{ENTRY}/entry.toml"), f"{ENTRY}/entry.toml", "It was removed. Pull requests of entries add"),
        (lambda root: shutil.rmtree(root / "simulated"), f"{ENTRY}/entry.toml", "It was removed."),
        (link, f"{ENTRY}/entry.toml", "It was removed."),
        (write(f"{ENTRY}/entry.toml", "x"), f"{ENTRY}/entry.toml", "It was changed."),
        (write("replayed.json", "[]"), "replayed.json", "It was changed."),
        (write(RACE, "{}"), RACE, "It was added"),
        (write("README.md", page("leaderboards") + "Send me money."), "README.md", "changed outside the generated"),
        (write("README.md", page("leaderboards").replace("Rules", "No rules")), "README.md", "changed outside"),
        (write("README.md", page("other")), "README.md", "changed outside"),
        (write("README.md", page("leaderboards").replace(END, f"{END}\nx\n{END}")), "README.md", "changed outside"),
        (write("../README.md", "mine"), "../README.md", "changed outside the generated tables"),
        (remove("../README.md"), "../README.md", "It was removed. Restore it."),
    ],
)
def test_anything_else_is_a_finding(
    before: Path, after: Path, change: Callable[[Path], object], file: str, says: str
) -> None:
    assert check_changes(after, before) == []
    change(after)
    found = [str(each) for each in check_changes(after, before)]
    assert any(each.startswith(f"{file}: ") and says in each for each in found), found


def test_folders_that_are_not_there_are_refused(before: Path) -> None:
    with pytest.raises(InvalidOptionError, match="is no folder"):
        check_changes(before, before / "none")
