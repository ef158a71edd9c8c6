"""Verification of entries: every recomputable claim is recomputed, and every difference is reported with its place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from shard_gym.agents import AGENTS, PAPER_HEURISTICS, PLANNERS
from shard_gym.agents.training.registry import LEARNERS
from shard_gym.answers import Answer
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import DamagedFileError, InvalidPlacementError, UnknownNameError, short_repr
from shard_gym.io.files import sha256_of
from shard_gym.leaderboard.leagues import SEARCH, check_league, entered_league
from shard_gym.leaderboard.names import skeleton
from shard_gym.leaderboard.schema import ONE_SEED, SEEDS, AnswerRow, AnswerTable, Entry, parse
from shard_gym.leaderboard.scorer import COST_MODEL, Scorer, load_scorer
from shard_gym.leaderboard.store import ENTRY, EntryFolder, Finding, find_entries, read_files, truncated
from shard_gym.leaderboard.training_data import check_training_data
from shard_gym.suites.best_known import best_known, improved_by
from shard_gym.suites.info import MEASURED
from shard_gym.tasks import TaskSuite

TOLERANCE = 1e-9
"""Relative difference of two costs that differ by rounding only."""

MANY_TASKS = 10
"""On suites with at least so many tasks, two equal sets of placements are copies and not a coincidence."""

COPY = 0.9
"""Share of an entry's placements that another entry has, too, from which on it is a copy."""

DETERMINISTIC_AGENTS = (*PAPER_HEURISTICS, "lane-greedy", "cost-greedy", "hugectr", "torchrec")
"""The agents of ShardGym that use no chance; all others of `AGENTS` and `LEARNERS` use it."""

AnswerGrid = list[list[Answer | None]]
"""Placements, or plans, by seed and task: S lists of N; None where the agent found none."""


@dataclass(frozen=True, eq=False)
class VerifiedEntry:
    """An entry without findings.

    Attributes:
        folder: where it is.
        entry: the content of `entry.toml`.
        answers: placements, or plans, by seed and task, all checked.
        costs_ms: (S, N) float64, ms of each seed and task by the cost model of the simulated tracks, in all tracks; the
            penalty where there is no answer.
        sha256: of `placements.json` or `plans.json`.
    """

    folder: EntryFolder
    entry: Entry
    answers: AnswerGrid
    costs_ms: FloatArray
    sha256: str

    @property
    def failures(self) -> int:
        """Number of seeds and tasks without an answer."""
        return _failures(self.answers)

    @property
    def league(self) -> str | None:
        """See `leagues`; None in the measured track."""
        if self.folder.track == MEASURED:
            return None
        return entered_league(self.entry.planning, load_scorer(self.folder.suite).suite)


def verify_entry(folder: EntryFolder) -> tuple[VerifiedEntry | None, list[Finding]]:
    """The entry if it is valid, and otherwise everything that is wrong with it."""
    files, findings = read_files(folder)
    parsed = {}
    for name, content in files.items():
        parsed[name], wrong = parse(content, folder.file(name))
        findings += wrong
    entry: Entry | None = parsed.get(ENTRY)
    table: AnswerTable | None = parsed.get(folder.answers)
    try:
        scorer = load_scorer(folder.suite)
    except (UnknownNameError, DamagedFileError) as error:
        reason = f"Its suite {folder.suite!r} cannot be loaded: {error}"
        return None, truncated([*findings, Finding(folder.id, reason)])
    if entry is not None:
        findings += [Finding(folder.file(ENTRY), reason) for reason in _check_declarations(entry, folder, scorer)]
    if table is None:
        return None, truncated(findings)
    chance = entry.agent.stochastic if entry is not None else any(row.seed for row in table.rows)
    seeds = SEEDS if chance else ONE_SEED
    answers, wrong = _check_answers(table.rows, scorer, seeds, folder.file(folder.answers))
    findings += wrong
    costs = _simulated_costs(answers, scorer)
    if entry is not None and not findings:
        findings += _check_scores(entry, answers, costs, scorer.answers.noun, folder.file(ENTRY))
    if folder.track != MEASURED:
        findings += _check_bounds(costs, scorer, folder.file(folder.answers))
    if findings or entry is None:
        return None, truncated(findings)
    return VerifiedEntry(folder, entry, answers, costs, sha256_of(files[folder.answers])), []


