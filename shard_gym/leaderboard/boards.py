"""Boards: the entries of a suite in order of rank, and contestants across suites. Tables and the page are made of them.

A board holds what may be compared: one track, one suite, and in the measured track one GPU and one way of measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from shard_gym.cost_models.base import FloatArray
from shard_gym.leaderboard import scores
from shard_gym.leaderboard.best import better_placements_of
from shard_gym.leaderboard.replays import Replays
from shard_gym.leaderboard.scorer import Scorer, scorer_of
from shard_gym.leaderboard.store import MEASURED, SIMULATED
from shard_gym.leaderboard.verify import Verified
from shard_gym.placement import Placement
from shard_gym.suites import suite_info, suite_names
from shard_gym.suites.best_known import best_known, best_known_effort
from shard_gym.text import slug

IN_TURN = "in-turn"


@dataclass(frozen=True, eq=False)
class Scored:
    """An entry with what it scores on its board.

    Attributes:
        verified: the entry.
        mean_cost_ms: over seeds and tasks, failures charged.
        interval_ms: 95% interval of it.
        gap: mean of cost / best known cost, less 1; None where there are no best known costs.
        improvement_over_next: probability that it is better than the entry of the next rank; None of the last.
        replayed_seconds: median planning time of a task when the agent was run again; None if it was not.
    """

    verified: Verified
    mean_cost_ms: float
    interval_ms: tuple[float, float]
    gap: float | None
    improvement_over_next: float | None
    replayed_seconds: float | None


@dataclass(frozen=True, eq=False)
class Best:
    """The best placements of a suite's tasks that anybody knows, entries of its board included.

    Attributes:
        ms: (N,) float64, their costs.
        placements: N of them.
        effort: how they were found, words.
    """

    ms: FloatArray
    placements: tuple[Placement, ...]
    effort: str


@dataclass(frozen=True, eq=False)
class Board:
    """The entries that are ranked together.

    Attributes:
        track: of all of them.
        suite: name of the suite.
        hardware: in the measured track what was measured; else what the tasks are placed on.
        judge: of the suite.
        best: the best placements known; None if there is none for every task.
        entries: the best first.
    """

    track: str
    suite: str
    hardware: str
    judge: Scorer
    best: Best | None
    entries: tuple[Scored, ...]

    @cached_property
    def lower_bounds_ms(self) -> list[float] | None:
        """Of each task; None of measured costs, which have none."""
        if self.track == MEASURED:
            return None
        return [self.judge.lower_bound(number) for number in range(len(self.judge.suite))]


def boards(entries: Iterable[Verified], replays: Replays = MappingProxyType({})) -> list[Board]:
    """The boards of these entries: the simulated ones first, the suites in their order."""
    grouped: dict[tuple[str, str, str], list[Verified]] = {}
    for each in entries:
        grouped.setdefault((each.place.track, slug(_measured_on(each)), each.place.suite), []).append(each)
    order = {name: number for number, name in enumerate(suite_names())}
    keys = sorted(grouped, key=lambda key: (key[0] != SIMULATED, key[1], order[key[2]]))
    return [_board(track, suite, grouped[track, hardware, suite], replays) for track, hardware, suite in keys]


def _measured_on(each: Verified) -> str:
    """The GPU, and how it was measured where that is not the usual; empty in the simulated track."""
    hardware = each.entry.hardware
    return (hardware.gpu or "") + (" (in turn)" if hardware.layout == IN_TURN else "")


def _board(track: str, suite: str, entries: Sequence[Verified], replays: Replays) -> Board:
    judge = scorer_of(suite, track)
    best = _best(judge, entries) if track == SIMULATED else None
    ranked = sorted(entries, key=lambda each: (float(each.costs_ms.mean()), each.place.slug))
    scored = []
    for each, after in zip(ranked, [*ranked[1:], None], strict=True):
        scored.append(
            Scored(
                each,
                mean_cost_ms=float(each.costs_ms.mean()),
                interval_ms=scores.mean_interval(each.costs_ms),
                gap=None if best is None else scores.gap(each.costs_ms, best.ms),
                improvement_over_next=None if after is None else scores.improvement(each.costs_ms, after.costs_ms),
                replayed_seconds=replays[each.place.id].seconds if each.place.id in replays else None,
            )
        )
    hardware = _measured_on(entries[0]) or suite_info(suite).hardware
    return Board(track, suite, hardware, judge, best, tuple(scored))


def _best(judge: Scorer, entries: Sequence[Verified]) -> Best | None:
    """None if a task has neither a best known placement nor one of an entry."""
    known = best_known(judge.suite, judge.model)
    better = {each.task: each for each in better_placements_of(judge, entries)}
    names = [task.name for task in judge.suite]
    if not all(name in known or name in better for name in names):
        return None
    found = [better[name] if name in better else known[name] for name in names]
    return Best(
        np.array([each.cost_ms for each in found]),
        tuple(each.placement for each in found),
        best_known_effort(judge.suite.name) if known else "",
    )


@dataclass(frozen=True, eq=False)
class Competitor:
    """The entries of one folder name, agent and authors on several suites of the simulated track.

    Attributes:
        slug: the folder's name.
        name: as the first of the entries is called.
        suites: names of the suites it has an entry on.
        tasks: how many tasks they have together.
        iqm: interquartile mean over tasks and seeds of cost / best known cost.
        interval: 95% interval of it.
        shares: its performance profile, for each of `scores.TAUS`.
        ratios: (M,) cost / best known cost of every task and seed.
        training_queries: true costs asked in training; of the suite with the most.
        planning_queries: true costs asked for a task while planning, mean over the tasks.
    """

    slug: str
    name: str
    suites: tuple[str, ...]
    tasks: int
    iqm: float
    interval: tuple[float, float]
    shares: FloatArray
    ratios: FloatArray
    training_queries: int
    planning_queries: float

    def share_within(self, ratio: float) -> float:
        """Share of its placements that cost at most `ratio` times the best known."""
        return float(scores.profile(self.ratios, np.array([ratio]))[0])


def contestants(of: Sequence[Board]) -> tuple[tuple[str, ...], list[Competitor]]:
    """The suites compared on, and who has an entry on every one of them, the best interquartile mean first.

    Compared are all suites with an entry of the simulated track. Who left one out is not ranked here: a mean over the
    suites of one's own choice could be as good as one likes.
    """
    compared = [board for board in of if board.track == SIMULATED and board.best is not None]
    found: dict[tuple[str, ...], list[tuple[Board, Scored]]] = {}
    for board in compared:
        for scored in board.entries:
            entry = scored.verified.entry
            # A folder name alone can be taken on one suite by somebody else.
            who = (scored.verified.place.slug, entry.agent.name, *sorted(entry.authors))
            found.setdefault(who, []).append((board, scored))
    ranked = [_contestant(who[0], rows) for who, rows in found.items() if len(rows) == len(compared)]
    suites = tuple(board.suite for board in compared)
    return suites, sorted(ranked, key=lambda each: (each.iqm, each.slug))


def _contestant(slug: str, rows: Sequence[tuple[Board, Scored]]) -> Competitor:
    ratios = [scored.verified.costs_ms / board.best.ms for board, scored in rows if board.best is not None]
    pooled = np.concatenate([each.ravel() for each in ratios])
    return Competitor(
        slug=slug,
        name=rows[0][1].verified.entry.name,
        suites=tuple(board.suite for board, _ in rows),
        tasks=sum(each.shape[1] for each in ratios),
        iqm=float(scores.interquartile_mean(pooled[None])[0]),
        interval=scores.interquartile_mean_interval(ratios),
        shares=scores.profile(pooled),
        ratios=pooled,
        training_queries=max(scored.verified.entry.training.queries for _, scored in rows),
        planning_queries=float(
            np.average(
                [scored.verified.entry.planning.queries for _, scored in rows],
                weights=[len(board.judge.suite) for board, _ in rows],
            )
        ),
    )
