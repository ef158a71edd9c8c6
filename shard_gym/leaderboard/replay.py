"""Replays: the agent of an entry answers some of its tasks again; costs, budget and time are compared with the entry.

Only agents that ship with ShardGym can be replayed. The times are kept in `replayed.json`; its rows also say which
entries of the track "replanning" were replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents import make_agent
from shard_gym.errors import DamagedFileError, MissingExtraError, ShardGymError, short_repr
from shard_gym.io.files import write_json
from shard_gym.leaderboard.leagues import league_of
from shard_gym.leaderboard.rows import TOLERANCE
from shard_gym.leaderboard.schema import LEAGUES, SCHEMA, ReplayRow, parse
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.leaderboard.store import ENTRY, REPLAYED, Finding, find_entries, read_limited
from shard_gym.leaderboard.verified import VerifiedEntry, can_replay
from shard_gym.problems import Attempt
from shard_gym.system import cpu_model
from shard_gym.tasks import SuiteTask
from shard_gym.text import counted

FAULTS = (ShardGymError, TypeError, ValueError, LookupError, ArithmeticError)
"""What options that are none raise when an agent is made with them, or answers."""

Replays = Mapping[str, ReplayRow]
"""Rows of `replayed.json` by the ids of the entries."""


def replay(verified: VerifiedEntry, tasks: int, whole: bool = False) -> tuple[ReplayRow | None, list[Finding]]:
    """Answer `tasks` tasks again, evenly spaced in the suite, cycling through the entry's seeds.

    If `whole`, all tasks are answered again, with all seeds.

    Returns:
        The planning time here, and a finding for each difference from the entry. An agent that cannot be made, or that
        searches more than the entry declares, does not run: None, and why.

    Raises:
        MissingExtraError: the agent needs a package that is not installed.
    """
    entry, folder = verified.entry, verified.folder
    scorer = load_scorer(folder.suite)
    count = len(scorer.suite) if whole else tasks
    numbers = np.unique(np.linspace(0, len(scorer.suite) - 1, count).astype(int)).tolist()
    attempts: list[Attempt] = []
    findings = []
    for position, seed in enumerate(entry.seeds[: len(numbers)]):
        own = numbers if whole else numbers[position :: len(entry.seeds)]
        some = dataclasses.replace(scorer.suite, tasks=tuple(scorer.suite[number] for number in own))
        try:
            agent = _make_agent(verified, seed)
            declared = entry.planning.search_budget
            if agent.search_budget != declared:
                reason = f"planning.search_budget is {declared}, but the agent's is {agent.search_budget}."
                return None, [Finding(folder.file(ENTRY), reason)]  # what is declared has a limit
            if position == 0:
                first = dataclasses.replace(some, tasks=some.tasks[:1])
                list(scorer.problem.attempts(agent, first, scorer.model))  # imports modules and loads weights
            own_attempts = list(scorer.problem.attempts(agent, some, scorer.model))
        except MissingExtraError:
            raise
        except FAULTS as error:
            return None, [Finding(folder.file(ENTRY), f"The agent cannot run as declared: {error}")]
        attempts += own_attempts
        for number, task, attempt in zip(own, some, own_attempts, strict=True):
            cost = scorer.penalty_ms(number) if attempt.error else None
            if cost is None:
                cost = float(scorer.costs(number, [scorer.problem.checked(attempt.returned, task)])[0])
            claimed = float(verified.costs_ms[position, number])
            if abs(cost - claimed) > TOLERANCE * claimed:
                reason = f"Replayed, the agent's {scorer.problem.noun} costs {cost} ms; the entry's costs {claimed} ms."
                findings.append(Finding(folder.file(folder.answers), reason, task.name, seed))
    findings += _check_queries(verified, [each.queries for each in attempts], [scorer.suite[each] for each in numbers])
    median = float(np.median([each.seconds for each in attempts]))
    return ReplayRow(placements=verified.sha256, tasks=len(numbers), seconds=median, machine=cpu_model()), findings


def _make_agent(verified: VerifiedEntry, seed: int) -> Any:
    agent = verified.entry.agent
    suite = verified.folder.suite
    model = load_scorer(suite).suite.cost_model
    return make_agent(agent.name, cost_model=model, seed=seed, suite=suite, **agent.options)


def _check_queries(verified: VerifiedEntry, asked: Sequence[int], tasks: Sequence[SuiteTask]) -> list[Finding]:
    """Findings if the agent asked more than the entry declares for all its tasks, or belongs to another league."""
    planning, file = verified.entry.planning, verified.folder.file(ENTRY)
    findings = []
    declared = planning.queries * verified.costs_ms.size
    if sum(asked) > declared * (1 + TOLERANCE):
        reason = (
            f"planning.queries is {planning.queries}, {declared:,.0f} in all, but replayed, the agent evaluated the "
            f"cost model {sum(asked):,} times for {counted(len(tasks), 'task')} alone."
        )
        findings.append(Finding(file, reason))
    league = league_of(float(np.mean(asked)), planning.search_budget, tasks)
    if verified.league is not None and LEAGUES.index(league) > LEAGUES.index(verified.league):
        reason = f"Replayed, the agent belongs to the league {league!r}; the entry belongs to {verified.league!r}."
        findings.append(Finding(file, reason))
    return findings


def read_replays(root: Path, entries: Iterable[VerifiedEntry]) -> tuple[Replays, list[Finding]]:
    """The rows of `replayed.json` under `root`, none if there is no such file, and the findings.

    A time is valid for the answers it was taken with: a changed or missing entry is a finding.
    """
    path = root / REPLAYED
    if not path.exists() and not path.is_symlink():
        return {}, []
    try:
        table, findings = parse(read_limited(path), REPLAYED)
    except DamagedFileError as error:
        return {}, [Finding(REPLAYED, str(error))]
    if table is None:
        return {}, findings
    verified = {each.folder.id: each for each in entries}
    folders = {folder.id for folder in find_entries(root)[0]}
    for entry_id, row in table.entries.items():
        entry, reason = verified.get(entry_id), ""
        if entry is None:  # an entry that is not valid has findings of its own
            reason = "" if entry_id in folders else "which does not exist."
        elif row.placements != entry.sha256:
            reason = "but the time was taken with other answers."
        elif not can_replay(entry):
            reason = "but its agent does not ship with ShardGym as declared."
        elif row.tasks > (tasks := len(entry.answers[0])):
            reason = f"taken with {row.tasks} tasks, but there are {tasks}."
        if reason:
            update = "Update the times with: shard-gym leaderboard verify --all --replay 5 --keep-times."
            findings.append(Finding(REPLAYED, f"It has a time of {short_repr(entry_id)}, {reason} {update}"))
    return table.entries, findings


def write_replays(root: Path, replays: Replays) -> Path:
    """Write `replayed.json`, sorted by the ids of the entries; returns its path.

    Raises:
        UnwritablePathError: it cannot be written.
    """
    rows = {entry_id: row.model_dump() for entry_id, row in sorted(replays.items())}
    write_json(root / REPLAYED, {"schema": SCHEMA, "entries": rows})
    return root / REPLAYED
