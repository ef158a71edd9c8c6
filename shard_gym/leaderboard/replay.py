"""Replays: the agent of an entry places some of its tasks again; costs, budget and time are compared with the entry.

Only agents that ship with ShardGym can be replayed. The times are kept in `replayed.json`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from shard_gym.agents import AGENTS, Agent, make_agent
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.errors import InvalidOptionError, NoPlacementFoundError, ShardGymError, short_repr
from shard_gym.io.files import write_json
from shard_gym.leaderboard.schema import SCHEMA, ReplayRow, parse_replays
from shard_gym.leaderboard.scorer import TRACK_COST_MODELS, load_scorer
from shard_gym.leaderboard.store import ENTRY, PLACEMENTS, REPLAYED, SIMULATED, Finding, find_entries, read_root_file
from shard_gym.leaderboard.training_data import recorded_training
from shard_gym.leaderboard.verify import TOLERANCE, VerifiedEntry
from shard_gym.placement import check_placement
from shard_gym.system import cpu_model

MACHINE_DEPENDENT = "max_seconds"
"""An option of local search with which a seed gives other placements on another machine."""

Replays = Mapping[str, ReplayRow]
"""Rows of `replayed.json` by the ids of the entries."""


def can_replay(verified: VerifiedEntry) -> bool:
    """Whether the agent ships with ShardGym, trained as the entry declares, and its seed decides its placements."""
    agent, training = verified.entry.agent, verified.entry.training
    if verified.folder.track != SIMULATED or agent.name not in AGENTS:
        return False
    if agent.name == LocalSearchAgent.name and MACHINE_DEPENDENT in agent.options:
        return False
    recorded = recorded_training(agent.name)
    shipped = (list(recorded.data), recorded.queries) if recorded else ([], 0)
    return (training.data, training.queries) == shipped


def replay(verified: VerifiedEntry, tasks: int) -> tuple[ReplayRow | None, list[Finding]]:
    """Place `tasks` tasks again, evenly spaced in the suite, cycling through the entry's seeds.

    Returns:
        The planning time here, None if the agent cannot be made; and a finding for each difference from the entry.
    """
    entry, folder = verified.entry, verified.folder
    scorer = load_scorer(folder.suite, folder.track)
    numbers = np.unique(np.linspace(0, len(scorer.suite) - 1, min(tasks, len(scorer.suite))).astype(int)).tolist()
    seconds: list[float] = []
    findings = []
    for count, number in enumerate(numbers):
        position = count % len(entry.seeds)
        seed, task = entry.seeds[position], scorer.suite[number]
        try:
            agent = _make_agent(verified, seed)
        except ShardGymError as error:
            reason = f"The agent cannot be made as declared: {error}"
            return None, [Finding(folder.file(ENTRY), reason)]
        if count == 0:
            declared = entry.planning.search_budget
            if agent.search_budget != declared:
                reason = f"planning.search_budget is {declared}, but the agent's is {agent.search_budget}."
                findings.append(Finding(folder.file(ENTRY), reason))
            with suppress(NoPlacementFoundError):
                agent.place(task)  # the first call is slower: it imports modules and loads weights
        started, placement = time.perf_counter(), None
        with suppress(NoPlacementFoundError):
            placement = agent.place(task)
        seconds.append(time.perf_counter() - started)
        cost = float(scorer.penalties[number])
        if placement is not None:
            cost = float(scorer.costs(number, [check_placement(placement, task.tables, task.topology)])[0])
        claimed = float(verified.costs_ms[position, number])
        if abs(cost - claimed) > TOLERANCE * claimed:
            reason = f"Replayed, the agent's placement costs {cost} ms; the entry's costs {claimed} ms."
            findings.append(Finding(folder.file(PLACEMENTS), reason, task.name, seed))
    median = float(np.median(seconds))
    return ReplayRow(placements=verified.sha256, tasks=len(numbers), seconds=median, machine=cpu_model()), findings


def _make_agent(verified: VerifiedEntry, seed: int) -> Agent:
    """The agent with the declared options, none of which may be another argument of `make_agent`.

    Raises:
        ShardGymError: it cannot be made.
    """
    agent = verified.entry.agent
    reserved = sorted({"name", "cost_model", "seed"} & agent.options.keys())
    if reserved:
        raise InvalidOptionError(f"no agent has the option {reserved[0]!r}.")
    return make_agent(agent.name, cost_model=TRACK_COST_MODELS[SIMULATED], seed=seed, **agent.options)


def read_replays(root: Path, entries: Iterable[VerifiedEntry]) -> tuple[Replays, list[Finding]]:
    """The rows of `replayed.json` under `root`, none if there is no such file, and the findings.

    A time is valid for the placements it was taken with: a changed or missing entry is a finding.
    """
    content, findings = read_root_file(root, REPLAYED)
    if content is None:
        return {}, findings
    table, findings = parse_replays(content)
    if table is None:
        return {}, findings
    verified = {each.folder.id: each for each in entries}
    folders = {folder.id for folder in find_entries(root)[0]}
    for entry_id, row in table.entries.items():
        reason = ""
        if entry_id in verified:
            reason = _check_row(row, verified[entry_id])
        elif entry_id not in folders:  # an entry that is not valid has findings of its own
            reason = "which does not exist."
        if reason:
            reason = f"It has a time of {short_repr(entry_id)}, {reason}"
            update = "Update the times with: shard-gym leaderboard verify --all --replay 5 --keep-times."
            findings.append(Finding(REPLAYED, f"{reason} {update}"))
    return table.entries, findings


def _check_row(row: ReplayRow, verified: VerifiedEntry) -> str:
    """Why a time cannot be that of an entry; empty if it can."""
    if row.placements != verified.sha256:
        return "but the time was taken with other placements."
    if not can_replay(verified):
        return "but its agent does not ship with ShardGym as declared."
    tasks = len(verified.placements[0])
    return f"taken with {row.tasks} tasks, but there are {tasks}." if row.tasks > tasks else ""


def write_replays(root: Path, replays: Replays) -> Path:
    """Write `replayed.json`, sorted by the ids of the entries; returns its path.

    Raises:
        UnwritablePathError: it cannot be written.
    """
    rows = {entry_id: row.model_dump() for entry_id, row in sorted(replays.items())}
    write_json(root / REPLAYED, {"schema": SCHEMA, "entries": rows})
    return root / REPLAYED
