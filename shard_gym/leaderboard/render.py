"""The tables of the leaderboards as Markdown, and every generated file of their folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shard_gym.errors import DamagedFileError
from shard_gym.files import write_atomically
from shard_gym.leaderboard.boards import Board, Contestant, Scored, contestants
from shard_gym.leaderboard.data import site_data, verified_boards
from shard_gym.leaderboard.site import site_files, write_site
from shard_gym.leaderboard.site.build import DATA
from shard_gym.leaderboard.store import MEASURED
from shard_gym.suites import suite_info
from shard_gym.wording import counted

README, SITE = "README.md", "site"
BEGIN, END = "<!-- generated: leaderboards -->", "<!-- end -->"
"""Between these lines of the README stand the tables."""

COLUMNS = ("entry", "mean ms", "95% interval", "gap to best", "beats next", "failed", "plan ms", "budget", "trained on")

_ESCAPED = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>|#~$"} | {"&": "&amp;"})
"""Names come from strangers: none of them may end a cell, begin a link or be HTML."""


def rendered(root: Path) -> dict[Path, bytes]:
    """Every generated file under `root` with its content, from the entries there; nothing is written.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: an entry does not hold, or the README lacks the two lines around the tables.
    """
    of = verified_boards(root)
    files = {root / README: with_tables(root / README, tables(of)).encode()}
    if of:
        files |= {root / SITE / name: content for name, content in site_files(site_data(of)).items()}
    return files


def write_rendered(root: Path) -> list[Path]:
    """Write them all and return their paths; see `rendered` and `write_site` for errors."""
    of = verified_boards(root)
    write_atomically(root / README, with_tables(root / README, tables(of)).encode())
    return [root / README, *(write_site(site_data(of), root / SITE) if of else [])]


def outdated(root: Path, files: Mapping[Path, bytes]) -> list[Path]:
    """Those of the `rendered` files that are missing or differ, and what an earlier page left behind."""
    differing = [path for path, content in files.items() if not path.is_file() or path.read_bytes() != content]
    left = [path for path in sorted((root / SITE / DATA).rglob("*.js")) if path not in files]
    return [*differing, *left]


def with_tables(readme: Path, text: str) -> str:
    """The page with what stands between the two lines replaced by `text`."""
    page = readme.read_text() if readme.is_file() else ""
    before, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise DamagedFileError(f"{readme} lacks the lines {BEGIN!r} and {END!r}, between which the tables stand.")
    return f"{before}{begin}{text}{end}{after}"


def tables(of: Sequence[Board]) -> str:
    """All tables: contestants across suites, and then every board."""
    if not of:
        return "\nNo entries yet.\n\n"
    parts = [_overall(*contestants(of)), *(_board(board) for board in of)]
    return "\n" + "\n\n".join(filter(None, parts)) + "\n\n"


def _overall(suites: Sequence[str], ranked: Sequence[Contestant]) -> str:
    if len(suites) < 2 or not ranked:
        return ""
    about = (
        f"Entries on all {counted(len(suites), 'suite')} of the simulated track that have entries, "
        f"{counted(ranked[0].tasks, 'task')}: interquartile mean of cost / best known cost, and the share of "
        "placements within 1%, 5% and 20% of the best known."
    )
    header = ("entry", "IQM", "95% interval", "within 1%", "within 5%", "within 20%")
    rows = [
        (
            _plain(each.name),
            f"{each.iqm:.4f}",
            f"{each.interval[0]:.4f} to {each.interval[1]:.4f}",
            *(f"{100 * each.share_within(limit):.0f}%" for limit in (1.01, 1.05, 1.2)),
        )
        for each in ranked
    ]
    return f"### All suites\n\n{about}\n\n{_table(header, rows)}"


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
