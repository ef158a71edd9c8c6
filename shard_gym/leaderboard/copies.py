"""Copies: entries whose answers are another's, or nearly."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from shard_gym.common.errors import short_repr
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard.leagues import SEARCH
from shard_gym.leaderboard.names import skeleton
from shard_gym.leaderboard.rows import MANY_TASKS, canonical, repeated
from shard_gym.leaderboard.scorer import Scorer, load_scorer
from shard_gym.leaderboard.store import ENTRY, Finding
from shard_gym.leaderboard.verified import VerifiedEntry, can_replay, is_stochastic
from shard_gym.tasks.problems import Answer
from shard_gym.tasks.suites.best_known import best_known, improved_by

COPY = 0.9
"""Share of an entry's answers that another entry has, too, from which on it is a copy."""

MOST = 0.5
"""Share of an entry's answers that are nearly others' (see `Problem.likeness`) from which on it is a near copy."""

LEAST = 0.1
"""Share of an entry's answers that a further source must add to those of the others to be named."""

BEST_KNOWN = "best known"
"""What near copies of the best known answers name as their source."""


def check_entries_differ(
    entries: Sequence[VerifiedEntry], recompute: bool = True, new: Set[str] = frozenset()
) -> list[Finding]:
    """A finding for each entry with the answers of another one on its track and suite, or a name like it.

    The files do not tell which was first, so both are named. Of a copy, what `Problem.canonical` leaves out, such as
    device numbers, and seeds do not count, and a few tasks may differ. A near copy is an entry, if it names what it is
    near to: then tables list it apart. Only `new` entries, by their ids, can be near copies, or an entry that comes
    later could make one of somebody else invalid.
    """
    names = [((each.folder.board, skeleton(each.entry.name)), each) for each in entries]
    findings = []
    for first, each in repeated(names):
        reason = f"The name {each.entry.name!r} is that of {first.folder.id}, {first.entry.name!r}. Choose another."
        findings.append(Finding(each.folder.file(ENTRY), reason))
    suites: dict[tuple[str, str], list[VerifiedEntry]] = {}
    for each in entries:
        if recompute or not each.folder.rules.claims:
            suites.setdefault(each.folder.board, []).append(each)
    for members in suites.values():
        copies = _copies(members) if len(members[0].answers[0]) >= MANY_TASKS else []
        findings += copies
        findings += _wrong_sources(members)
        refused = {each.file.rpartition("/")[0] for each in copies}
        findings += _unnamed_near_copies([each for each in members if each.folder.id not in refused], new)
    return findings


def _wrong_sources(members: Sequence[VerifiedEntry]) -> list[Finding]:
    """A finding for each entry of a suite that names a source that is no other entry of it."""
    known = {each.folder.id for each in members} | {BEST_KNOWN}
    return [
        Finding(
            each.folder.file(ENTRY),
            f"near names {short_repr(wrong[0])}, but the sources of a near copy are other entries of its suite, by "
            f"their ids, or {BEST_KNOWN!r}.",
        )
        for each in members
        if (wrong := sorted(set(each.entry.near) - (known - {each.folder.id})))
    ]


def _copies(members: Sequence[VerifiedEntry]) -> list[Finding]:
    """A finding for each entry of a suite that has the answers of another one.

    Two exact solvers would count as copies, too; two deterministic agents of ShardGym do not. Nor may an entry outside
    the league `search` have the best known answers, unless they came from it.
    """
    scorer, findings = load_scorer(members[0].folder.suite), []
    known, noun, improved = _best_known_cells(scorer), scorer.problem.noun, improved_by(scorer.suite.name)
    for position, each in enumerate(members):
        share = _share(each, known) if _may_know_nothing(each, improved) else 0.0
        reason = ""
        if share >= COPY:
            reason = f"{share:.0%} of the {noun}s are best known ones, which searches with the cost model found."
        for first in members[:position]:
            share = max(_share(each, first.cells), _share(first, each.cells))
            if not reason and share >= COPY and not _may_agree(each, first):
                reason = f"{share:.0%} of the {noun}s are those of {first.folder.id}, whatever the seeds."
        if reason:
            reason = f"{reason} An entry needs {noun}s of its own."
            findings.append(Finding(each.folder.file(each.folder.answers), reason))
    return findings


