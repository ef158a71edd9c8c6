"""Leaderboards: the entries of a suite by rank, competitors across suites, and best known answers that entries improve.

A leaderboard holds entries that may be compared: those of a suite, and in the measured track those of one race. A
competitor is an agent with an entry on each of the core suites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import DamagedFileError
from shard_gym.common.jobs import run_jobs
from shard_gym.common.text import counted
from shard_gym.leaderboard import statistics
from shard_gym.leaderboard.entry import FreshTable, VerifiedEntry
from shard_gym.leaderboard.fresh import FreshGap, fresh_gap, gaps_of, read_fresh
from shard_gym.leaderboard.leagues import LEAGUES, place_of
from shard_gym.leaderboard.measured_track import VerifiedRace, read_races
from shard_gym.leaderboard.replay import Replays, read_replays
from shard_gym.leaderboard.scorer import TOLERANCE, Scorer, load_scorer
from shard_gym.leaderboard.store import TRACKS, Track
from shard_gym.leaderboard.verify import Run, verify_all
from shard_gym.tasks import Answer, load_suite, suite_info, suite_names
from shard_gym.tasks.suites.best_known import (
    IMPROVED_BY,
    BestKnown,
    best_known,
    best_known_costs,
    best_known_effort,
    improved_by,
    write_best_known,
)
from shard_gym.tasks.suites.bounds import lower_bounds_effort
from shard_gym.tasks.suites.gaps import ProvenGap, proven_gap
from shard_gym.tasks.suites.info import CORE_SUITES, MEASURED

MS_PER_HOUR = 3.6e6

SOLVED = 0.02
"""A suite is solved where an entry that asks for no cost while planning is within this share of the proven bounds."""


@dataclass(frozen=True, eq=False)
class RankedEntry:
    """An entry and its scores on its leaderboard.

    Attributes:
        verified: the entry; in a race its seed 0, with the measured costs.
        mean_cost_ms: mean over seeds and tasks, failures charged with the penalty.
        interval_ms: 95% interval of that mean.
        gap: mean of cost / best known cost, less 1; None without best known costs.
        gap_interval: 95% interval of that, where it ranks entries (see `Problem.bounds_are_reached`).
        gap_of_answers: the same of the seeds and tasks with an answer; None without any.
        improvement_over_next: probability that it costs less than the entry of the next rank of its league; None for
            the last one.
        replayed_seconds: median planning time of a task when the agent was replayed; None if it was not.
        ratio: in a race the mean cost divided by that of the cheapest entry.
        ratio_interval: 95% interval of that.
        fresh: how far its agent is from the best answers known to fresh tasks; None where it did not answer any.
    """

    verified: VerifiedEntry
    mean_cost_ms: float
    interval_ms: tuple[float, float]
    gap: float | None
    improvement_over_next: float | None
    replayed_seconds: float | None
    gap_of_answers: float | None = None
    gap_interval: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    fresh: FreshGap | None = None

    @property
    def league(self) -> str | None:
        """That of the entry; None in tracks without."""
        return self.verified.league

    @property
    def falls(self) -> bool:
        """Whether it learns, and its gap grows on fresh tasks by more than chance."""
        return self.fresh is not None and self.fresh.falls and self.verified.entry.agent.learns


@dataclass(frozen=True, eq=False)
class BestAnswers:
    """The best answers known to a suite's N tasks, entries of its leaderboard included.

    Attributes:
        costs_ms: (N,) float64.
        answers: N of them; empty where only the costs are known.
        effort: how they were found, in words.
    """

    costs_ms: FloatArray
    answers: tuple[Answer, ...]
    effort: str


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Entries that are ranked together.

    Attributes:
        track: of all of them.
        hardware: the machine of the race; without a race the hardware that the tasks are placed on.
        scorer: of the suite; of its tasks as they were measured if there is a race.
        best: the best answers known; None if a task has none, and in the measured track.
        entries: by rank, the best first, the leagues one after the other; where agents could look ahead, those that
            were replayed before the others.
        race: in the measured track, if there is one.
        not_raced: entries of the measured track that are not in the race.
        near: near copies of entries or of the best known answers, in the order of the entries; without a rank.
    """

    track: str
    hardware: str
    scorer: Scorer
    best: BestAnswers | None
    entries: tuple[RankedEntry, ...]
    race: VerifiedRace | None = None
    not_raced: tuple[VerifiedEntry, ...] = ()
    near: tuple[RankedEntry, ...] = ()

    @property
    def listed(self) -> tuple[RankedEntry, ...]:
        """The entries, and below them the near copies."""
        return *self.entries, *self.near

    @property
    def rules(self) -> Track:
        """What holds in the track."""
        return TRACKS[self.track]

    @property
    def suite(self) -> str:
        """Name of the suite."""
        return self.scorer.suite.name

    @property
    def proven_gap(self) -> ProvenGap | None:
        """How far the best placements known, entries included, are from proven bounds; None if one is not known."""
        suite, best = self.scorer.suite, self.best
        costs = {} if best is None else dict(zip((task.name for task in suite), best.costs_ms.tolist(), strict=True))
        return proven_gap(suite, self.scorer.model, costs)

    def smallest_gap(self, league: str, *, learns: bool = True) -> float | None:
        """The smallest gap to the best known answers of those entries of `league` that fail on no task, if any.

        With `learns=False` of those that are not trained.
        """
        entries = [each for each in self.entries if each.league == league and not each.verified.failures]
        if not learns:
            entries = [each for each in entries if not each.verified.entry.agent.learns]
        return min((each.gap for each in entries if each.gap is not None), default=None)

    @property
    def floor(self) -> float | None:
        """The gap of the best rule, an entry that asks for no cost while planning and is not trained; None without one.

        What learning can gain begins there.
        """
        return self.smallest_gap(LEAGUES[0], learns=False)

    @property
    def is_solved(self) -> bool:
        """Whether an entry of the first league is within `SOLVED` of the proven bounds, mean over tasks and seeds."""
        bounds = self.scorer.shipped_bounds
        if len(bounds) < len(self.scorer.suite):
            return False
        lowest = np.array([bounds[task.name] for task in self.scorer.suite])
        own = [each.verified.costs_ms for each in self.entries if each.league == LEAGUES[0]]
        return any((costs / lowest).mean() - 1.0 <= SOLVED for costs in own)

    @property
    def status(self) -> str:
        """ "solved"; "open": no rule is within `SOLVED` of the best known answers; else "undecided".

        Where no rule answers all tasks, trained entries of the first league count.
        """
        if self.is_solved:
            return "solved"
        floor = self.smallest_gap(LEAGUES[0]) if self.floor is None else self.floor
        return "open" if (floor or 0.0) > SOLVED else "undecided"

    @property
    def how_solved(self) -> str:
        """Sentences on how far the best placements known are from proven bounds, and the first league from them."""
        sentences = (
            ["**Solved.** Its first ranks tell entries apart by less than the bounds do."] if self.is_solved else []
        )
        sentences.append(str(self.proven_gap or "No proven bounds of all its tasks are stored yet."))
        gap, floor = self.smallest_gap(LEAGUES[0]), self.floor
        if gap is not None:
            noun = self.scorer.problem.noun
            rule = "" if floor is None or floor == gap else f", and the best rule {100 * floor:.2f}%"
            sentences.append(
                f"The best {LEAGUES[0]} entry costs {100 * gap:.2f}% more than the best known {noun}s{rule}."
            )
        return " ".join(sentences)


