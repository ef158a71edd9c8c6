from __future__ import annotations

import re
from pathlib import Path

import pytest

from shard_gym.errors import DamagedFileError
from shard_gym.leaderboard.render import BEGIN, END, TOP, outdated, rendered, write_rendered

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
    (root / "site" / "more.html").write_text("x")
    said = {finding.file: finding.reason for finding in outdated(root, rendered(root))}
    assert sorted(said) == ["README.md", "site/data/gone.js", "site/index.html", "site/more.html"]
    assert "take it away" in said["site/more.html"]
    write_rendered(root)
    assert [finding.file for finding in outdated(root, rendered(root))] == ["site/more.html"]


def test_a_link_is_no_generated_file(root: Path, page: Path, tmp_path: Path) -> None:
    write_rendered(root)
    target = root / "site" / "style.css"
    target.rename(tmp_path / "style.css")
    target.symlink_to(tmp_path / "style.css")
    assert [finding.file for finding in outdated(root, rendered(root))] == ["site/style.css"]


def test_an_entry_cannot_write_markdown_or_html(root: Path, page: Path, random_entry) -> None:
    random_entry.toml("The random agent", "<script>|[x](y) **b** `c` &lt; $x$")
    write_rendered(root)
    (line,) = (line for line in page.read_text().splitlines() if "script" in line)
    assert re.sub(r"\\.", "", line).count("|") == 11
    assert r"\<script\>\|\[x\](y) \*\*b\*\* \`c\` &amp;lt; \$x\$" in line


def test_the_best_stand_in_the_readme_around_if_it_has_a_place_for_them(root: Path, page: Path, add_entry) -> None:
    add_entry(root, "size-greedy", "mlperf-x8")
    around = root.parent / "README.md"
    around.write_text("# The project\n")
    write_rendered(root)
    assert around.read_text() == "# The project\n"
    around.write_text(f"# The project\n{TOP}\nold\n{END}\nafter\n")
    assert around in write_rendered(root)
    text = around.read_text()
    assert "The first 1 of the 1 contestant with an entry on all 2 suites (51 tasks)" in text
    assert "| The size-greedy agent |" in text
    assert text.endswith(f"{END}\nafter\n")
    around.write_text(text.replace("size", "best"))
    assert [finding.file for finding in outdated(root, rendered(root))] == ["../README.md"]


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
