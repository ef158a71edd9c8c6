"""Verification of entries: every recomputable claim is recomputed, and every difference is reported with its place."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.agents import AGENTS
from shard_gym.agents.registry.options import placing_options
from shard_gym.agents.training import LEARNERS
from shard_gym.common.errors import DamagedFileError, UnknownNameError, short_repr
from shard_gym.common.io.files import sha256_of
from shard_gym.common.jobs import run_jobs
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard.copies import check_entries_differ
from shard_gym.leaderboard.leagues import check_league, check_planning
from shard_gym.leaderboard.names import looks_like_ours
from shard_gym.leaderboard.rows import TOLERANCE, AnswerGrid, CheckedRows
from shard_gym.leaderboard.schema import ONE_SEED, SEEDS, AgentPart, Entry, parse
from shard_gym.leaderboard.scorer import Scorer, load_scorer
from shard_gym.leaderboard.store import ENTRY, EntryFolder, Finding, find_entries, read_files, truncated
from shard_gym.leaderboard.training_data import check_training_data, recorded_training
from shard_gym.leaderboard.verified import VerifiedEntry, count_failures, is_stochastic

Outcome = tuple[VerifiedEntry | None, list[Finding]]
"""An entry without findings, or None and the findings."""


def verify_entry(folder: EntryFolder, recompute: bool = True) -> Outcome:
    """The entry if it is valid, and otherwise everything that is wrong with it.

    Args:
        folder: of the entry.
        recompute: whether to compute again what rows of answers claim (see `Track`), which takes some seconds.
    """
    return _verify(folder, *read_files(folder), recompute)


def _verify(folder: EntryFolder, files: Mapping[str, bytes], findings: list[Finding], recompute: bool) -> Outcome:
    """`verify_entry` of files that are read, with what was wrong with the folder."""
    parsed = {}
    for name, content in files.items():
        parsed[name], wrong = parse(content, folder.file(name))
        findings += wrong
    entry: Entry | None = parsed.get(ENTRY)
    table = parsed.get(folder.answers)
    try:
        scorer = load_scorer(folder.suite)
    except (UnknownNameError, DamagedFileError) as error:
        reason = f"Its suite {folder.suite!r} cannot be loaded: {error}"
        return None, truncated([*findings, Finding(folder.id, reason)])
    if scorer.problem.name not in folder.rules.problems:
        reason = f"The track {folder.track!r} has no suites of {scorer.problem.name}, as {folder.suite!r} is."
        return None, truncated([*findings, Finding(folder.id, reason)])
    if entry is not None:
        findings += [Finding(folder.file(ENTRY), reason) for reason in _check_declarations(entry, folder, scorer)]
    if table is None:
        return None, truncated(findings)
    stochastic = entry.agent.stochastic if entry is not None else any(row.seed for row in table.rows)
    checked = CheckedRows(table.rows, folder, scorer, SEEDS if stochastic else ONE_SEED, recompute)
    findings += checked.findings
    if entry is not None and not findings:
        findings += _check_scores(entry, checked.answers, checked.costs_ms, scorer.problem.noun, folder.file(ENTRY))
    if folder.rules.scored:
        findings += _check_bounds(checked.costs_ms, scorer, folder.file(folder.answers))
    if findings or entry is None:
        return None, truncated(findings)
    sha256 = sha256_of(files[folder.answers])
    return VerifiedEntry(folder, entry, checked.answers, checked.costs_ms, sha256, checked.facts), []


def _check_declarations(entry: Entry, folder: EntryFolder, scorer: Scorer) -> list[str]:
    """Everything in `entry.toml` that contradicts its folder, the suite or the rules."""
    wrong = []
    again = " Answer the tasks as they are now."
    required_values = [
        ("track", entry.track, folder.track, ""),
        ("suite.name", entry.suite.name, folder.suite, ""),
        ("suite.sha256", entry.suite.sha256, scorer.suite.sha256, again),
    ]
    if entry.cost_model is not None:
        required_values += [
            ("cost_model.name", entry.cost_model.name, scorer.suite.cost_model, ""),
            ("cost_model.sha256", entry.cost_model.sha256, scorer.cost_model_sha256, again),
        ]
    for key, value, required, hint in required_values:
        if value != required:
            wrong.append(f"{key} is {value!r}, but in {folder.track}/{folder.suite} it must be {required!r}.{hint}")
    agent, rules = entry.agent, folder.rules
    if agent.name not in {*AGENTS, *LEARNERS}:
        wrong += [
            f"authors names {author!r}, but the agent {agent.name!r} is none of ShardGym's. Name its own authors."
            for author in entry.authors
            if looks_like_ours(author)
        ]
    seeds = list(SEEDS if agent.stochastic else ONE_SEED)
    if entry.seeds != seeds:
        kind = "stochastic" if agent.stochastic else "deterministic"
        wrong.append(f"seeds are {short_repr(entry.seeds)}, but a {kind} agent has exactly the seeds {seeds}.")
    if agent.name in {*AGENTS, *LEARNERS}:
        learns = agent.name in LEARNERS or recorded_training(agent.name, folder.suite, agent.options) is not None
        for key, declared, true in (
            ("stochastic", agent.stochastic, is_stochastic(agent.name)),
            ("learns", agent.learns, learns),
        ):
            if declared != true:
                must = f"must be {str(true).lower()} for ShardGym's agent {agent.name!r}"
                wrong.append(f"agent.{key} is {str(declared).lower()}, but {must}.")
        wrong += _check_options(agent)
    if rules.leagues:
        wrong += check_league(entry.planning, scorer.suite)
    elif entry.planning.league is not None:
        league = entry.planning.league
        wrong.append(f"planning.league is {league!r}, but the track {folder.track!r} has no leagues; remove it.")
    if rules.scored:
        wrong += check_planning(agent, entry.planning, folder.problem)
    return [*wrong, *check_training_data(entry.training.data, scorer.suite.name)]


def _check_options(agent: AgentPart) -> list[str]:
    """What is wrong with the options of one of ShardGym's agents that needs no training."""
    if agent.name in LEARNERS:
        return []  # its options are those of a training, too
    known = [option.name for option in placing_options(agent.name)]
    unknown = sorted(set(agent.options) - set(known))
    has = f"its options are {', '.join(known)}" if known else "it has none"
    wrong = f"agent.options names {short_repr(unknown)}, which ShardGym's agent {agent.name!r} does not take: {has}."
    return [wrong] if unknown else []