def load_leaderboards(root: Path, run: Run = run_jobs) -> list[Leaderboard]:
    """The leaderboards of the entries under `root`, all verified, by track and suite in their order.

    What rows of answers claim is believed; `verify_all` computes it again.

    Args:
        root: the folder of the leaderboards.
        run: see `verify_folders`.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: an entry or a race is not valid; the message has the first finding.
    """
    entries, findings = verify_all(root, recompute=False, run=run)
    replays, stale = read_replays(root, entries)
    races, wrong = read_races(root, entries)
    fresh, unfit = read_fresh(root, entries)
    findings += stale + wrong + unfit
    if findings:
        raise DamagedFileError(
            f"{counted(len(findings), 'finding')}, the first: {findings[0]} "
            "All of them: shard-gym leaderboard verify --all."
        )
    groups: dict[tuple[str, str], list[VerifiedEntry]] = {}
    for each in entries:
        groups.setdefault(each.folder.board, []).append(each)
    leaderboards = []
    for track, rules in TRACKS.items():
        for suite in suite_names():
            members = groups.get((track, suite))
            if members and rules.scored:
                leaderboards.append(make_leaderboard(load_scorer(suite), members, replays, fresh))
            elif members:
                own = [race_leaderboard(each, members) for each in races if each.folder.suite == suite]
                hardware = suite_info(suite).hardware
                leaderboards += own or [
                    Leaderboard(MEASURED, hardware, load_scorer(suite), None, (), not_raced=tuple(members))
                ]
    return leaderboards


