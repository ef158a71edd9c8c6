"""The generated tables of the leaderboards: in `leaderboards/README.md`, and in the project around it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import collapsed, escaped, has_block, table, with_block
from shard_gym.common.jobs import run_jobs
from shard_gym.common.text import counted, format_ms, format_range, format_seconds
from shard_gym.leaderboard.absences import reason_of_absence
from shard_gym.leaderboard.entry import VerifiedEntry, near_copy_of
from shard_gym.leaderboard.leagues import LEAGUES
from shard_gym.leaderboard.ranking import (
    MS_PER_HOUR,
    Competitor,
    Leaderboard,
    RankedEntry,
    competitors,
    load_leaderboards,
)
from shard_gym.leaderboard.store import OPEN, PAGES, README, ROOM, TABLES, Finding
from shard_gym.leaderboard.verify import Run
from shard_gym.tasks import TaskSuite, suite_info
from shard_gym.tasks.suites.gaps import PROVEN
from shard_gym.tasks.suites.info import MEASURED, REPLANNING, SHARDING, SIMULATED

OPEN_ROWS = 5
"""Suites in the table of those that are open."""

TITLES = {
    SIMULATED: "Placement suites",
    SHARDING: "Sharding suites",
    MEASURED: "Measured suites",
    REPLANNING: "Replanning suites",
}
"""The titles of the tables of each track."""

_ABOUT_RATIOS = (
    "interquartile mean (IQM) of cost / best known cost, the share of placements within 1%, 5% and 20% of the best "
    "known, and the budget: cost-model evaluations in training (on the suite with the most) + while planning a task"
)

LEAGUE_COLUMNS = (
    *("league", "entry", "mean ms", "95% interval", "gap to best", "fresh tasks", "beats next", "failed", "plan ms"),
    *("replayed ms", "budget", "trained on"),
)
"""Columns of a track with leagues; that of fresh tasks is left out where no entry has them."""

RACE_COLUMNS = (
    *("entry", "mean ms", "95% interval", "to the cheapest", "beats next", "failed", "plan ms"),
    *("budget", "trained on"),
)

BEFORE_FACTS = ("entry", "over oracle", "95% interval", "hours")
AFTER_FACTS = ("checked", "trained on")
"""Columns of a track whose answers are compared with the best ones there can be; facts of the answers are between."""

NO_ENTRY = "-"  # in the table of plans

CHECKED = {True: "replayed", False: "**not replayed**"}


def render(root: Path, run: Run = run_jobs) -> dict[Path, bytes]:
    """The pages with tables and their content, from the entries under `root`; nothing is written.

    Args:
        root: the folder of the leaderboards.
        run: see `verify_folders`.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: an entry is not valid, or the README has no generated block.
    """
    leaderboards = load_leaderboards(root, run)
    contents = {TABLES: _all_tables, OPEN: _open_table, ROOM: _room_table}
    pages = {}
    for name, block in PAGES:
        page = Path(os.path.normpath(root / name))
        if name == README and not page.exists():
            raise DamagedFileError(f"There is no {page} for the tables. Copy that of ShardGym's leaderboards/ there.")
        if name == README or has_block(page, block):
            pages[page] = with_block(page, block, contents[block](leaderboards)).encode()
    return pages


def write_pages(root: Path, run: Run = run_jobs) -> list[Path]:
    """Write the pages and return their paths; see `render` and `write_atomically` for errors."""
    pages = render(root, run)
    for path, content in pages.items():
        write_atomically(path, content)
    return list(pages)


def render_command(root: Path) -> str:
    """The command that brings the pages of the leaderboards in `root` up to date."""
    return "shard-gym leaderboard render" + (
        "" if root == Path("leaderboards") else f" --root {shlex.quote(str(root))}"
    )


def outdated(root: Path, run: Run = run_jobs) -> list[Finding]:
    """A finding for each page that is a link or has other content; see `render` for errors."""
    reason = f"It is not up to date. Update it with: {render_command(root)}."
    return [
        Finding(Path(os.path.relpath(path, root)).as_posix(), reason)
        for path, content in render(root, run).items()
        if path.is_symlink() or path.read_bytes() != content
    ]


def _all_tables(leaderboards: Sequence[Leaderboard]) -> str:
    """The table of the competitors across suites, and then, track by track, one for each leaderboard."""
    suites, ranked = competitors(leaderboards)
    parts = []
    if len(suites) > 1 and ranked:
        about = (
            f"Competitors with an entry on all {counted(len(suites), 'core suite')} ({', '.join(suites)}; "
            f"{counted(ranked[0].tasks, 'task')}), by league: {_ABOUT_RATIOS}."
        )
        parts.append(f"### Core suites\n\n{about}\n\n{_competitors_table(ranked)}")
    for track, title in TITLES.items():
        if boards := [each for each in leaderboards if each.track == track]:
            across = [_plans_table(boards)] if track == SHARDING else []
            solved = [each for each in boards if each.rules.leagues and each.status == "solved"]
            parts += [f"### {title}", *across, *(_leaderboard_table(each) for each in boards if each not in solved)]
            if solved:
                content = "\n\n".join(map(_leaderboard_table, solved))
                parts.append(collapsed(counted(len(solved), "solved suite"), content))
    return "\n\n".join(parts) or "No entries yet."


def _open_table(leaderboards: Sequence[Leaderboard]) -> str:
    """The open suites with training tasks: the closest entries, the widest gap of the best rule first."""
    boards = [board for board in leaderboards if board.rules.leagues and board.status == "open"]
    boards = [board for board in boards if suite_info(board.suite).tasks.get("train")]
    if not boards:
        return "No suite with training tasks is open."
    boards.sort(key=lambda board: -(board.floor or board.smallest_gap(LEAGUES[0]) or 0.0))
    rows = [
        (
            f"`{board.suite}`",
            _closest(board, LEAGUES[0], learns=False),
            _closest(board, LEAGUES[0], learns=True),
            _closest(board, "search"),
            "" if board.proven_gap is None else f"{100 * board.proven_gap.mean:.1f}%",
        )
        for board in boards[:OPEN_ROWS]
    ]
    entries = ("best rule", "best trained `zero-query` entry", "best search")
    return table(("suite", *entries, "best known above bounds"), rows, left=4)


def _closest(board: Leaderboard, league: str, *, learns: bool | None = None) -> str:
    """Gap, name and evaluations in training of the closest entry of a league that fails on no task.

    With `learns`, of those that are trained, or of those that are not.
    """
    found = [
        (each.gap, each.verified.entry.name, each.verified.entry.training.queries)
        for each in board.entries
        if each.league == league and not each.verified.failures and each.gap is not None
        if learns is None or each.verified.entry.agent.learns == learns
    ]
    if not found:
        return "-"
    gap, name, queries = min(found)
    return f"{100 * gap:.1f}%, {escaped(name)}" + (f", {queries:,} costs in training" if queries else "")


def _plans_table(boards: Sequence[Leaderboard]) -> str:
    """All entries of the track of plans, by league, with their gap on each suite."""
    found: dict[tuple[str, ...], dict[str, RankedEntry]] = {}
    for board in boards:
        for ranked in board.entries:
            entry = ranked.verified.entry
            key = (ranked.league or "", ranked.verified.folder.slug, entry.agent.name, *sorted(entry.authors))
            found.setdefault(key, {})[board.suite] = ranked
    rows, absent = [], dict[str, list[str]]()
    for (league, slug, *_), entries in sorted(found.items(), key=lambda each: _order_of_plans(each[0][0], each[1])):
        declared = [each.verified.entry for each in entries.values()]
        training = max(each.training.queries for each in declared)
        planning = max(each.planning.queries for each in declared)
        slowest = format_seconds(max(each.planning.seconds for each in declared))
        name, cells = escaped(declared[0].name), []
        for board in boards:
            suite = board.scorer.suite
            assert isinstance(suite, TaskSuite)  # of plans
            reason = "" if board.suite in entries else reason_of_absence(slug, suite)
            if reason:
                absent.setdefault(f"{name}: {reason}", []).append(board.suite)
            cells.append(NO_ENTRY if reason else _gap_or_failures(entries.get(board.suite)))
        rows.append((league, name, f"{training:,} + {planning:,.0f}", slowest, *cells))
    rows += [("", title, "", "", *cells) for title, cells in _best_rows(boards)]
    header = ("league", "entry", "budget", "time", *(board.suite for board in boards))
    about = (
        f"Plans, in which tables may be split, on {counted(len(boards), 'suite')} "
        f"({counted(sum(len(board.scorer.suite) for board in boards), 'task')}): what entries cost more than the best "
        "known plans, mean over the tasks and seeds of a suite for which they found a plan, and how often they found "
        "none. Budget, and time to plan a task: the largest of any suite."
    )
    reasons = [f"- {why} ({', '.join(suites)})." for why, suites in absent.items()]
    below = f"\n\n{NO_ENTRY}: there is no entry, because:\n\n" + "\n".join(reasons) if reasons else ""
    return f"{about}\n\n{table(header, rows, left=2)}{below}"


def _order_of_plans(league: str, entries: Mapping[str, RankedEntry]) -> tuple[int, int, float]:
    """By league; in it, those that fail on fewer suites first, then by the mean of the gaps where they do not."""
    answered = [each.gap for each in entries.values() if not each.verified.failures and each.gap is not None]
    failed = len(entries) - len(answered)
    return LEAGUES.index(league), failed, sum(answered) / max(len(answered), 1)


def _gap_or_failures(ranked: RankedEntry | None) -> str:
    """The gap to the best known costs, of the tasks with a plan, and how often there is none: a penalty is no cost."""
    if ranked is None:
        return ""
    failures, answers = ranked.verified.failures, ranked.verified.costs_ms.size
    gap = "" if ranked.gap_of_answers is None else f"{100 * ranked.gap_of_answers:.1f}%"
    often = f"fails {failures} of {answers}"
    return gap if not failures else f"{gap} ({often})" if gap else often


def _best_rows(boards: Sequence[Leaderboard]) -> list[tuple[str, list[str]]]:
    """The mean of the best known costs of each suite, and what they are above proven bounds."""
    best = ["" if (found := board.best) is None else _ms(found.costs_ms.mean()) for board in boards]
    bounds = ["" if (gap := board.proven_gap) is None else f"{100 * gap.mean:.1f}%" for board in boards]
    return [("best known, ms", best), ("best known above bounds", bounds)]


def _room_table(leaderboards: Sequence[Leaderboard]) -> str:
    """How far rules, each league and the best placements known are from the best there can be, on every suite.

    Suites that are solved are in a table of their own, which is folded.
    """
    rows: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    for leaderboard in leaderboards:
        if not leaderboard.rules.leagues:
            continue
        info, gap = suite_info(leaderboard.suite), leaderboard.proven_gap
        room = [leaderboard.floor, *(leaderboard.smallest_gap(league) for league in LEAGUES)]
        rows[leaderboard.is_solved].append(
            (
                f"`{info.name}`",
                *(format_range(*info.num_tables), format_range(*info.num_devices)),
                str(info.tasks.get("train", 0)),
                *(map(_room, room)),
                "not known" if gap is None else f"{100 * gap.mean:.2f}% ({100 * gap.largest:.2f}%)",
                "" if gap is None else f"{gap.proven} of {gap.tasks}",
                leaderboard.status,
            )
        )
    gaps = ("best rule", *LEAGUES, "best known above bounds", f"within {100 * PROVEN:g}%")
    header = ("suite", "T", "D", "training tasks", *gaps, "status")
    parts = [table(header, rows[False], notes=1)] if rows[False] or not rows[True] else []
    if rows[True]:
        parts.append(collapsed(counted(len(rows[True]), "solved suite"), table(header, rows[True], notes=1)))
    return "\n\n".join(parts)


def _room(gap: float | None) -> str:
    return "-" if gap is None else f"{100 * gap:.2f}%"


def _competitors_table(ranked: Sequence[Competitor]) -> str:
    header = ("league", "entry", "IQM", "95% interval", "within 1%", "within 5%", "within 20%", "budget")
    rows = [
        (
            each.league,
            escaped(each.name),
            f"{each.iqm:.4f}",
            f"{each.interval[0]:.4f} to {each.interval[1]:.4f}",
            *(f"{100 * each.share_within(limit):.0f}%" for limit in (1.01, 1.05, 1.2)),
            f"{each.training_queries:,} + {each.planning_queries:,.0f}",
        )
        for each in ranked
    ]
    return table(header, rows, left=2)


def _leaderboard_table(leaderboard: Leaderboard) -> str:
    """The description and the table of one leaderboard, collapsed; of a race also the entries that are not in it."""
    suite, race = leaderboard.suite, leaderboard.race
    about = f"{suite_info(suite).description} {counted(len(leaderboard.scorer.suite), 'task')}."
    if leaderboard.rules.looks_ahead:
        about = f"{about} {leaderboard.scorer.problem.conditions(leaderboard.scorer.suite[0])}"
        return collapsed(suite, f"{about}\n\n{_facts_table(leaderboard)}")
    if leaderboard.rules.leagues:
        none = all(each.fresh is None for each in leaderboard.entries)
        columns = [each for each in LEAGUE_COLUMNS if not (none and each == "fresh tasks")]
        entries = _entries_table(columns, leaderboard)
        return collapsed(f"{suite}: {leaderboard.status}", f"{about} {leaderboard.how_solved}\n\n{entries}")
    title, parts = suite, [about]
    if race:
        title = f"{suite} on {race.name}"
        parts = [f"{about} {escaped(race.about)}.", _entries_table(RACE_COLUMNS, leaderboard)]
    if leaderboard.not_raced:
        parts.append(f"Not raced yet: {', '.join(map(_name, leaderboard.not_raced))}.")
    return collapsed(title, "\n\n".join(parts))


def _facts_table(leaderboard: Leaderboard) -> str:
    """The entries with the means of the facts of their answers, and the best answers there can be."""
    problem, rows = leaderboard.scorer.problem, []
    columns = (*BEFORE_FACTS, *problem.headings, *AFTER_FACTS)
    for ranked in leaderboard.listed:
        facts = ranked.verified.facts
        cells = _cells(ranked) | {
            "over oracle": "" if ranked.gap is None else _percent(ranked.gap),
            "95% interval": " to ".join(map(_percent, ranked.gap_interval or ())),
            "hours": f"{ranked.mean_cost_ms / MS_PER_HOUR:.3f}",
            **{heading: _fact(float(np.nanmean(facts[heading])), heading) for heading in problem.headings},
            "checked": CHECKED[ranked.replayed_seconds is not None],
        }
        rows.append([cells[column] for column in columns])
    if leaderboard.best is not None:
        best = f"{leaderboard.best.costs_ms.mean() / MS_PER_HOUR:.3f}"
        title = f"{problem.best_name}: the best {problem.noun}, with hindsight"
        rows.append([title, "0.00%", "", best, *("" for _ in problem.headings), "looks ahead, no entry", ""])
    return table(columns, rows, notes=len(AFTER_FACTS))


def _fact(value: float, heading: str) -> str:
    """Times to a second, counts to a tenth."""
    return f"{value:,.0f}" if heading.endswith(", s") else f"{value:.1f}"


def _entries_table(columns: Sequence[str], leaderboard: Leaderboard) -> str:
    """The entries, and below them near copies."""
    every = leaderboard.listed
    rows = [[cells[column] for column in columns] for cells in map(_cells, every)]
    return table(columns, rows, left=columns.index("entry") + 1, notes=1)


def _cells(ranked: RankedEntry) -> dict[str, str]:
    """What the tables show of an entry, by column."""
    entry = ranked.verified.entry
    low, high = ranked.interval_ms
    over, ratio, ratios = ranked.improvement_over_next, ranked.ratio, ranked.ratio_interval
    return {
        "league": ranked.league or "",
        "entry": _name(ranked.verified),
        "mean ms": _ms(ranked.mean_cost_ms),
        "95% interval": f"{_ms(low)} to {_ms(high)}" if low < high else "",
        "gap to best": "" if ranked.gap is None or ranked.verified.failures else f"{100 * ranked.gap:+.2f}%",
        "fresh tasks": _fresh(ranked),
        "to the cheapest": "" if ratio is None or ratios is None else _ratio(ratio, *ratios),
        "beats next": "" if over is None else f"{over:.2f}",
        "failed": str(ranked.verified.failures),
        "plan ms": _ms(1e3 * entry.planning.seconds),
        "replayed ms": "" if ranked.replayed_seconds is None else _ms(1e3 * ranked.replayed_seconds),
        "budget": f"{entry.training.queries:,} + {entry.planning.queries:,.0f}",
        "trained on": escaped(", ".join(entry.training.data)),
    }


def _fresh(ranked: RankedEntry) -> str:
    """The gap on fresh tasks, in brackets that of the same agent on test tasks, what failed, and whether it falls."""
    gap = ranked.fresh
    if gap is None:
        return ""
    words = [f"{100 * gap.mean:+.2f}% ({100 * gap.test:+.2f}%)"]
    if gap.failures:
        words.append(f"{gap.failures} failed")
    if ranked.falls:
        words.append("**falls**: {:.2f} to {:.2f} times".format(*gap.rise_interval))
    return ", ".join(words)


def _name(verified: VerifiedEntry) -> str:
    """The name, with its link if it has one, and what it is a near copy of."""
    name, link = escaped(verified.entry.name), verified.entry.link
    linked = f"[{name}]({link})" if link else name
    return f"{linked}; **{near_copy_of(verified)}**" if verified.entry.near else linked


def _percent(share: float) -> str:
    """A share in percent; never -0.00%, which a rounding error would be."""
    return f"{100 * (round(share, 6) + 0.0):.2f}%"


def _ratio(ratio: float, low: float, high: float) -> str:
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})" if low < high else f"{ratio:.3f}"


def _ms(value: float) -> str:
    return format_ms(value) if value < 1000 else f"{value:,.0f}"
