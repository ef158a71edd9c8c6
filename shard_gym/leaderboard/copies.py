"""How alike answers are: copies, which are equal, and near copies, of which a part was changed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.leaderboard.scorer import Scorer, canonical
from shard_gym.tasks import Answer
from shard_gym.tasks.suites.best_known import best_known, best_known_path

MANY_TASKS = 10
"""On suites with at least so many tasks, two equal sets of answers are copies and not a coincidence."""

MOST = 0.5
"""Share of an entry's answers that are nearly others' (see `Problem.likeness`) from which on it is a near copy."""

LEAST = 0.1
"""Share of an entry's answers that a further source must add to those of the others to be named."""

Item = TypeVar("Item")


def repeated(items: Iterable[tuple[Hashable, Item]]) -> Iterator[tuple[Item, Item]]:
    """From keys and items: each item whose key occurred before, after the first item with that key."""
    seen: dict[Hashable, Item] = {}
    for key, item in items:
        first = seen.setdefault(key, item)
        if first != item:
            yield first, item


def likeness(own: Sequence[Sequence[Any]], sources: Sequence[Sequence[Sequence[Any]]], scorer: Scorer) -> FloatArray:
    """(len(sources), S, N) likeness of each answer to the nearest one of each source; NaN where it says nothing.

    Args:
        own: traits by seed and task, None where there is no answer.
        sources: those of each source.
        scorer: of their suite.
    """
    found = np.full((len(sources), len(own), len(scorer.suite)), np.nan)
    for number, task in enumerate(scorer.suite):
        seeds = [seed for seed, row in enumerate(own) if row[number] is not None]
        answers = [[row[number] for row in rows if row[number] is not None] for rows in sources]
        given = [position for position, rows in enumerate(answers) if rows]
        if not seeds or not given:
            continue
        starts = np.cumsum([0, *(len(answers[position]) for position in given[:-1])])
        mine, others = [own[seed][number] for seed in seeds], [each for rows in answers for each in rows]
        alike = scorer.problem.likeness(mine, others, task, scorer.model)
        found[np.ix_(given, seeds, [number])] = np.maximum.reduceat(alike, starts, axis=1).T[:, :, None]
    return found


def nearest_sources(alike: FloatArray, names: Sequence[str], limits: FloatArray) -> tuple[float, list[str]]:
    """The share of answers that are nearly those of a source, and, if it is large, the sources it takes, nearest first.

    The share is 0 where so many answers say nothing about who copied that fewer than `MANY_TASKS` are left.
    """
    says = ~np.isnan(alike).all(axis=0)
    if not names or says.sum() < (MANY_TASKS if says.size >= MANY_TASKS else 1):
        return 0.0, []
    left = (np.nan_to_num(alike, nan=-1.0) >= limits)[:, says]
    share = float(left.any(axis=0).mean())
    chosen: list[str] = []
    while share >= MOST and left.any():
        best = int(left.sum(axis=1).argmax())
        if left[best].mean() < LEAST and share - left.any(axis=0).mean() >= MOST:
            break
        chosen.append(names[best])
        left &= ~left[best]
    return share, chosen


def share_among(cells: Sequence[Sequence[bytes]], others: Sequence[Sequence[bytes]], answers: int) -> float:
    """Share of answers that are among the others for the same task.

    Args:
        cells: the answers of each task in canonical form, those that say something about who copied.
        others: those of others.
        answers: how many there are, with those that say nothing. The share is 0 where fewer than `MANY_TASKS` are left.
    """
    compared = sum(map(len, cells))
    if compared < min(MANY_TASKS, answers):
        return 0.0
    equal = sum(each in other for own, other in zip(cells, others, strict=True) for each in own)
    return equal / max(1, compared)


def _best_known(scorer: Scorer) -> list[Answer | None]:
    """For each task of the suite the best known answer, if there is one."""
    return _read_best_known(scorer, _stamp(scorer))[0]


def _stamp(scorer: Scorer) -> tuple[Any, ...]:
    """Another one when the file of the best known answers is written."""
    path = best_known_path(scorer.suite.name)
    if not path.exists():
        return (path,)
    found = path.stat()
    return path, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=32)
def _read_best_known(scorer: Scorer, stamp: tuple[Any, ...]) -> tuple[list[Answer | None], list[Any]]:
    """The best known answers, which take long to read and check, and their traits; of a file with this `_stamp`."""
    known = best_known(scorer.suite, scorer.model)
    found = [known[task.name].answer if task.name in known else None for task in scorer.suite]
    traits = (
        None if answer is None else scorer.problem.traits(answer, task)
        for answer, task in zip(found, scorer.suite, strict=True)
    )
    return found, list(traits)


def best_known_cells(scorer: Scorer) -> list[list[bytes]]:
    """For each task of the suite the best known answer in canonical form, if there is one."""
    return [[each] if each else [] for each in canonical([_best_known(scorer)], scorer)[0]]


def best_known_traits(scorer: Scorer) -> list[Any]:
    """The best known answers as they are compared to find near copies; None where there is none."""
    return _read_best_known(scorer, _stamp(scorer))[1]