def race_leaderboard(verified: VerifiedRace, entries: Sequence[VerifiedEntry]) -> Leaderboard:
    """The leaderboard of a race; `entries` are those of the suite's measured track."""
    race, by_slug = verified.race, {each.folder.slug: each for each in entries}
    costs = dict(zip(race.answers, np.median(race.costs_ms(), axis=2), strict=True))
    ranked = [
        RankedEntry(
            replace(by_slug[each.entry], answers=[race.measured_answers(each.entry)], costs_ms=costs[each.entry][None]),
            mean_cost_ms=each.mean_ms,
            interval_ms=each.interval_ms,
            gap=None,
            improvement_over_next=each.beats_next,
            replayed_seconds=None,
            ratio=each.ratio,
            ratio_interval=each.ratio_interval,
        )
        for each in race.results({each.folder.slug for each in entries if each.entry.near})
    ]
    not_raced = tuple(each for each in entries if each.folder.slug not in race.answers)
    own, near = _with_and_without_rank(ranked)
    return Leaderboard(MEASURED, race.hardware, Scorer(race.suite), None, own, verified, not_raced, near)


def make_leaderboard(
    scorer: Scorer, entries: Sequence[VerifiedEntry], replays: Replays, fresh: FreshTable | None = None
) -> Leaderboard:
    """The leaderboard of the entries of one suite that the cost model scores, at least one."""
    best, rules = _best_answers(scorer, entries), entries[0].folder.rules
    by_gap = best is not None and scorer.problem.bounds_are_reached

    def place(entry: VerifiedEntry) -> tuple[bool, int, float, str]:
        ratios = entry.costs_ms / best.costs_ms if by_gap and best is not None else entry.costs_ms
        unseen = rules.looks_ahead and entry.folder.id not in replays
        return unseen, place_of(entry.league), float(ratios.mean()), entry.folder.slug

    ordered = sorted(entries, key=lambda each: (bool(each.entry.near), place(each)))
    found = {} if best is None or fresh is None else _fresh_gaps(entries, best, fresh)
    ranked = []
    for each, after in zip(ordered, [*ordered[1:], None], strict=True):
        over = None
        if after is not None and after.league == each.league and not after.entry.near:
            over = statistics.probability_of_improvement(each.costs_ms, after.costs_ms)
        gaps = None if best is None else each.costs_ms / best.costs_ms - 1.0
        ranked.append(
            RankedEntry(
                each,
                mean_cost_ms=float(each.costs_ms.mean()),
                interval_ms=statistics.mean_interval(each.costs_ms),
                gap=None if best is None else float((each.costs_ms / best.costs_ms).mean() - 1.0),
                gap_of_answers=_gap_of_answers(each, best),
                gap_interval=statistics.mean_interval(gaps) if by_gap and gaps is not None else None,
                improvement_over_next=over,
                replayed_seconds=replays[each.folder.id].seconds if each.folder.id in replays else None,
                fresh=found.get(each.folder.id),
            )
        )
    hardware = suite_info(scorer.suite.name).hardware
    own, near = _with_and_without_rank(ranked)
    return Leaderboard(entries[0].folder.track, hardware, scorer, best, own, near=near)


def _with_and_without_rank(entries: Sequence[RankedEntry]) -> tuple[tuple[RankedEntry, ...], tuple[RankedEntry, ...]]:
    """The entries that are no near copies, and those that are."""
    own, near = (tuple(each for each in entries if bool(each.verified.entry.near) == apart) for apart in (False, True))
    return own, near


