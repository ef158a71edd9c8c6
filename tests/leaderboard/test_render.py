from __future__ import annotations

import re
from pathlib import Path

import pytest

from shard_gym.errors import DamagedFileError
from shard_gym.leaderboard.render import BEGIN, END, outdated, rendered, write_rendered

PAGE = f"# Mine\n\nbefore\n{BEGIN}\nold\n{END}\nafter\n"


@pytest.fixture
def page(root: Path) -> Path:
    (root / "README.md").write_text(PAGE)
    return root / "README.md"


def test_tables_stand_between_the_lines_and_nothing_else_changes(root: Path, page: Path) -> None:
    written = write_rendered(root)
    text = page.read_text()
    assert text.startswith(f"# Mine\n\nbefore\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "### dlrm-20x4\n" in text
    assert "### dlrm-20x4, measured on NVIDIA H200\n" in text
    rows = re.findall(r"\[The (\S+) agent\]", text)
    assert rows == ["random", "size-greedy"]
    assert root / "site" / "index.html" in written


def test_rendering_twice_changes_nothing(root: Path, page: Path) -> None:
    write_rendered(root)
    assert outdated(root, rendered(root)) == []
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    write_rendered(root)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_was_edited_or_left_behind_is_out_of_date(root: Path, page: Path) -> None:
    write_rendered(root)
    page.write_text(page.read_text().replace("| 0 |", "| 9 |", 1))
    (root / "site" / "data" / "gone.js").write_text("x")
    (root / "site" / "index.html").unlink()
    assert {path.name for path in outdated(root, rendered(root))} == {"README.md", "gone.js", "index.html"}


def test_an_entry_cannot_write_markdown_or_html(root: Path, page: Path, random_entry) -> None:
    random_entry.toml("The random agent", "<script>|[x](y) **b** `c` &lt; $x$")
    write_rendered(root)
    (line,) = (line for line in page.read_text().splitlines() if "script" in line)
    assert re.sub(r"\\.", "", line).count("|") == 10
    assert r"\<script\>\|\[x\](y) \*\*b\*\* \`c\` &amp;lt; \$x\$" in line


@pytest.mark.parametrize("text", ["", "no lines", f"{BEGIN}\nno end\n"])
def test_a_page_without_the_lines_is_not_touched(root: Path, text: str) -> None:
    (root / "README.md").write_text(text)
    with pytest.raises(DamagedFileError, match="lacks the lines"):
        write_rendered(root)
    assert (root / "README.md").read_text() == text
    assert not (root / "site").exists()


def test_no_entries_is_said(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(PAGE)
    write_rendered(tmp_path)
    assert "No entries yet." in (tmp_path / "README.md").read_text()
