"""Replays: the agent of an entry answers some of its tasks again; costs, budget and time are compared with the entry.

Only agents that ship with ShardGym can be replayed. The times are kept in `replayed.json`; its rows also say which
entries of the track "replanning" were replayed.

An entry says which instructions made it (`system.instruction_set`). With the same ones its costs come out again but for
the rounding of sums. With others networks and sums are rounded otherwise, two answers that cost nearly the same change
places, and a search goes another way: then a replay compares what the entry can claim, costs within a margin.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shard_gym.agents import make_agent
from shard_gym.common.errors import DamagedFileError, MissingExtraError, ShardGymError, short_repr
from shard_gym.common.io.files import write_json
from shard_gym.common.system import cpu_model, instruction_set
from shard_gym.common.text import counted, format_percent
from shard_gym.leaderboard.entry import SCHEMA, ReplayRow, VerifiedEntry, can_replay, parse
from shard_gym.leaderboard.leagues import LEAGUES, league_of, most_for
from shard_gym.leaderboard.scorer import TOLERANCE, load_scorer
from shard_gym.leaderboard.store import ENTRY, REPLAYED, Finding, find_entries, read_limited
from shard_gym.tasks import Attempt
from shard_gym.tasks.task import SuiteTask

FAULTS = (ShardGymError, TypeError, ValueError, LookupError, ArithmeticError)
"""What options that are none raise when an agent is made with them, or answers."""

MARGIN = 0.1
"""Where the replay has other instructions: how far a cost may be from the entry's, as a share of it. The mean of n such
differences may be 1 / sqrt(n) of it. docs/results/leaderboard-checks.md has what was measured."""

SLOWEST_TIMES, SLOWEST_SECONDS = 100.0, 1.0
"""A replay slower than so many times what is declared, and than so many seconds a task, is that of another agent."""

Replays = Mapping[str, ReplayRow]
"""Rows of `replayed.json` by the ids of the entries."""


def replay(verified: VerifiedEntry, tasks: int, whole: bool = False) -> tuple[ReplayRow | None, list[Finding]]:
    """Answer `tasks` tasks again, evenly spaced in the suite, cycling through the entry's seeds.

    If `whole`, all tasks are answered again, with all seeds.

    Returns:
        The planning time here, and a finding for each difference from the entry. Where the entry was made with other
        instructions, costs within `MARGIN` are none. An agent that cannot be made, or that searches more than the entry
        declares, does not run: None, and why.

    Raises:
        MissingExtraError: the agent needs a package that is not installed.
    """
    entry, folder = verified.entry, verified.folder
    scorer = load_scorer(folder.suite)
    count = len(scorer.suite) if whole else tasks
    numbers = np.unique(np.linspace(0, len(scorer.suite) - 1, count).astype(int)).tolist()
    attempts: list[Attempt] = []
    costs: list[_Cost] = []
    for position, seed in enumerate(entry.seeds[: len(numbers)]):
        own = numbers if whole else numbers[position :: len(entry.seeds)]
        some = dataclasses.replace(scorer.suite, tasks=tuple(scorer.suite[number] for number in own))
        try:
            agent = _make_agent(verified, seed)
            declared = entry.planning.search_budget
            if (budget := most_for(agent, scorer.suite)) != declared:
                reason = f"planning.search_budget is {declared}, but the agent's is {budget}."
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
            costs.append(_Cost(task.name, seed, cost, float(verified.costs_ms[position, number])))
    median = float(np.median([each.seconds for each in attempts]))
    findings = [
        *_check_costs(verified, costs, scorer.problem.noun),
        *_check_queries(verified, [each.queries for each in attempts], [scorer.suite[each] for each in numbers]),
        *_check_seconds(verified, median),
    ]
    row = ReplayRow(
        placements=verified.sha256,
        tasks=len(numbers),
        seconds=median,
        machine=cpu_model(),
        instructions=instruction_set(),
        deviation=max(abs(each.difference) for each in costs),
    )
    return row, findings


class _Cost(NamedTuple):
    """What the answer of a task and a seed costs when replayed, and what that of the entry costs, in ms."""

    task: str
    seed: int
    ms: float
    claimed_ms: float

    @property
    def difference(self) -> float:
        """The first over the second, less 1."""
        return self.ms / self.claimed_ms - 1.0


def _check_costs(verified: VerifiedEntry, costs: Sequence[_Cost], noun: str) -> list[Finding]:
    """A finding for each cost that is not the entry's, and, with other instructions, for their mean."""
    folder, made, here = verified.folder, verified.entry.hardware.instructions, instruction_set()
    where, allowed, hint = "", TOLERANCE, ""
    if here != made:
        where, allowed = f" with {here}", MARGIN
        hint = f" It was made with {made}; with others a cost may differ by {format_percent(MARGIN)}."
    findings = [
        Finding(
            folder.file(folder.answers),
            f"Replayed{where}, the agent's {noun} costs {each.ms} ms; the entry's costs {each.claimed_ms} ms.{hint}",
            each.task,
            each.seed,
        )
        for each in costs
        if abs(each.difference) > allowed
    ]
    mean, most = float(np.mean([each.difference for each in costs])), MARGIN / math.sqrt(len(costs))
    if where and not findings and abs(mean) > most:
        reason = (
            f"Replayed{where}, the agent's {counted(len(costs), noun)} cost {format_percent(abs(mean))} "
            f"{'more' if mean > 0 else 'less'} than the entry's on average. It was made with {made}; with others the "
            f"mean of so many may differ by {format_percent(most)}."
        )
        findings.append(Finding(folder.file(ENTRY), reason))
    return findings


def how_compared(verified: VerifiedEntry, row: ReplayRow) -> str:
    """A sentence that says what a replay without findings shows of the entry's costs."""
    made = verified.entry.hardware.instructions
    if row.instructions == made:
        return f"Its costs are the entry's, made with {made} as here."
    agree = "are equal" if row.deviation <= TOLERANCE else f"agree within {format_percent(row.deviation)}"
    return f"Made with {made}, replayed with {row.instructions}: costs {agree}; only with the same must they be equal."


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


def _check_seconds(verified: VerifiedEntry, seconds: float) -> list[Finding]:
    """A finding if a task takes longer than any CPU makes of the declared time."""
    declared = verified.entry.planning.seconds
    if seconds <= max(SLOWEST_TIMES * declared, SLOWEST_SECONDS):
        return []
    reason = f"planning.seconds is {declared}, but replayed, the agent took {seconds:.3g} s for a task (median)."
    return [Finding(verified.folder.file(ENTRY), reason)]


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
    rows = {entry_id: row.model_dump(exclude_unset=True) for entry_id, row in sorted(replays.items())}
    write_json(root / REPLAYED, {"schema": SCHEMA, "entries": rows})
    return root / REPLAYED
