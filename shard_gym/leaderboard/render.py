"""The tables of the leaderboards as Markdown, and every generated file of their folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from shard_gym.errors import DamagedFileError
from shard_gym.io.files import write_atomically
from shard_gym.leaderboard.boards import Board, Competitor, Scored, contestants
from shard_gym.leaderboard.data import site_data, verified_boards
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.site import site_files, write_site
from shard_gym.leaderboard.site.build import DATA
from shard_gym.leaderboard.store import MEASURED
from shard_gym.suites import suite_info
from shard_gym.text import counted

README, SITE = "README.md", "site"
BEGIN, END = "<!-- generated: leaderboards -->", "<!-- end -->"
"""Between these lines of the README stand the tables."""

_RENDER = "Make it anew with: shard-gym leaderboard render."

TOP = "<!-- generated: leaderboards top -->"
TOP_ROWS = 5
"""Begins the place of the best in the README of the project, and how many they are."""

_ABOUT_RATIOS = (
    "interquartile mean (IQM) of cost / best known cost, the share of placements within 1%, 5% and 20% of the best "
    "known, and the budget: true costs asked in training (on the suite with the most), plus those asked for a task "
    "while planning"
)

COLUMNS = (
    "entry",
    "mean ms",
    "95% interval",
    "gap to best",
    "beats next",
    "failed",
    "plan ms",
    "replayed ms",
    "budget",
    "trained on",
)

_ESCAPED = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|#~$"} | {"&": "&amp;"})
"""Names come from strangers: none of them may end a cell, begin a link or be HTML."""


def rendered(root: Path) -> dict[Path, bytes]:
    """Every generated file with its content, from the entries under `root`; nothing is written.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: an entry does not hold, or the README lacks the two lines around the tables.
    """
    of = verified_boards(root)
    files = _pages(root, of)
    if of:
        files |= {root / SITE / name: content for name, content in site_files(site_data(of)).items()}
    return files


def write_rendered(root: Path) -> list[Path]:
    """Write them all and return their paths; see `rendered` and `write_site` for errors."""
    of = verified_boards(root)
    pages = _pages(root, of)
    for path, content in pages.items():
        write_atomically(path, content)
    return [*pages, *(write_site(site_data(of), root / SITE) if of else [])]


def _pages(root: Path, of: Sequence[Board]) -> dict[Path, bytes]:
    """The README of the leaderboards, and that of the project around them where it has a place for the best."""
    pages = {root / README: with_tables(root / README, tables(of)).encode()}
    project = root.parent / README
    if project.is_file() and TOP in _text(project):
        pages[project] = with_tables(project, top(of), TOP).encode()
    return pages


def outdated(root: Path, files: Mapping[Path, bytes]) -> list[Finding]:
    """Which of the `rendered` files are missing or differ, and what else stands among them."""
    findings = [
        Finding(_called(path, root), f"It is not up to date. {_RENDER}")
        for path, content in files.items()
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content
    ]
    for path in sorted((root / SITE).rglob("*")):
        if path not in files and (path.is_symlink() or not path.is_dir()):
            made = path.suffix == ".js" and path.parent.is_relative_to(root / SITE / DATA)
            findings.append(Finding(_called(path, root), _RENDER if made else "It is not generated; take it away."))
    return findings


def _called(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()


def _text(page: Path) -> str:
    try:
        return page.read_text()
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{page} is not UTF-8.") from error


def with_tables(readme: Path, text: str, first: str = BEGIN) -> str:
    """The page with what stands between the line `first` and the next END replaced by `text`."""
    page = _text(readme) if readme.is_file() else ""
    before, begin, rest = page.partition(f"{first}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise DamagedFileError(f"{readme} lacks the lines {first!r} and {END!r}, between which the tables stand.")
    return f"{before}{begin}{text}{end}{after}"


def tables(of: Sequence[Board]) -> str:
    """All tables: contestants across suites, and then every board."""
    if not of:
        return "\nNo entries yet.\n\n"
    parts = [_overall(*contestants(of)), *(_board(board) for board in of)]
    return "\n" + "\n\n".join(filter(None, parts)) + "\n\n"


def top(of: Sequence[Board]) -> str:
    """The first contestants across suites."""
    suites, ranked = contestants(of)
    if not ranked:
        return "\nNo entries yet.\n\n"
    first = ranked[:TOP_ROWS]
    about = (
        f"The first {len(first)} of the {counted(len(ranked), 'contestant')} with an entry on all "
        f"{counted(len(suites), 'suite')} ({counted(ranked[0].tasks, 'task')}): {_ABOUT_RATIOS}."
    )
    return f"\n{about}\n\n{_contestants(first)}\n\n"


def _overall(suites: Sequence[str], ranked: Sequence[Competitor]) -> str:
    if len(suites) < 2 or not ranked:
        return ""
    about = (
        f"Entries on all {counted(len(suites), 'suite')} of the simulated track that have entries, "
        f"{counted(ranked[0].tasks, 'task')}: {_ABOUT_RATIOS}."
    )
    return f"### All suites\n\n{about}\n\n{_contestants(ranked)}"


def _contestants(ranked: Sequence[Competitor]) -> str:
    header = ("entry", "IQM", "95% interval", "within 1%", "within 5%", "within 20%", "budget")
    rows = [
        (
            _plain(each.name),
            f"{each.iqm:.4f}",
            f"{each.interval[0]:.4f} to {each.interval[1]:.4f}",
            *(f"{100 * each.share_within(limit):.0f}%" for limit in (1.01, 1.05, 1.2)),
            f"{each.training_queries:,} + {each.planning_queries:,.0f}",
        )
        for each in ranked
    ]
    return _table(header, rows)


def _board(board: Board) -> str:
    """The table of one board."""
    count = len(board.judge.suite)
    title = f"{board.suite}, measured on {_plain(board.hardware)}" if board.track == MEASURED else board.suite
    about = f"{suite_info(board.suite).description} {counted(count, 'task')}."
    return f"### {title}\n\n{about}\n\n{_table(COLUMNS, [_row(board, scored) for scored in board.entries])}"


def _row(board: Board, scored: Scored) -> tuple[str, ...]:
    verified = scored.verified
    entry = verified.entry
    name = _plain(entry.name)
    low, high = scored.interval_ms
    over = scored.improvement_over_next
    return (
        f"[{name}]({entry.link})" if entry.link else name,
        _ms(scored.mean_cost_ms),
        f"{_ms(low)} to {_ms(high)}" if low < high else "",
        "" if scored.gap is None else f"{100 * scored.gap:+.2f}%",
        "" if over is None else f"{over:.2f}",
        str(verified.grid.failures),
        _ms(1e3 * entry.planning.seconds),
        "" if scored.replayed_seconds is None else _ms(1e3 * scored.replayed_seconds),
        f"{entry.training.queries:,} + {entry.planning.queries:,.0f}",
        _plain(", ".join(entry.training.data)),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    return text.translate(_ESCAPED)


def _ms(value: float) -> str:
    """Four significant digits."""
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
