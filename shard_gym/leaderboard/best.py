"""Verified entries that beat the best known placements of a suite, and how these get better by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shard_gym.io.files import read_json
from shard_gym.leaderboard.scorer import Scorer, scorer_of
from shard_gym.leaderboard.store import SIMULATED
from shard_gym.leaderboard.verify import SAME, Verified
from shard_gym.placement import Placement
from shard_gym.suites import load_suite, suite_info
from shard_gym.suites.best_known import best_known, best_known_path, write_best_known

HELPED = "improved by entries of the leaderboards: "
"""Begins the part of the sentence about the effort that names them."""


@dataclass(frozen=True, eq=False)
class Better:
    """A placement that is better than the best known one.

    Attributes:
        entry: id of the entry it comes from.
        task: name of the task.
        cost_ms: its cost.
        known_ms: cost of the best known placement; None if none was known.
        placement: (T,) int64.
    """

    entry: str
    task: str
    cost_ms: float
    known_ms: float | None
    placement: Placement


def better_placements(entries: Iterable[Verified]) -> dict[str, list[Better]]:
    """By suite: for each task that an entry of the simulated track places better than is known, the best of them."""
    grouped: dict[str, list[Verified]] = {}
    for each in entries:
        if each.place.track == SIMULATED:
            grouped.setdefault(each.place.suite, []).append(each)
    found = {suite: better_placements_of(scorer_of(suite, SIMULATED), members) for suite, members in grouped.items()}
    return {suite: better for suite, better in found.items() if better}


def better_placements_of(judge: Scorer, entries: Sequence[Verified]) -> list[Better]:
    """For each task of one suite that an entry of the simulated track places better than is known, the best of them."""
    known = {name: best.cost_ms for name, best in best_known(judge.suite, judge.model).items()}
    better = []
    for number, task in enumerate(judge.suite):
        placed = [
            Better(each.place.id, task.name, float(each.costs_ms[position, number]), known.get(task.name), placement)
            for each in entries
            for position, row in enumerate(each.grid.placements)
            if (placement := row[number]) is not None
        ]
        best = min(placed, key=lambda candidate: candidate.cost_ms, default=None)
        if best is not None and (best.known_ms is None or best.cost_ms < best.known_ms * (1 - SAME)):
            better.append(best)
    return better


def update_best_known(suite: str, better: Sequence[Better]) -> Path:
    """Write the best known placements of `suite` anew, with the `better` ones; what is known of other tasks stays.

    Every placement is checked and costed once more; see `write_best_known` for errors.
    """
    judge = scorer_of(suite, SIMULATED)
    new = {each.task: each.placement for each in better}
    placements: dict[str, Placement] = {}
    splits = []
    for split in (load_suite(suite, name) for name in suite_info(suite).tasks):
        known = {name: best.placement for name, best in best_known(split, judge.model).items()}
        found = known | {task.name: new[task.name] for task in split if task.name in new}
        splits += [split] if found else []
        placements |= found
    return write_best_known(splits, placements, judge.model, _how(suite, judge.model.fingerprint, better))


def _how(suite: str, cost_model: str, better: Sequence[Better]) -> str:
    """The sentence about the effort so far, with all entries that helped."""
    path = best_known_path(suite)
    record = read_json(path) if path.exists() else {}
    before, _, helped = (record["how"] if record.get("cost_model") == cost_model else "").partition(HELPED)
    names = sorted({*filter(None, helped.split(", ")), *(each.entry for each in better)})
    return f"{before.removesuffix('; ')}{'; ' if before else ''}{HELPED}{', '.join(names)}"
