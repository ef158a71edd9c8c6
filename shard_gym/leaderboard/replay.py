"""Replays: the agent of an entry places some of its tasks again; costs, budget and time are compared with the entry.

Only agents that ship with ShardGym can be replayed. The times are kept in `replayed.json`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from shard_gym.agents import AGENTS, PLANNERS, make_agent
from shard_gym.agents.options import placing_options
from shard_gym.errors import DamagedFileError, NoPlacementFoundError, ShardGymError, short_repr
from shard_gym.io.files import write_json
from shard_gym.leaderboard.leagues import league_of
from shard_gym.leaderboard.schema import LEAGUES, SCHEMA, ReplayRow, parse
from shard_gym.leaderboard.scorer import COST_MODEL, load_scorer
from shard_gym.leaderboard.store import ENTRY, REPLAYED, Finding, find_entries, read_limited
from shard_gym.leaderboard.training_data import recorded_training
from shard_gym.leaderboard.verify import TOLERANCE, VerifiedEntry
from shard_gym.suites.info import MEASURED
from shard_gym.system import cpu_model
from shard_gym.tasks import Task
from shard_gym.text import counted

MACHINE_DEPENDENT = "max_seconds"
"""An option of searches with which a seed gives other placements on another machine."""

Replays = Mapping[str, ReplayRow]
"""Rows of `replayed.json` by the ids of the entries."""


def can_replay(verified: VerifiedEntry) -> bool:
    """Whether the agent ships with ShardGym, trained as the entry declares, and its seed decides its placements."""
    agent, training = verified.entry.agent, verified.entry.training
    if verified.folder.track == MEASURED or agent.name not in {*AGENTS, *PLANNERS}:
        return False
    if MACHINE_DEPENDENT in agent.options:
        return False
    recorded = recorded_training(agent.name, verified.folder.suite)
    if recorded and not set(agent.options) <= {option.name for option in placing_options(agent.name)}:
        return False  # options of a training: it is another one
    shipped = (list(recorded.data), recorded.queries) if recorded else ([], 0)
    return (training.data, training.queries) == shipped


def replay(verified: VerifiedEntry, tasks: int) -> tuple[ReplayRow | None, list[Finding]]:
    """Place `tasks` tasks again, evenly spaced in the suite, cycling through the entry's seeds.

    Returns:
        The planning time here, and a finding for each difference from the entry. An agent that cannot be made, or that
        searches more than the entry declares, does not run: None, and why.
    """
    entry, folder = verified.entry, verified.folder
    scorer = load_scorer(folder.suite)
    numbers = np.unique(np.linspace(0, len(scorer.suite) - 1, tasks).astype(int)).tolist()
    seconds: list[float] = []
    asked: list[int] = []
    findings = []
    for count, number in enumerate(numbers):
        position = count % len(entry.seeds)
        seed, task = entry.seeds[position], scorer.suite[number]
        try:
            options = entry.agent.options
            agent = make_agent(entry.agent.name, cost_model=COST_MODEL, seed=seed, **options)
        except (ShardGymError, TypeError) as error:  # an option may have the name of another argument
            reason = f"The agent cannot be made as declared: {error}"
            return None, [Finding(folder.file(ENTRY), reason)]
        ask = scorer.answers.asker(agent)
        if count == 0:
            declared = entry.planning.search_budget
            if agent.search_budget != declared:
                reason = f"planning.search_budget is {declared}, but the agent's is {agent.search_budget}."
                return None, [Finding(folder.file(ENTRY), reason)]  # what is declared has a limit
            with suppress(NoPlacementFoundError):
                ask(task)  # the first call is slower: it imports modules and loads weights
        before = agent.true_cost_queries(scorer.model.fingerprint)
        started, answer = time.perf_counter(), None
        with suppress(NoPlacementFoundError):
            answer = ask(task)
        seconds.append(time.perf_counter() - started)
        asked.append(agent.true_cost_queries(scorer.model.fingerprint) - before)
        cost = float(scorer.penalties[number])
        if answer is not None:
            cost = float(scorer.costs(number, [scorer.answers.checked(answer, task)])[0])
        claimed = float(verified.costs_ms[position, number])
        if abs(cost - claimed) > TOLERANCE * claimed:
            reason = f"Replayed, the agent's {scorer.answers.noun} costs {cost} ms; the entry's costs {claimed} ms."
            findings.append(Finding(folder.file(folder.answers), reason, task.name, seed))
    findings += _check_queries(verified, asked, [scorer.suite[number] for number in numbers])
    median = float(np.median(seconds))
    return ReplayRow(placements=verified.sha256, tasks=len(numbers), seconds=median, machine=cpu_model()), findings


def _check_queries(verified: VerifiedEntry, asked: Sequence[int], tasks: Sequence[Task]) -> list[Finding]:
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
    if verified.league is None or LEAGUES.index(league) > LEAGUES.index(verified.league):
        reason = f"Replayed, the agent belongs to the league {league!r}; the entry belongs to {verified.league!r}."
        findings.append(Finding(file, reason))
    return findings


def read_replays(root: Path, entries: Iterable[VerifiedEntry]) -> tuple[Replays, list[Finding]]:
    """The rows of `replayed.json` under `root`, none if there is no such file, and the findings.

    A time is valid for the placements it was taken with: a changed or missing entry is a finding.
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
            reason = "but the time was taken with other placements."
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
