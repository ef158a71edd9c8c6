from __future__ import annotations

import re
from pathlib import Path

import pytest

from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.markdown import END, begin
from shard_gym.leaderboard import ranking, write_pages
from shard_gym.leaderboard.markdown import outdated
from shard_gym.leaderboard.store import OPEN, ROOM, TABLES

PAGE = f"# Mine\n\nbefore\n{begin(TABLES)}\nold\n{END}\nafter\n"


@pytest.fixture(autouse=True)
def core_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two core suites: entries on more of the real ones take longer to make."""
    monkeypatch.setattr(ranking, "CORE_SUITES", ("dlrm-20x4", "mlperf-x8"))


@pytest.fixture
def page(root: Path) -> Path:
    (root / "README.md").write_text(PAGE)
    return root / "README.md"


def findings_of(root: Path) -> list[str]:
    return [finding.file for finding in outdated(root)]


def test_only_the_generated_block_changes(root: Path, page: Path) -> None:
    assert findings_of(root) == ["README.md"]
    assert write_pages(root) == [page]
    text = page.read_text()
    assert text.startswith(f"# Mine\n\nbefore\n{begin(TABLES)}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "<summary>dlrm-20x4: " in text
    assert re.findall(r"\[The (\S+) agent\]", text) == ["random", "size-greedy", "size-greedy"]
    assert findings_of(root) == []
    write_pages(root)
    assert page.read_text() == text
    page.write_text(text.replace("| 0 |", "| 9 |", 1))
    assert findings_of(root) == ["README.md"]


def test_the_page_of_the_room_to_learn_shows_the_gap_of_each_league(root: Path, page: Path, markdown_rows) -> None:
    suites = root.parent / "docs" / "results" / "room.md"
    suites.parent.mkdir(parents=True)
    suites.write_text(f"# The suites\n\n## Room\n\n{begin(ROOM)}\n{END}\n")
    write_pages(root)
    (board,) = (each for each in ranking.load_leaderboards(root) if each.suite == "dlrm-20x4" and each.best is not None)
    cells = markdown_rows(suites.read_text(), "## Room")["`dlrm-20x4`"]
    gap, proven = board.smallest_gap("zero-query"), board.proven_gap
    assert gap is not None
    assert proven is not None
    assert cells[:5] == ["20", "4", "50", *2 * [f"{100 * gap:.2f}%"]]  # that of a rule, and of its league
    assert cells[7:] == [f"{100 * proven.mean:.2f}% ({100 * proven.largest:.2f}%)", f"{proven.proven} of 50", "open"]
    assert findings_of(root) == []


def test_a_link_is_no_generated_page(root: Path, page: Path, tmp_path: Path) -> None:
    project = root.parent / "README.md"
    project.write_text(f"{begin(OPEN)}\n{END}\n")
    write_pages(root)
    project.rename(tmp_path / "elsewhere.md")
    project.symlink_to(tmp_path / "elsewhere.md")
    assert findings_of(root) == ["../README.md"]


def test_an_entry_cannot_write_markdown_or_html(root: Path, page: Path, random_entry) -> None:
    random_entry.toml("The random agent", "<script>|[x](y) **b** `c` &lt; $x$")
    write_pages(root)
    (line,) = (line for line in page.read_text().splitlines() if "script" in line)
    assert re.sub(r"\\.", "", line).count("|") == 12
    assert r"\<script\>\|\[x\](y) \*\*b\*\* \`c\` &amp;lt; \$x\$" in line


def test_the_readme_of_the_project_has_the_open_suites_if_it_has_a_block(root: Path, page: Path, add_entry) -> None:
    """Those with training tasks, and their closest entries: of mlperf-x8 there are none to train on."""
    add_entry(root, "size-greedy", "mlperf-x8")
    project = root.parent / "README.md"
    project.write_text("# The project\n")
    assert write_pages(root) == [page]
    assert project.read_text() == "# The project\n"
    project.write_text(f"# The project\n{begin(OPEN)}\nold\n{END}\nafter\n")
    assert project in write_pages(root)
    text = project.read_text()
    board = next(each for each in ranking.load_leaderboards(root) if each.suite == "dlrm-20x4")
    gap = f"{100 * min(each.gap for each in board.entries):.1f}%, The random agent"
    assert board.proven_gap is not None
    (line,) = (line for line in text.splitlines() if line.startswith("| `"))
    assert line == f"| `dlrm-20x4` | {gap} | - | - | {100 * board.proven_gap.mean:.1f}% |"
    assert text.endswith(f"{END}\nafter\n")
    project.write_text(text.replace("random", "best"))
    assert findings_of(root) == ["../README.md"]


def test_entries_stand_by_league_and_zero_query_is_first(root: Path, page: Path, add_entry) -> None:
    add_entry(root, "cost-greedy", "dlrm-20x4")
    write_pages(root)
    suite = page.read_text().split("<summary>dlrm-20x4: ", 1)[1].split("<summary>", 1)[0]
    assert re.findall(r"^\| ([a-z-]+) \| \[The (\S+) agent\]", suite, re.MULTILINE) == [
        ("zero-query", "random"),
        ("zero-query", "size-greedy"),
        ("guided", "cost-greedy"),
    ]
    assert "The best known placements" in suite
    assert "The best zero-query entry costs " in suite


@pytest.mark.parametrize("text", ["", "no lines", f"{begin(TABLES)}\nno end\n"])
def test_a_page_without_the_block_is_not_changed(root: Path, text: str) -> None:
    (root / "README.md").write_text(text)
    with pytest.raises(DamagedFileError, match="has no generated block"):
        write_pages(root)
    assert (root / "README.md").read_text() == text


def test_an_empty_folder_has_no_entries_yet(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(PAGE)
    write_pages(tmp_path)
    assert "No entries yet." in (tmp_path / "README.md").read_text()
