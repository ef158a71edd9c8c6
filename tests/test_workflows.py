"""The workflows run what was reviewed: actions by their commit, packages by their hash."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

GITHUB = Path(__file__).parents[1] / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_may_only_read(path: Path) -> None:
    assert "\npermissions:\n  contents: read\n" in path.read_text()
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_what_verifies_entries_is_installed_by_hash() -> None:
    workflow = (GITHUB / "workflows" / "leaderboards.yml").read_text()
    for line in re.findall(r"pip install .*", workflow):
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line, line
    pinned = (GITHUB / "leaderboards.txt").read_text()
    entries = re.findall(r"^([a-z0-9_-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", pinned, re.MULTILINE)
    lines = [line for line in pinned.splitlines() if line and not line.startswith(("#", " "))]
    assert len(entries) == len(lines)
    names = {name for name, _ in entries}
    assert {"numpy", "gymnasium", "tyro", "rich", "packaging", "pydantic", "safetensors", "pyarrow"} <= names


def test_a_change_of_entries_is_told_by_the_pages_that_entries_change() -> None:
    """Whatever else a pull request changes makes it one of code, which is verified by its own."""
    pytest.importorskip("pydantic")
    from shard_gym.leaderboard.store import PAGES

    workflow = (GITHUB / "workflows" / "leaderboards.yml").read_text()
    (allowed,) = re.findall(r"grep -qvE '\^\((.*?)\)'", workflow)
    pages = [os.path.normpath(f"leaderboards/{page}") for page, _ in PAGES]
    assert [
        path for path in [*pages, "leaderboards/simulated/mlperf-x8/x/entry.toml"] if not re.match(allowed, path)
    ] == []
    assert [
        path for path in ("docs/suites.md", "docs/results/roomXmd", "shard_gym/README.md") if re.match(allowed, path)
    ] == []
    assert {each for each in allowed.split("|") if each != "leaderboards/"} == {
        f"{page.replace('.', chr(92) + '.')}$" for page in pages if not page.startswith("leaderboards/")
    }
