"""Verification: everything an entry says that can be recomputed is, and every difference is listed with its place."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shard_gym.agents import AGENTS, PAPER_HEURISTICS
from shard_gym.agents.training.registry import LEARNERS
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import DamagedFileError, UnknownNameError, short_repr
from shard_gym.io.files import sha256_of
from shard_gym.leaderboard.findings import Finding, shortened
from shard_gym.leaderboard.grid import Cell, Grid, arrange, check_rows, check_timing, timed_cost
from shard_gym.leaderboard.schema import ONE_SEED, SEEDS, Entry, TimingRow, parse_entry, parse_placements, parse_timings
from shard_gym.leaderboard.scorer import SCORED_BY, Scorer, scorer_of
from shard_gym.leaderboard.store import ENTRY, MEASURED, PLACEMENTS, TIMINGS, Place, find_entries, read_files
from shard_gym.leaderboard.training_data import objections

SAME = 1e-9
"""Relative difference of two costs that are the same but for rounding."""

MANY_TASKS = 10
"""From so many tasks on, two seeds of an agent that uses chance do not end with the same placements everywhere."""

WITHOUT_CHANCE = (*PAPER_HEURISTICS, "cost-greedy")
"""The agents of ShardGym that use none; all others of `AGENTS` and `LEARNERS` do."""

OnEntry = Callable[[Place], None]


@dataclass(frozen=True, eq=False)
class Verified:
    """An entry that holds.

    Attributes:
        place: where it is.
        entry: what it says.
        grid: its placements.
        costs_ms: (S, N) float64, ms of each seed and task, the penalty where nothing was placed.
        sha256: of `placements.json`.
    """

    place: Place
    entry: Entry
    grid: Grid
    costs_ms: FloatArray
    sha256: str


def verify_entry(place: Place) -> tuple[Verified | None, list[Finding]]:
    """The entry if it holds, and otherwise all that is wrong with it."""
    files, findings = read_files(place)
    entry, wrong = parse_entry(files[ENTRY], place) if ENTRY in files else (None, [])
    findings += wrong
    rows, wrong = parse_placements(files[PLACEMENTS], place) if PLACEMENTS in files else (None, [])
    findings += wrong
    timings: list[TimingRow] | None = None
    if TIMINGS in files:
        timings, wrong = parse_timings(files[TIMINGS], place)
        findings += wrong
    try:
        judge = scorer_of(place.suite, place.track)
    except (UnknownNameError, DamagedFileError) as error:
        reason = f"Its suite {place.suite!r} cannot be judged: {error}"
        return None, shortened([*findings, Finding(place.id, reason)])
    chance = entry.agent.uses_chance if entry is not None else any(row.seed for row in rows or ())
    if entry is not None:
        findings += [Finding(place.named(ENTRY), reason) for reason in _declared(entry, place, judge)]
    grid: Grid | None = None
    if rows is not None:
        file, seeds = place.named(PLACEMENTS), SEEDS if chance else ONE_SEED
        cells, wrong = arrange(rows, judge.suite, seeds, file)
        grid, invalid = check_rows(cells, judge.suite, seeds, file)
        findings += [*wrong, *invalid, *(_draws(grid, file) if chance else ())]
    costs: FloatArray | None = None
    if grid is not None:
        if place.track == MEASURED:
            costs, wrong = _measured_costs(timings, grid, judge, place)
            findings += wrong
        else:
            costs = _costs(grid, judge)
        if entry is not None and costs is not None and not findings:
            findings += _scores(entry, grid, costs, place)
    if findings or entry is None or grid is None or costs is None:
        return None, shortened(findings)
    return Verified(place, entry, grid, costs, sha256_of(files[PLACEMENTS])), []


def _declared(entry: Entry, place: Place, judge: Scorer) -> list[str]:
    """What in `entry.toml` is not as its folder, the suite and the rules say."""
    wrong = []
    suite = judge.suite
    for key, said, wanted in (
        ("track", entry.track, place.track),
        ("suite.name", entry.suite.name, place.suite),
        ("cost_model.name", entry.cost_model.name, SCORED_BY[place.track]),
    ):
        if said != wanted:
            wrong.append(
                f"{key} is {said!r}, but the entry stands in {place.track}/{place.suite}, where it is {wanted!r}."
            )
    for key, said, wanted in (
        ("suite.sha256", entry.suite.sha256, suite.sha256),
        ("cost_model.sha256", entry.cost_model.sha256, judge.cost_model_sha256),
    ):
        if said != wanted:
            wrong.append(f"{key} is {said}, but here it is {wanted}. Place the tasks as they are now.")
    chance, asked = entry.agent.uses_chance, list(SEEDS if entry.agent.uses_chance else ONE_SEED)
    if entry.seeds != asked:
        kind = "uses chance" if chance else "uses no chance"
        wrong.append(f"seeds are {short_repr(entry.seeds)}, but an agent that {kind} has exactly the seeds {asked}.")
    name = entry.agent.name
    if name in {*AGENTS, *LEARNERS} and chance == (name in WITHOUT_CHANCE):
        wrong.append(
            f"agent.uses_chance is {str(chance).lower()}, but ShardGym's agent {name!r} "
            f"{'uses none' if chance else 'does use chance'}."
        )
    if name in {*AGENTS, *LEARNERS} and entry.agent.learns != (name in LEARNERS):
        kind = "learns" if name in LEARNERS else "does not learn"
        wrong.append(f"agent.learns is {str(entry.agent.learns).lower()}, but ShardGym's agent {name!r} {kind}.")
    return [*wrong, *objections(entry.training.data, suite.name)]


def _draws(grid: Grid, file: str) -> list[Finding]:
    """Seeds of an agent that uses chance are draws of their own, not one draw handed in again."""
    twins = grid.repeated() if len(grid.placements[0]) >= MANY_TASKS else None
    if twins is None:
        return []
    reason = (
        f"The placements of seed {twins[1]} are those of seed {twins[0]} on every task. Run each seed anew; "
        "an agent that another seed does not change declares agent.uses_chance = false, and has one."
    )
    return [Finding(file, reason, seed=twins[1])]


def _costs(grid: Grid, judge: Scorer) -> FloatArray:
    """(S, N) ms by the cost model, the penalty where nothing was placed."""
    costs = np.tile(judge.penalties, (len(grid.seeds), 1))
    for number in range(costs.shape[1]):
        placed = [position for position, row in enumerate(grid.placements) if row[number] is not None]
        if placed:
            stacked = np.stack([_there(grid.placements[position][number]) for position in placed])
            costs[placed, number] = judge.costs(number, stacked)
    return costs


def _there(value: np.ndarray | None) -> np.ndarray:
    assert value is not None
    return value


def _measured_costs(
    timings: list[TimingRow] | None, grid: Grid, judge: Scorer, place: Place
) -> tuple[FloatArray | None, list[Finding]]:
    """(S, N) ms from the raw timings, the penalty where nothing was placed."""
    if timings is None:
        return None, []
    file = place.named(TIMINGS)
    cells: dict[Cell, TimingRow]
    cells, findings = arrange(timings, judge.suite, grid.seeds, file)
    costs = np.tile(judge.penalties, (len(grid.seeds), 1))
    seen: dict[str, str] = {}
    for (position, number), row in cells.items():
        task, placement = judge.suite[number], grid.placements[position][number]
        wrong = check_timing(row, task, placement, float(judge.penalties[number]))
        twin = seen.setdefault(json.dumps(row.phases_ms), task.name) if row.phases_ms else task.name
        if not wrong and twin != task.name:
            wrong = f"Its timings are those of task {twin}, to the last digit."
        if wrong:
            findings.append(Finding(file, wrong, task.name, row.seed))
        elif placement is not None:
            costs[position, number] = timed_cost(row)
    return costs, findings


def _scores(entry: Entry, grid: Grid, costs: FloatArray, place: Place) -> list[Finding]:
    """Claims that are not what the placements say."""
    file, said, found = place.named(ENTRY), entry.scores, float(costs.mean())
    findings = []
    if abs(said.mean_cost_ms - found) > SAME * found:
        findings.append(Finding(file, f"scores.mean_cost_ms is {said.mean_cost_ms}, but the placements cost {found}."))
    if said.failures != grid.failures:
        reason = f"scores.failures is {said.failures}, but {grid.failures} of the placements say null."
        findings.append(Finding(file, reason))
    return findings


def verify_all(root: Path, on_entry: OnEntry | None = None) -> tuple[list[Verified], list[Finding]]:
    """Every entry under `root` that holds, in the order of their places, and all that is wrong with the others.

    Args:
        root: the folder of the leaderboards.
        on_entry: called after each entry.

    Raises:
        InvalidOptionError: there is no such folder.
    """
    places, findings = find_entries(root)
    entries = []
    for place in places:
        verified, wrong = verify_entry(place)
        findings += wrong
        if verified is not None:
            entries.append(verified)
        if on_entry:
            on_entry(place)
    return entries, [*findings, *_same_names(entries), *_copies(entries)]


def _copies(entries: Sequence[Verified]) -> list[Finding]:
    """Entries of one board whose placements are another's on every task and for every seed, names of devices aside.

    Which was there first nobody can tell from the files, so both are named. Two exact solvers would be taken for
    copies, too; so would one agent handed in twice, which is the point.
    """
    seen: dict[tuple[str, str, bytes], Verified] = {}
    findings = []
    for each in entries:
        if each.place.track == MEASURED or len(each.grid.placements[0]) < MANY_TASKS:
            continue
        first = seen.setdefault((each.place.track, each.place.suite, each.grid.signature()), each)
        if first is not each:
            reason = (
                f"The placements are those of {first.place.id}, on every task and for every seed. An entry has "
                "placements of its own."
            )
            findings.append(Finding(each.place.named(PLACEMENTS), reason))
    return findings


def _same_names(entries: Sequence[Verified]) -> list[Finding]:
    """Entries of one board that readers could not tell apart by their names."""
    seen: dict[tuple[str, str, str], Verified] = {}
    findings = []
    for each in entries:
        key = (each.place.track, each.place.suite, shown_alike(each.entry.name))
        if key in seen:
            other = seen[key]
            reason = f"The name {each.entry.name!r} is that of {other.place.id}, {other.entry.name!r}. Choose another."
            findings.append(Finding(each.place.named(ENTRY), reason))
        seen.setdefault(key, each)
    return findings


def shown_alike(name: str) -> str:
    """What names that look the same have in common: neither case, blanks and hyphens, nor forms of letters count."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in folded if character.isalnum()) or folded
