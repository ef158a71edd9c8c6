"""Verification of entries: every recomputable claim is recomputed, and every difference is reported with its place.

An entry is checked by itself (`verify_entry`) and beside the others of its suite (`check_entries_differ`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shard_gym.agents import AGENTS
from shard_gym.agents.registry.options import placing_options
from shard_gym.agents.training import LEARNERS
from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import DamagedFileError, InvalidPlacementError, UnknownNameError, short_repr
from shard_gym.common.io.files import sha256_of
from shard_gym.common.jobs import run_jobs
from shard_gym.envs.placement.observation import COST_FREE
from shard_gym.leaderboard.copies import (
    MANY_TASKS,
    best_known_cells,
    best_known_traits,
    likeness,
    nearest_sources,
    repeated,
    share_among,
)
from shard_gym.leaderboard.entry import (
    MAX_REPLAYED,
    ONE_SEED,
    SEEDS,
    AgentPart,
    Entry,
    PlanningPart,
    Row,
    SequenceRow,
    VerifiedEntry,
    can_replay,
    count_failures,
    is_stochastic,
    parse,
)
from shard_gym.leaderboard.leagues import LEAGUES, SEARCH, league_of
from shard_gym.leaderboard.names import looks_like_ours, skeleton
from shard_gym.leaderboard.scorer import TOLERANCE, AnswerGrid, Scorer, canonical, claims_of, load_scorer
from shard_gym.leaderboard.store import ENTRY, EntryFolder, Finding, find_entries, read_files, truncated
from shard_gym.leaderboard.training_data import check_training_data, recorded_training
from shard_gym.tasks import Answer, Suite
from shard_gym.tasks.suites.best_known import improved_by
from shard_gym.tasks.task import SuiteTask

COPY = 0.9
"""Share of an entry's answers that another entry has, too, from which on it is a copy."""

BEST_KNOWN = "best known"
"""What near copies of the best known answers name as their source."""

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
    seeds = SEEDS if stochastic else ONE_SEED
    answers, costs_ms, facts, wrong = _checked_rows(table.rows, folder, scorer, seeds, recompute)
    findings += wrong
    if entry is not None and not findings:
        findings += _check_scores(entry, answers, costs_ms, scorer.problem.noun, folder.file(ENTRY))
    if folder.rules.scored:
        findings += _check_bounds(costs_ms, scorer, folder.file(folder.answers))
    if findings or entry is None:
        return None, truncated(findings)
    sha256 = sha256_of(files[folder.answers])
    return VerifiedEntry(folder, entry, answers, costs_ms, sha256, facts), []


def _arrange(
    rows: Sequence[Row], suite: Suite[Any], seeds: Sequence[int], file: str
) -> tuple[dict[tuple[int, int], Any], list[Finding]]:
    """The rows by positions of seed and task, and a finding for every pair that is missing, duplicate or unknown."""
    tasks = {task.name: number for number, task in enumerate(suite)}
    positions = {seed: position for position, seed in enumerate(seeds)}
    cells: dict[tuple[int, int], Any] = {}
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
        Finding(file, "The task is missing for this seed; a task without an answer is null.", task, seed)
        for task, number in tasks.items()
        for seed, position in positions.items()
        if (position, number) not in cells
    ]
    return cells, findings


def _checked_rows(
    rows: Sequence[Row], folder: EntryFolder, scorer: Scorer, seeds: Sequence[int], recompute: bool
) -> tuple[AnswerGrid, FloatArray, dict[str, FloatArray], list[Finding]]:
    """The rows of a file of answers, each checked: its memory is recomputed from the tables.

    Returns:
        The answers by seed and task; (S, N) ms of them, penalties included; their facts (see `VerifiedEntry`); and
        everything that is wrong.
    """
    suite, file = scorer.suite, folder.file(folder.answers)
    cells, findings = _arrange(rows, suite, seeds, file)
    answers: AnswerGrid = [[None] * len(suite) for _ in seeds]
    recompute = recompute or not folder.rules.claims
    for (position, number), row in cells.items():
        if row.answer is None:
            continue
        try:
            answer = scorer.problem.from_json(row.answer, suite[number])
            if folder.rules.claims and (reason := _wrong_claim(row, answer, number, scorer, recompute)):
                findings.append(Finding(file, reason, row.task, row.seed))
            else:
                answers[position][number] = answer
        except InvalidPlacementError as error:
            findings.append(Finding(file, str(error), row.task, row.seed))
    facts = {heading: np.full((len(seeds), len(suite)), np.nan) for heading in scorer.problem.headings}
    for (position, number), row in cells.items() if folder.rules.claims else ():
        if row.answer is None and (row.cost_ms is not None or row.facts):
            reason = "It has no answer, so it claims no cost_ms and no facts."
            findings.append(Finding(file, reason, row.task, row.seed))
        for heading in facts.keys() & row.facts.keys():
            facts[heading][position, number] = row.facts[heading]
    if not recompute:
        return answers, _claimed_costs(cells, answers, scorer), facts, findings
    costs_ms = _costs(answers, scorer)
    if len(suite) >= MANY_TASKS:
        by_seed = map(tuple, canonical(answers, scorer))
        for first, seed in repeated(zip(by_seed, seeds, strict=True)):
            reason = (
                f"The {scorer.problem.noun}s of seed {seed} are those of seed {first} on every task. Run each seed "
                "separately; an agent that another seed does not change declares agent.stochastic = false, "
                "and has one."
            )
            findings.append(Finding(file, reason, seed=seed))
    return answers, costs_ms, facts, findings