def _check_declarations(entry: Entry, folder: EntryFolder, scorer: Scorer) -> list[str]:
    """Everything in `entry.toml` that contradicts its folder, the suite or the rules."""
    wrong = []
    again = " Place the tasks as they are now."
    required_values = [
        ("track", entry.track, folder.track, ""),
        ("suite.name", entry.suite.name, folder.suite, ""),
        ("suite.sha256", entry.suite.sha256, scorer.suite.sha256, again),
    ]
    if entry.cost_model is not None:
        required_values += [
            ("cost_model.name", entry.cost_model.name, COST_MODEL, ""),
            ("cost_model.sha256", entry.cost_model.sha256, scorer.cost_model_sha256, again),
        ]
    for key, value, required, hint in required_values:
        if value != required:
            wrong.append(f"{key} is {value!r}, but in {folder.track}/{folder.suite} it must be {required!r}.{hint}")
    agent, seeds = entry.agent, list(SEEDS if entry.agent.stochastic else ONE_SEED)
    if entry.seeds != seeds:
        kind = "uses chance" if agent.stochastic else "uses no chance"
        wrong.append(f"seeds are {short_repr(entry.seeds)}, but an agent that {kind} has exactly the seeds {seeds}.")
    if agent.name in {*AGENTS, *PLANNERS, *LEARNERS}:
        for key, declared, true in (
            ("stochastic", agent.stochastic, agent.name not in DETERMINISTIC_AGENTS),
            ("learns", agent.learns, agent.name in LEARNERS),
        ):
            if declared != true:
                must = f"must be {str(true).lower()} for ShardGym's agent {agent.name!r}"
                wrong.append(f"agent.{key} is {str(declared).lower()}, but {must}.")
    if folder.track != MEASURED:
        wrong += check_league(agent, entry.planning, scorer.suite)
    elif entry.planning.league is not None:
        wrong.append(f"planning.league is {entry.planning.league!r}, but the measured track has no leagues; remove it.")
    return [*wrong, *check_training_data(entry.training.data, scorer.suite.name)]


def _arrange(
    rows: Sequence[AnswerRow], suite: TaskSuite, seeds: Sequence[int], file: str
) -> tuple[dict[tuple[int, int], AnswerRow], list[Finding]]:
    """The rows by positions of seed and task, and a finding for every pair that is missing, duplicate or unknown."""
    tasks = {task.name: number for number, task in enumerate(suite)}
    positions = {seed: position for position, seed in enumerate(seeds)}
    cells: dict[tuple[int, int], AnswerRow] = {}
    findings = []
    for row in rows:
        if row.task not in tasks:
            findings.append(Finding(file, f"Suite {suite.name!r} has no such test task.", row.task, row.seed))
        elif row.seed not in positions:
            findings.append(Finding(file, f"The seed is none of {list(seeds)}.", row.task, row.seed))
        elif (cell := (positions[row.seed], tasks[row.task])) in cells:
            findings.append(Finding(file, "The task occurs twice for this seed.", row.task, row.seed))
        else:
            cells[cell] = row
    findings += [
        Finding(file, "The task is missing for this seed; a task without a placement is null.", task, seed)
        for task, number in tasks.items()
        for seed, position in positions.items()
        if (position, number) not in cells
    ]
    return cells, findings


