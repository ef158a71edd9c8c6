"""How near the entries of the leaderboards are to each other, and forged ones to what they are made from.

Prints the table of docs/results/leaderboard-checks.md, in six minutes: the share of answers that are nearly those of
others.

    python tools/likeness.py [SUITE ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.common.io.markdown import table
from shard_gym.leaderboard.copies import MANY_TASKS, MOST, likeness
from shard_gym.leaderboard.entry import VerifiedEntry, can_replay
from shard_gym.leaderboard.scorer import Scorer, load_scorer
from shard_gym.leaderboard.store import find_entries
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.tasks.problems.placement import alone_ms
from shard_gym.tasks.suites.best_known import best_known

ROOT = Path(__file__).parents[1] / "leaderboards"
Traits = list[list[Any]]
"""Of answers by seed and task."""


def moved(placement: Any, tables: Any, task: Any, rng: np.random.Generator) -> Any:
    """Some tables on other devices."""
    changed = placement.copy()
    others = rng.integers(1, task.num_devices, size=len(tables))
    changed[tables] = (placement[tables] + others) % task.num_devices
    return changed


def one_moved(placement: Any, task: Any, costs: Any, rng: np.random.Generator) -> Any:
    """A table on another device."""
    return moved(placement, rng.integers(len(placement), size=1), task, rng)


def exchanged(placement: Any, task: Any, costs: Any, rng: np.random.Generator) -> Any:
    """Two tables of different devices exchanged."""
    first = rng.integers(len(placement))
    second = rng.choice(np.flatnonzero(placement != placement[first]))
    changed = placement.copy()
    changed[[first, second]] = placement[[second, first]]
    return changed


def three_moved(placement: Any, task: Any, costs: Any, rng: np.random.Generator) -> Any:
    """Three tables on other devices."""
    return moved(placement, rng.choice(len(placement), 3, replace=False), task, rng)


def light_moved(placement: Any, task: Any, costs: Any, rng: np.random.Generator) -> Any:
    """The third of the tables that costs least on other devices."""
    return moved(placement, np.argsort(costs)[: len(costs) // 3], task, rng)


FORGERIES: Mapping[str, Callable[..., Any]] = {
    "a table moved": one_moved,
    "two exchanged": exchanged,
    "three moved": three_moved,
    "lightest third moved": light_moved,
}


def near(own: Traits, sources: Sequence[Traits], scorer: Scorer) -> float:
    """The share of answers that are nearly those of a source, of the answers that say anything."""
    found = np.fmax.reduce(likeness(own, sources, scorer))
    limits = np.array([scorer.problem.near_from(task) for task in scorer.suite])
    return float((found >= limits).sum() / max(1, (~np.isnan(found)).sum()))


def row(board: tuple[str, str], entries: Sequence[VerifiedEntry]) -> tuple[list[str], dict[str, float]]:
    """A row of the table, and the share of each entry by its id."""
    scorer = load_scorer(board[1])
    best = best_known(scorer.suite, scorer.model) if entries[0].folder.rules.leagues else {}
    known = [best[task.name].answer if task.name in best else None for task in scorer.suite]
    answered = zip(known, scorer.suite, strict=True)
    more = [[[None if each is None else scorer.problem.traits(each, task) for each, task in answered]]] if best else []
    found = {
        each.folder.id: near(each.traits, [*(other.traits for other in entries if other is not each), *more], scorer)
        for each in entries
    }
    cells = []
    for replayed in (False, True):
        group = {each.folder.slug: found[each.folder.id] for each in entries if can_replay(each) == replayed}
        slug = max(group, key=lambda each: group[each], default="")
        cells.append(f"{group[slug]:.0%} {slug}" if slug else "")
    for forge in FORGERIES.values():
        rng, forged = np.random.default_rng(0), list[Any]()
        for answer, task in zip(known, scorer.suite, strict=True):
            if isinstance(answer, np.ndarray):
                forged.append(scorer.problem.traits(forge(answer, task, alone_ms(task, scorer.model), rng), task))
        others = [*(each.traits for each in entries), *more]
        cells.append(f"{near([forged], others, scorer):.0%}" if len(forged) == len(scorer.suite) else "")
    tables = [len(scorer.problem.tables_of(task)) for task in scorer.suite]
    return [f"{'/'.join(board)}", f"{np.median(tables):.0f}", *cells], found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", help="only these suites")
    chosen = parser.parse_args().suite
    boards: dict[tuple[str, str], list[VerifiedEntry]] = {}
    for folder in find_entries(ROOT)[0]:
        if not folder.rules.claims and (not chosen or folder.suite in chosen):
            entry = verify_entry(folder)[0]
            assert entry is not None
            boards.setdefault(folder.board, []).append(entry)
    rows, few, copies = [], 0, 0
    for board, entries in boards.items():
        cells, found = row(board, entries)
        if len(load_scorer(board[1]).suite) >= MANY_TASKS:
            rows.append(cells)
            continue
        few += len(found)
        copies += sum(each >= MOST for each in found.values())
    header = ("suite", "T", "trained entry", "replayable entry", *FORGERIES)
    print(table(header, rows))
    print(f"\nOn suites with fewer than {MANY_TASKS} tasks, {copies} of {few} entries are near others.")


if __name__ == "__main__":
    main()