def _claimed_costs(cells: Mapping[tuple[int, int], SequenceRow], answers: AnswerGrid, scorer: Scorer) -> FloatArray:
    """(S, N) ms that the rows claim, the penalty where there is no answer."""
    costs = np.zeros((len(answers), len(scorer.suite)))
    for (position, number), row in cells.items():
        claimed = None if answers[position][number] is None else row.cost_ms
        costs[position, number] = scorer.penalty_ms(number) if claimed is None else claimed
    return costs


def _wrong_claim(row: SequenceRow, answer: Answer, number: int, scorer: Scorer, recompute: bool) -> str:
    """How the claims of a row differ from what is computed, or nothing.

    Raises:
        InvalidPlacementError: the answer cannot be played.
    """
    said, noun, again = row.facts, scorer.problem.noun, "Submit the entry again."
    true = claims_of(answer, number, scorer) if recompute else {}
    if row.cost_ms is None or said.keys() != set(scorer.problem.headings):
        return f"It must claim cost_ms, and facts with {list(scorer.problem.headings)}. {again}"
    if not recompute:
        return ""
    cost, facts = true.values()
    if not isclose(row.cost_ms, cost, rel_tol=TOLERANCE):
        return f"cost_ms is {row.cost_ms}, but the {noun} costs {cost}. {again}"
    if not all(isclose(said[key], facts[key], rel_tol=TOLERANCE) for key in facts):
        return f"facts are {short_repr(said)}, but the {noun} gives {facts}. {again}"
    return ""


def _costs(answers: AnswerGrid, scorer: Scorer) -> FloatArray:
    """(S, N) ms by the cost model, the penalty where there is no answer."""
    costs = np.zeros((len(answers), len(scorer.suite)))
    for number in range(costs.shape[1]):
        valid = {seed: each for seed, row in enumerate(answers) if (each := row[number]) is not None}
        if len(valid) < len(answers):
            costs[:, number] = scorer.penalty_ms(number)
        if valid:
            costs[list(valid), number] = scorer.costs(number, list(valid.values()))
    return costs


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
        wrong += _check_league(entry.planning, scorer.suite)
    elif entry.planning.league is not None:
        league = entry.planning.league
        wrong.append(f"planning.league is {league!r}, but the track {folder.track!r} has no leagues; remove it.")
    if rules.scored:
        wrong += _check_planning(agent, entry.planning, folder.problem)
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


def _check_league(planning: PlanningPart, tasks: Iterable[SuiteTask]) -> list[str]:
    """A sentence if the declared league allows less than the entry asks."""
    league = league_of(planning.queries, planning.search_budget, tasks)
    if planning.league is None or LEAGUES.index(planning.league) >= LEAGUES.index(league):
        return []
    return [
        f"planning.league is {planning.league!r}, but with {planning.queries:,.1f} evaluations of the cost model "
        f"for a task and a search budget of {planning.search_budget:,} the entry belongs to {league!r}."
    ]


def _check_planning(agent: AgentPart, planning: PlanningPart, problem: str) -> list[str]:
    """A sentence for each declaration about planning that contradicts what is known of the agent."""
    wrong = []
    if agent.name in AGENTS and planning.search_budget > MAX_REPLAYED:
        wrong.append(
            f"planning.search_budget is {planning.search_budget:,}, but ShardGym's agent {agent.name!r} is replayed, "
            f"so it may try at most {MAX_REPLAYED:,} answers for a task."
        )
    asks = _asks(agent, problem)
    if asks is not None and (asks != "nothing") != (planning.queries > 0):
        kind = "never evaluates the cost model" if asks == "nothing" else "evaluates the cost model"
        wrong.append(
            f"planning.queries is {planning.queries}, but ShardGym's agent {agent.name!r} {kind} when it answers. "
            "Give an agent under another cost model another name."
        )
    if asks == "answers" and planning.search_budget == 0:
        wrong.append(f"planning.search_budget is 0, but ShardGym's agent {agent.name!r} searches.")
    return wrong


def _asks(agent: AgentPart, problem: str) -> str | None:
    """What an agent of ShardGym asks of the scoring model while it answers (see `AgentEntry`); None of any other."""
    if agent.name in AGENTS:
        return AGENTS[agent.name].asks
    if agent.name not in LEARNERS:
        return None
    blind = agent.options.get("observation") in COST_FREE
    return "nothing" if blind else LEARNERS[agent.name].learner(problem).asks


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
    known, noun, improved = best_known_cells(scorer), scorer.problem.noun, improved_by(scorer.suite.name)
    for position, each in enumerate(members):
        share = share_among(each.cells, known, _answered(each)) if _may_know_nothing(each, improved) else 0.0
        reason = ""
        if share >= COPY:
            reason = f"{share:.0%} of the {noun}s are best known ones, which searches with the cost model found."
        for first in members[:position]:
            share = max(
                share_among(each.cells, first.cells, _answered(each)),
                share_among(first.cells, each.cells, _answered(first)),
            )
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
        sources[BEST_KNOWN] = [best_known_traits(scorer)]
    sources = {name: traits for name, traits in sources.items() if named is None or name in named}
    alike = likeness(entry.traits, list(sources.values()), scorer)
    limits = np.array([scorer.problem.near_from(task) for task in scorer.suite])
    share, near = nearest_sources(alike, list(sources), limits)
    if near:
        return share, near
    # What an entry adds to the answers of another, such as seeds and plans, hides that it has them all.
    for name, traits in sources.items():
        share, found = nearest_sources(likeness(traits, [entry.traits], scorer), [name], limits)
        if found:
            return share, found
    return share, []


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


def _answered(entry: VerifiedEntry) -> int:
    """How many answers an entry has."""
    return entry.costs_ms.size - entry.failures


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
