"""Competitors: agents with an entry on each of the core suites, compared across suites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard import statistics
from shard_gym.leaderboard.leagues import place_of
from shard_gym.leaderboard.ranking import Leaderboard, RankedEntry
from shard_gym.leaderboard.schema import LEAGUES
from shard_gym.tasks.suites.info import CORE_SUITES


@dataclass(frozen=True, eq=False)
class Competitor:
    """The entries with one folder name, agent and authors on several suites of the simulated track.

    Attributes:
        slug: name of the folders.
        name: of the entry on the first of the suites.
        tasks: number of tasks of all suites.
        iqm: interquartile mean over tasks and seeds of cost / best known cost.
        interval: 95% interval of it.
        ratios: (M,) cost / best known cost of every task and seed.
        gaps: on each of the suites: mean over tasks and seeds of cost / best known cost, less 1.
        training_queries: cost-model evaluations in training, on the suite with the most.
        planning_queries: cost-model evaluations while planning a task, mean over the tasks.
        league: that of its entries; if they differ, the one that allows most.
    """

    slug: str
    name: str
    tasks: int
    iqm: float
    interval: tuple[float, float]
    ratios: FloatArray
    gaps: tuple[float, ...]
    training_queries: int
    planning_queries: float
    league: str

    def share_within(self, ratio: float) -> float:
        """Share of its placements that cost at most `ratio` times the best known."""
        return float(statistics.performance_profile(self.ratios, np.array([ratio]))[0])


def competitors(leaderboards: Sequence[Leaderboard]) -> tuple[tuple[str, ...], list[Competitor]]:
    """The core suites with simulated entries, and the competitors with an entry on every one.

    They come by league, in each the best IQM first.

    Ranking requires all of them, to prevent cherry-picking.
    """
    compared = [each for each in leaderboards if each.suite in CORE_SUITES and each.best is not None]
    found: dict[tuple[str, ...], list[tuple[Leaderboard, RankedEntry]]] = {}
    for leaderboard in compared:
        for ranked in leaderboard.entries:
            entry = ranked.verified.entry
            # The folder name alone does not identify a competitor: others may use it on another suite.
            key = (ranked.verified.folder.slug, entry.agent.name, *sorted(entry.authors))
            found.setdefault(key, []).append((leaderboard, ranked))
    complete = [_competitor(key[0], rows) for key, rows in found.items() if len(rows) == len(compared)]
    suites = tuple(leaderboard.suite for leaderboard in compared)
    return suites, sorted(complete, key=lambda each: (place_of(each.league), each.iqm, each.slug))


def _competitor(slug: str, rows: Sequence[tuple[Leaderboard, RankedEntry]]) -> Competitor:
    ratios = [
        ranked.verified.costs_ms / leaderboard.best.costs_ms
        for leaderboard, ranked in rows
        if leaderboard.best is not None
    ]
    pooled = np.concatenate([each.ravel() for each in ratios])
    entries = [ranked.verified.entry for _, ranked in rows]
    return Competitor(
        slug=slug,
        name=entries[0].name,
        tasks=sum(each.shape[1] for each in ratios),
        iqm=float(statistics.interquartile_mean(pooled[None])[0]),
        interval=statistics.interquartile_mean_interval(ratios),
        ratios=pooled,
        gaps=tuple(float(each.mean()) - 1.0 for each in ratios),
        training_queries=max(entry.training.queries for entry in entries),
        planning_queries=float(
            np.average(
                [entry.planning.queries for entry in entries],
                weights=[len(leaderboard.scorer.suite) for leaderboard, _ in rows],
            )
        ),
        league=LEAGUES[max(place_of(ranked.verified.league) for _, ranked in rows)],
    )
