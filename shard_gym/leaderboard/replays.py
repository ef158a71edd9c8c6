"""Planning times that were taken by replaying, kept in a file beside the entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from shard_gym.errors import short_repr
from shard_gym.io.files import write_json
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.replay import can_replay
from shard_gym.leaderboard.schema import SCHEMA, ReplayRow, parse_replays
from shard_gym.leaderboard.store import REPLAYED, is_there, read_beside
from shard_gym.leaderboard.verify import Verified

Replays = Mapping[str, ReplayRow]
"""By the names of the entries."""

_OTHERS = "whose placements are not those it was taken with."
_ANEW = "Take them anew with: shard-gym leaderboard verify --all --replay 5 --keep-times."


def read_replays(root: Path, entries: Iterable[Verified]) -> tuple[Replays, list[Finding]]:
    """The times kept under `root`, nothing if there is no file; and what is wrong with them.

    A time counts for the placements it was taken with: one of an entry that changed or is gone is found.
    """
    content, findings = read_beside(root, REPLAYED)
    if content is None:
        return {}, findings
    table, findings = parse_replays(content)
    if table is None:
        return {}, findings
    known = {each.place.id: each for each in entries}
    for name, row in table.entries.items():
        wrong = _wrong(row, known[name]) if name in known else "" if is_there(root, name) else _OTHERS
        if wrong:  # what is wrong with an entry that is there and does not hold is told elsewhere
            findings.append(Finding(REPLAYED, f"It has a time of {short_repr(name)}, {wrong} {_ANEW}"))
    return table.entries, findings


def _wrong(row: ReplayRow, entry: Verified) -> str:
    """Why a time cannot be that of an entry; empty if it can."""
    if row.placements != entry.sha256:
        return _OTHERS
    if not can_replay(entry):
        return "whose agent does not come with ShardGym as it is declared."
    if row.tasks > len(entry.grid.placements[0]):
        return f"taken with {row.tasks} tasks, but there are {len(entry.grid.placements[0])}."
    return ""


def keep_replays(root: Path, taken: Replays) -> Path:
    """Write the times anew, in the order of the names.

    Raises:
        UnwritablePathError: the disk refuses.
    """
    rows = {name: row.model_dump() for name, row in sorted(taken.items())}
    write_json(root / REPLAYED, {"schema": SCHEMA, "entries": rows})
    return root / REPLAYED