def _fresh_gaps(entries: Sequence[VerifiedEntry], best: BestAnswers, table: FreshTable) -> dict[str, FreshGap]:
    """How the agents of entries do on fresh tasks, by id, compared with those that need no training."""
    run = [each for each in entries if each.folder.id in table.entries]
    gaps = {each.folder.id: gaps_of(table, each.folder.id, each.folder.suite, best.costs_ms) for each in run}
    controls = [gaps[each.folder.id] for each in run if not each.entry.agent.learns]
    found = {name: fresh_gap(each, controls) for name, each in gaps.items()}
    return {name: each for name, each in found.items() if each is not None}


def _gap_of_answers(entry: VerifiedEntry, best: BestAnswers | None) -> float | None:
    answered = np.array([[answer is not None for answer in row] for row in entry.answers])
    if best is None or not answered.any():
        return None
    return float((entry.costs_ms / best.costs_ms)[answered].mean() - 1.0)


def _best_answers(scorer: Scorer, entries: Sequence[VerifiedEntry]) -> BestAnswers | None:
    """None if a task has neither a best known cost nor an answer in an entry."""
    if scorer.problem.bounds_are_reached:
        costs = best_known_costs(scorer.suite, scorer.model)
        lowest = np.array([costs.get(task.name, np.nan) for task in scorer.suite])
        return None if np.isnan(lowest).any() else BestAnswers(lowest, (), lower_bounds_effort(scorer.suite.name))
    known = best_known(scorer.suite, scorer.model)
    best = {**known, **_improvements(scorer, entries, known)}
    if len(best) < len(scorer.suite):
        return None
    ordered = [best[task.name] for task in scorer.suite]
    return BestAnswers(
        np.array([each.cost_ms for each in ordered]),
        tuple(each.answer for each in ordered),
        best_known_effort(scorer.suite.name) if known else "",
    )


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


@dataclass(frozen=True, eq=False)
class Improvement(BestKnown):
    """A placement in an entry that is better than the best known one.

    Attributes:
        entry: id of the entry.
    """

    entry: str


Improvements = Mapping[str, Improvement]
"""By name of the task: the best placement, where it is better than the best known one."""


def improvements(entries: Iterable[VerifiedEntry]) -> dict[str, Improvements]:
    """Where entries improve the best known answers, by name of the suite."""
    groups: dict[str, list[VerifiedEntry]] = {}
    for each in entries:
        if each.folder.rules.leagues:
            groups.setdefault(each.folder.suite, []).append(each)
    found = {}
    for suite, members in groups.items():
        scorer = load_scorer(suite)
        found[suite] = _improvements(scorer, members, best_known(scorer.suite, scorer.model))
    return {suite: better for suite, better in found.items() if better}


def _improvements(
    scorer: Scorer, entries: Sequence[VerifiedEntry], known: Mapping[str, BestKnown]
) -> Mapping[str, Improvement]:
    """`improvements` of one suite; near copies improve nothing."""
    found = {}
    for number, task in enumerate(scorer.suite):
        candidates = [
            Improvement(float(costs[number]), answer, each.folder.id)
            for each in entries
            if not each.entry.near
            for costs, row in zip(each.costs_ms, each.answers, strict=True)
            if (answer := row[number]) is not None
        ]
        limit = known[task.name].cost_ms * (1 - TOLERANCE) if task.name in known else math.inf
        best = min(candidates, key=lambda candidate: candidate.cost_ms, default=None)
        if best is not None and best.cost_ms < limit:
            found[task.name] = best
    return found


def update_best_known(suite: str, better: Improvements) -> Path:
    """Write the file of the best known placements of `suite` with the improvements; other tasks keep theirs.

    Every placement is checked and costed again; see `write_best_known` for errors.
    """
    model = load_scorer(suite).model
    splits = [load_suite(suite, name) for name in suite_info(suite).tasks]
    known = {name: best for split in splits for name, best in best_known(split, model).items()}
    answers = {name: best.answer for name, best in {**known, **better}.items()}
    splits = [split for split in splits if any(task.name in answers for task in split)]
    # The sentence about the search effort so far, and all entries that improved a placement.
    clauses = best_known_effort(suite).split("; ") if known else []
    names = {*(improved_by(suite) if known else ()), *(each.entry for each in better.values())}
    others = [each for each in clauses if each and not each.startswith(IMPROVED_BY)]
    return write_best_known(splits, answers, model, "; ".join([*others, IMPROVED_BY + ", ".join(sorted(names))]))
