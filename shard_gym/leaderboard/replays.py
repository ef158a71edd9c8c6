"""Planning times that were taken by replaying, kept in a file beside the entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from shard_gym.files import write_json
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.schema import SCHEMA, ReplayRow, parse_replays
from shard_gym.leaderboard.store import REPLAYED, is_there, read_beside
from shard_gym.leaderboard.verify import Verified

Replays = Mapping[str, ReplayRow]
"""By the names of the entries."""

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
    placed = {each.place.id: each.sha256 for each in entries}
    for name, row in table.entries.items():
        # What else is wrong with an entry that is there is told elsewhere.
        if placed.get(name, row.placements) != row.placements or not is_there(root, name):
            reason = f"It has a time of {name!r}, whose placements are not those it was taken with. {_ANEW}"
            findings.append(Finding(REPLAYED, reason))
    return table.entries, findings


def keep_replays(root: Path, taken: Replays) -> Path:
    """Write the times anew, in the order of the names.

    Raises:
        UnwritablePathError: the disk refuses.
    """
    rows = {name: row.model_dump() for name, row in sorted(taken.items())}
    write_json(root / REPLAYED, {"schema": SCHEMA, "entries": rows})
    return root / REPLAYED
