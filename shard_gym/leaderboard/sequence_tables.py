"""The tables of the track "replanning": for each suite its entries by rank, replayed ones first, and the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shard_gym.drift.suites import drift_suite_names
from shard_gym.errors import DamagedFileError
from shard_gym.io.markdown import collapsed, escaped, table
from shard_gym.leaderboard.sequence_files import Sequences, read_sequences, scored_suite
from shard_gym.leaderboard.sequences import verify_all_sequences
from shard_gym.leaderboard.statistics import mean_interval
from shard_gym.text import counted

REPLAYED, NOT_REPLAYED = "replayed", "**not replayed**"

COLUMNS = (
    *("entry", "over oracle", "95% interval", "hours", "pauses, s", "migrations, s", "plans", "repairs"),
    *("checked", "trained on"),
)


@dataclass(frozen=True, eq=False)
class SequenceBoard:
    """The entries of one suite.

    Attributes:
        suite: its name.
        entries: by rank: those that are replayed, then the others; in each group the shortest first.
    """

    suite: str
    entries: tuple[Sequences, ...]


def load_sequence_boards(root: Path) -> list[SequenceBoard]:
    """The entries under `root` by suite, in the order of the suites. Nothing is played; verification does that.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: an entry is not valid; the message has the first finding.
    """
    entries, findings = verify_all_sequences(root, read_sequences)
    if findings:
        raise DamagedFileError(
            f"{counted(len(findings), 'finding')}, the first: {findings[0]} "
            "All of them: shard-gym leaderboard verify --all."
        )
    groups: dict[str, list[Sequences]] = {}
    for each in entries:
        groups.setdefault(each.folder.suite, []).append(each)
    return [
        SequenceBoard(suite, tuple(sorted(groups[suite], key=_place)))
        for suite in drift_suite_names()
        if suite in groups
    ]


def _place(entry: Sequences) -> tuple[bool, float, str]:
    return not entry.is_replayed, float(entry.excess.mean()), entry.folder.slug


def sequence_tables(boards: Sequence[SequenceBoard]) -> str:
    """One table for each suite."""
    return "\n\n".join(map(_board_table, boards))


def _board_table(board: SequenceBoard) -> str:
    suite, oracle_s = scored_suite(board.suite)
    rows = [_cells(each) for each in board.entries]
    reference = [f"{oracle_s.mean() / 3600:.3f}", *[""] * 4, "looks ahead, no entry", ""]
    rows.append(["oracle: the best sequence, with hindsight", "0.00%", "", *reference])
    about = (
        f"{suite.description} {counted(len(suite), 'task')} of 14 days; a plan takes a pause of {suite[0].pause_s:g} s."
    )
    return collapsed(board.suite, f"{about}\n\n{table(COLUMNS, rows, notes=2)}")


def percent(share: float) -> str:
    """A share in percent; never -0.00%, which a rounding error would be."""
    return f"{100 * (round(share, 6) + 0.0):.2f}%"


def _cells(entry: Sequences) -> list[str]:
    """What the table shows of an entry."""
    excess, seconds = entry.excess, entry.seconds.mean(axis=(0, 1))
    low, high = mean_interval(excess)
    name, link = escaped(entry.entry.name), entry.entry.link
    return [
        f"[{name}]({link})" if link else name,
        percent(float(excess.mean())),
        f"{percent(low)} to {percent(high)}",
        f"{seconds.sum() / 3600:.3f}",
        f"{seconds[1]:,.0f}",
        f"{seconds[2]:,.0f}",
        f"{entry.plans:.1f}",
        f"{entry.repairs:.1f}",
        REPLAYED if entry.is_replayed else NOT_REPLAYED,
        escaped(", ".join(entry.entry.training.data)),
    ]