def _check_scores(entry: Entry, answers: AnswerGrid, costs: FloatArray, noun: str, file: str) -> list[Finding]:
    """A finding for each claimed score that differs from the recomputed one; the measured track claims none."""
    claimed, mean, failures = entry.scores, float(costs.mean()), count_failures(answers)
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
            f"A {scorer.problem.noun} costs {cheapest} ms, but {bound} ms is proven to be the least for this task. "
            "Please report that the bound is wrong.",
            task=scorer.suite[number].name,
        )
        for number, cheapest in enumerate(costs.min(axis=0).tolist())
        if cheapest < (bound := scorer.lower_bound(number)) * (1 - TOLERANCE)
    ]


def verify_all(
    root: Path,
    recompute: bool = True,
    run: Run = run_jobs,
    on_done: Callable[[int, int], None] = lambda done, count: None,
    before: Path | None = None,
) -> tuple[list[VerifiedEntry], list[Finding]]:
    """Every valid entry under `root`, sorted by folder, and everything that is wrong with the others.

    Args:
        root: the folder of the leaderboards.
        recompute: see `verify_entry`. Without, entries whose rows claim costs are not compared with each other.
        run: see `verify_folders`.
        on_done: called with the number of entries that are done, and of all.
        before: the folder without the new entries, which may be near copies; without it no entry is new.

    Raises:
        InvalidOptionError: there is no such folder.
    """
    folders, findings = find_entries(root)
    outcomes, alike = _verify_suites(folders, recompute, run, on_done, new_ids(folders, before))
    entries = []
    for verified, wrong in outcomes:
        findings += wrong
        entries += [verified] if verified else []
    return entries, [*findings, *alike]


def new_ids(folders: Sequence[EntryFolder], before: Path | None) -> set[str]:
    """The ids of the entries that are not in the folder `before`; none without it."""
    return set() if before is None else {each.id for each in folders if not (before / each.id).exists()}


Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[int, Any]]]
"""`run_jobs`, or it with arguments that say where the jobs run."""


def verify_folders(
    folders: Sequence[EntryFolder],
    recompute: bool = True,
    run: Run = run_jobs,
    on_done: Callable[[int, int], None] = lambda done, count: None,
) -> list[Outcome]:
    """`verify_entry` of each folder, in their order.

    Args:
        folders: of entries.
        recompute: see `verify_entry`.
        run: runs the jobs, one for each suite: its entries share what is computed of its tasks.
        on_done: called with the number of entries that are done, and of all.
    """
    return _verify_suites(folders, recompute, run, on_done, None)[0]


def _verify_suites(
    folders: Sequence[EntryFolder],
    recompute: bool,
    run: Run,
    on_done: Callable[[int, int], None],
    new: Set[str] | None,
) -> tuple[list[Outcome], list[Finding]]:
    """`verify_entry` of each folder, and the findings of `check_entries_differ` about each suite; none if `new` is."""
    suites: dict[tuple[str, str], list[EntryFolder]] = {}
    for folder in sorted(folders, key=lambda each: not each.rules.claims):  # those that take longest come first
        suites.setdefault(folder.board, []).append(folder)
    boards = list(suites)
    jobs = [_SuiteJob([(each, *read_files(each)) for each in suites[board]], recompute, new) for board in boards]
    outcomes: dict[EntryFolder, Outcome] = {}
    alike: dict[tuple[str, str], list[Finding]] = {}
    for index, (found, findings) in run(_verify_suite, jobs):
        outcomes |= zip(suites[boards[index]], found, strict=True)
        alike[boards[index]] = findings
        on_done(len(outcomes), len(folders))
    return [outcomes[folder] for folder in folders], [each for board in sorted(alike) for each in alike[board]]


class _SuiteJob(NamedTuple):
    """What is needed to verify the entries of a suite, without reading a file of them."""

    read: list[tuple[EntryFolder, dict[str, bytes], list[Finding]]]  #: folder, files and findings of each entry
    recompute: bool  #: see `verify_entry`
    new: Set[str] | None  #: see `check_entries_differ`; None if the entries are not compared with each other


def _verify_suite(job: _SuiteJob) -> tuple[list[Outcome], list[Finding]]:
    with _without_collection():
        outcomes = [_verify(*each, job.recompute) for each in job.read]
        entries = [verified for verified, _ in outcomes if verified is not None]
        alike = [] if job.new is None else check_entries_differ(entries, job.recompute, job.new)
        for verified in entries:
            if job.recompute and verified.folder.rules.claims:
                _ = verified.traits  # takes long, and may be asked for
    return outcomes, alike


@contextmanager
def _without_collection() -> Iterator[None]:
    """Python looks for no garbage: again and again it would look through all answers of a suite, in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