def _check_answers(
    rows: Sequence[AnswerRow], scorer: Scorer, seeds: Sequence[int], file: str
) -> tuple[AnswerGrid, list[Finding]]:
    """The answers by seed and task, each checked: its memory is recomputed from the tables.

    On a suite of many tasks, equal answers of two seeds are one run submitted twice.
    """
    suite = scorer.suite
    cells, findings = _arrange(rows, suite, seeds, file)
    answers: AnswerGrid = [[None] * len(suite) for _ in seeds]
    for (position, number), row in cells.items():
        if row.answer is None:
            continue
        task = suite[number]
        try:
            answers[position][number] = scorer.answers.from_json(row.answer, task)
        except InvalidPlacementError as error:
            findings.append(Finding(file, str(error), task.name, row.seed))
    if len(suite) >= MANY_TASKS:
        canonical = [_canonical(each, scorer) for each in answers]
        for first, seed in _repeated(zip(canonical, seeds, strict=True)):
            reason = (
                f"The {scorer.answers.noun}s of seed {seed} are those of seed {first} on every task. Run each seed "
                "separately; an agent that another seed does not change declares agent.stochastic = false, "
                "and has one."
            )
            findings.append(Finding(file, reason, seed=seed))
    return answers, findings


Item = TypeVar("Item")


def _repeated(items: Iterable[tuple[Hashable, Item]]) -> Iterator[tuple[Item, Item]]:
    """From keys and items: each item whose key occurred before, after the first item with that key."""
    seen: dict[Hashable, Item] = {}
    for key, item in items:
        first = seen.setdefault(key, item)
        if first != item:
            yield first, item


def _canonical(answers: Sequence[Answer | None], scorer: Scorer) -> bytes:
    """Equal for answers that differ in the numbers of the devices only: a suite's devices are alike."""
    return b"|".join(b"-" if each is None else scorer.answers.canonical(each) for each in answers)


def _simulated_costs(answers: AnswerGrid, scorer: Scorer) -> FloatArray:
    """(S, N) ms by the cost model, the penalty where there is no answer."""
    costs = np.tile(scorer.penalties, (len(answers), 1))
    for number in range(costs.shape[1]):
        valid = {seed: each for seed, row in enumerate(answers) if (each := row[number]) is not None}
        if valid:
            costs[list(valid), number] = scorer.costs(number, list(valid.values()))
    return costs


def _failures(answers: AnswerGrid) -> int:
    return sum(answer is None for row in answers for answer in row)


def _check_scores(entry: Entry, answers: AnswerGrid, costs: FloatArray, noun: str, file: str) -> list[Finding]:
    """A finding for each claimed score that differs from the recomputed one; the measured track claims none."""
    claimed, mean, failures = entry.scores, float(costs.mean()), _failures(answers)
    if claimed is None:
        return []
    wrong = []
    if abs(claimed.mean_cost_ms - mean) > TOLERANCE * mean:
        wrong.append(f"scores.mean_cost_ms is {claimed.mean_cost_ms}, but the {noun}s cost {mean}.")
    if claimed.failures != failures:
        wrong.append(f"scores.failures is {claimed.failures}, but {failures} {noun}s are null.")
    return [Finding(file, reason) for reason in wrong]


def _check_bounds(costs: FloatArray, scorer: Scorer, file: str) -> list[Finding]:
    """A finding for each task with a placement that costs less than a proven bound, which is then wrong."""
    return [
        Finding(
            file,
            f"A {scorer.answers.noun} costs {cheapest} ms, but {bound} ms is proven to be the least for this task. "
            "Please report that the bound is wrong.",
            task=scorer.suite[number].name,
        )
        for number, cheapest in enumerate(costs.min(axis=0).tolist())
        if cheapest < (bound := scorer.lower_bound(number)) * (1 - TOLERANCE)
    ]


def verify_all(
    root: Path, track: Callable[[list[EntryFolder]], Iterable[EntryFolder]] = list
) -> tuple[list[VerifiedEntry], list[Finding]]:
    """Every valid entry under `root`, sorted by folder, and everything that is wrong with the others.

    Args:
        root: the folder of the leaderboards.
        track: iterates over the entries; a progress bar, for example.

    Raises:
        InvalidOptionError: there is no such folder.
    """
    folders, findings = find_entries(root)
    entries = []
    for folder in track(folders):
        verified, wrong = verify_entry(folder)
        findings += wrong
        if verified is not None:
            entries.append(verified)
    return entries, [*findings, *_check_entries_differ(entries)]