def _unnamed_near_copies(members: Sequence[VerifiedEntry], new: Set[str]) -> list[Finding]:
    """A finding for each new entry of a suite that is a near copy of others, and does not name enough of them."""
    findings = []
    for each in (each for each in members if each.folder.id in new and not can_replay(each)):
        share, sources = _nearest(each, members)
        if sources and not _nearest(each, members, set(each.entry.near))[1]:
            noun = load_scorer(each.folder.suite).problem.noun
            literal = ", ".join(f'"{source}"' for source in sources)
            reason = (
                f"{share:.0%} of its {noun}s are nearly those of {' or '.join(sources)}. Say so in its {ENTRY}, and "
                f"tables list it apart: near = [{literal}]."
            )
            findings.append(Finding(each.folder.file(ENTRY), reason))
    return findings


def near_sources(entry: VerifiedEntry, others: Sequence[VerifiedEntry]) -> list[str]:
    """What an entry is a near copy of, the nearest first: ids of other entries of its suite, or `BEST_KNOWN`.

    Nothing for an agent that can be replayed: whoever trusts the declaration has to replay it on all its tasks.
    """
    return [] if can_replay(entry) else _nearest(entry, others)[1]


def to_replay(entries: Sequence[VerifiedEntry], new: Set[str]) -> list[VerifiedEntry]:
    """The new entries that are near others, and are none of near copies only if all their answers are replayed."""
    return [
        each
        for each in entries
        if each.folder.id in new and can_replay(each) and not each.entry.near
        if _nearest(each, [other for other in entries if other.folder.board == each.folder.board])[1]
    ]


def _nearest(
    entry: VerifiedEntry, members: Sequence[VerifiedEntry], named: Set[str] | None = None
) -> tuple[float, list[str]]:
    """The share of an entry's answers that are nearly those of sources, and, if it is large, which, the nearest first.

    Sources are the other `members` of its suite, and the best known answers where they may not be known; or those of
    them that are `named`.
    """
    if named == set():
        return 0.0, []
    scorer = load_scorer(entry.folder.suite)
    others = [each for each in members if each.folder.id != entry.folder.id and not _may_agree(each, entry)]
    sources = {each.folder.id: each.traits for each in others}
    if _may_know_nothing(entry, improved_by(scorer.suite.name)):
        sources[BEST_KNOWN] = [_best_known_traits(scorer)]
    sources = {name: traits for name, traits in sources.items() if named is None or name in named}
    alike = likeness(entry.traits, list(sources.values()), scorer)
    limits = np.array([scorer.problem.near_from(task) for task in scorer.suite])
    share, near = _near_sources(alike, list(sources), limits)
    if near:
        return share, near
    # What an entry adds to the answers of another, such as seeds and plans, hides that it has them all.
    for name, traits in sources.items():
        share, found = _near_sources(likeness(traits, [entry.traits], scorer), [name], limits)
        if found:
            return share, found
    return share, []


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


def _near_sources(alike: FloatArray, names: Sequence[str], limits: FloatArray) -> tuple[float, list[str]]:
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


def _may_know_nothing(entry: VerifiedEntry, improved: Set[str]) -> bool:
    """Whether the best known answers, which are in the package, must not be those of an entry.

    Args:
        entry: which.
        improved: ids of the entries that improved them.
    """
    return entry.league not in (None, SEARCH) and entry.folder.id not in improved


def _may_agree(one: VerifiedEntry, other: VerifiedEntry) -> bool:
    """Whether two deterministic agents of ShardGym made them, which replays confirm.

    For tables of one dim `lane-greedy` is `lookup-greedy`.
    """
    names = {one.entry.agent.name, other.entry.agent.name}
    return len(names) == 2 and not any(map(is_stochastic, names))


def _best_known(scorer: Scorer) -> list[Answer | None]:
    """For each task of the suite the best known answer, if there is one."""
    known = best_known(scorer.suite, scorer.model)
    return [known[task.name].answer if task.name in known else None for task in scorer.suite]


def _best_known_cells(scorer: Scorer) -> list[list[bytes]]:
    """Those in canonical form."""
    return [[each] if each else [] for each in canonical([_best_known(scorer)], scorer)[0]]


def _best_known_traits(scorer: Scorer) -> list[Any]:
    """Those as they are compared to find near copies."""
    found = zip(_best_known(scorer), scorer.suite, strict=True)
    return [None if answer is None else scorer.problem.traits(answer, task) for answer, task in found]


def _share(entry: VerifiedEntry, others: list[list[bytes]]) -> float:
    """Share of an entry's answers that are among the others for the same task.

    It is 0 where so many answers say nothing about who copied that fewer than `MANY_TASKS` are left.
    """
    compared = sum(map(len, entry.cells))
    if compared < min(MANY_TASKS, entry.costs_ms.size - entry.failures):
        return 0.0
    equal = sum(each in other for own, other in zip(entry.cells, others, strict=True) for each in own)
    return equal / max(1, compared)