def _check_entries_differ(entries: Sequence[VerifiedEntry]) -> list[Finding]:
    """A finding for each entry with the placements of another one on its track and suite, or a name like it.

    Device numbers and seeds are left out, and a few tasks may differ. Two honest entries of the project agree on 14% at
    most (November 2026). The files do not tell which was first, so both are named. Two exact solvers would count as
    copies, too; two deterministic agents of ShardGym do not. Nor may an entry outside the league `search` have the best
    known placements, unless they came from it.
    """
    names = [((each.folder.track, each.folder.suite, skeleton(each.entry.name)), each) for each in entries]
    findings = [
        name_taken(each.folder, each.entry.name, first.folder, first.entry.name) for first, each in _repeated(names)
    ]
    suites: dict[tuple[str, str], list[VerifiedEntry]] = {}
    for each in entries:
        if len(each.answers[0]) >= MANY_TASKS:
            suites.setdefault((each.folder.track, each.folder.suite), []).append(each)
    for others in suites.values():
        cells = [_cells(each) for each in others]
        known, noun = _best_known_cells(others[0].folder), load_scorer(others[0].folder.suite).answers.noun
        for position, each in enumerate(others):
            share = _share(cells[position], known) if each.league not in (None, SEARCH) else 0.0
            if share >= COPY and each.folder.id not in improved_by(each.folder.suite):
                reason = (
                    f"{share:.0%} of the {noun}s are best known ones, which searches with the cost model found. "
                    f"An entry needs {noun}s of its own."
                )
                findings.append(Finding(each.folder.file(each.folder.answers), reason))
                continue
            for earlier, first in enumerate(others[:position]):
                shares = _share(cells[position], cells[earlier]), _share(cells[earlier], cells[position])
                if max(shares) >= COPY and not _may_agree(each, first):
                    reason = (
                        f"{max(shares):.0%} of the {noun}s are those of {first.folder.id}, with device numbers and "
                        f"seeds left out. An entry needs {noun}s of its own."
                    )
                    findings.append(Finding(each.folder.file(each.folder.answers), reason))
                    break
    return findings


def _may_agree(one: VerifiedEntry, other: VerifiedEntry) -> bool:
    """Whether two deterministic agents of ShardGym made them, which replays confirm.

    For tables of one dim `lane-greedy` is `lookup-greedy`.
    """
    names = {one.entry.agent.name, other.entry.agent.name}
    return len(names) == 2 and names <= set(DETERMINISTIC_AGENTS)


def _cells(entry: VerifiedEntry) -> list[list[bytes]]:
    """For each task the answers of all seeds, without device numbers."""
    scorer = load_scorer(entry.folder.suite)
    return [
        [_canonical([answer], scorer) for row in entry.answers if (answer := row[number]) is not None]
        for number in range(len(entry.answers[0]))
    ]


def _best_known_cells(folder: EntryFolder) -> list[list[bytes]]:
    """For each task of the suite the best known answer, if there is one, without device numbers."""
    scorer = load_scorer(folder.suite)
    known = best_known(scorer.suite, scorer.model)
    return [[_canonical([known[task.name].answer], scorer)] if task.name in known else [] for task in scorer.suite]


def _share(own: list[list[bytes]], others: list[list[bytes]]) -> float:
    """Share of one entry's placements that another one has for the same task."""
    equal = sum(placement in other for mine, other in zip(own, others, strict=True) for placement in mine)
    return equal / max(1, sum(map(len, own)))


def name_taken(folder: EntryFolder, name: str, other: EntryFolder, other_name: str) -> Finding:
    """The finding that two entries of a suite have names that look the same."""
    return Finding(folder.file(ENTRY), f"The name {name!r} is that of {other.id}, {other_name!r}. Choose another.")
