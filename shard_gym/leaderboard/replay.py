"""Replaying: an entry of an agent that comes with ShardGym is made again in part, to see what it declares."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.agents import AGENTS, make_agent
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.errors import InvalidOptionError, NoPlacementFoundError, ShardGymError
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.scorer import SCORED_BY, scorer_of
from shard_gym.leaderboard.sources import known_training
from shard_gym.leaderboard.store import ENTRY, PLACEMENTS, SIMULATED
from shard_gym.leaderboard.verify import SAME, Verified
from shard_gym.placement import check_placement

MACHINE_DEPENDENT = "max_seconds"
"""An option with which the same seed leads to other placements on another machine."""


@dataclass(frozen=True)
class Replay:
    """What came of it.

    Attributes:
        tasks: how many were placed again.
        seconds: median planning time of them here.
        declared_seconds: as the entry says.
        findings: placements whose cost is not that of the entry's.
    """

    tasks: int
    seconds: float
    declared_seconds: float
    findings: tuple[Finding, ...]


def can_replay(verified: Verified) -> bool:
    """Whether the agent comes with ShardGym, as it learnt where it learns, and its seed decides what it places."""
    agent, training = verified.entry.agent, verified.entry.training
    if verified.place.track != SIMULATED or agent.name not in AGENTS:
        return False
    if agent.name == LocalSearchAgent.name and MACHINE_DEPENDENT in agent.options:
        return False
    shipped = known_training(agent.name)
    learnt = (list(shipped.data), shipped.queries) if shipped else ([], 0)
    return (training.data, training.queries) == learnt


def replay(verified: Verified, tasks: int) -> Replay:
    """Place so many tasks again, spread over the suite, and compare costs, budget and time.

    The entry's seeds take turns, so that none of them can be somebody else's.
    """
    judge, entry = scorer_of(verified.place.suite, verified.place.track), verified.entry
    numbers = np.unique(np.linspace(0, len(judge.suite) - 1, min(tasks, len(judge.suite))).astype(int)).tolist()
    seconds: list[float] = []
    findings = []
    for turn, number in enumerate(numbers):
        position = turn % len(verified.grid.seeds)
        seed, task = verified.grid.seeds[position], judge.suite[number]
        try:
            agent = make_agent(entry.agent.name, cost_model=SCORED_BY[SIMULATED], seed=seed, **_options(verified))
        except ShardGymError as error:
            reason = f"The agent cannot be made as declared: {error}"
            return Replay(0, 0.0, entry.planning.seconds, (Finding(verified.place.named(ENTRY), reason),))
        if turn == 0:
            if agent.search_budget != entry.planning.search_budget:
                asked, has = entry.planning.search_budget, agent.search_budget
                reason = f"planning.search_budget is {asked}, but the agent's is {has}."
                findings.append(Finding(verified.place.named(ENTRY), reason))
            with suppress(NoPlacementFoundError):
                agent.place(task)  # the first time takes longer: modules are imported, weights laid out
        started, placed = time.perf_counter(), None
        with suppress(NoPlacementFoundError):
            placed = agent.place(task)
        seconds.append(time.perf_counter() - started)
        cost = float(judge.penalties[number])
        if placed is not None:
            cost = float(judge.costs(number, check_placement(placed, task.tables, task.topology)[None])[0])
        claimed = float(verified.costs_ms[position, number])
        if abs(cost - claimed) > SAME * claimed:
            reason = f"Replayed, the agent's placement costs {cost} ms; the entry's costs {claimed} ms."
            findings.append(Finding(verified.place.named(PLACEMENTS), reason, task.name, seed))
    return Replay(len(numbers), float(np.median(seconds)), entry.planning.seconds, tuple(findings))


def _options(verified: Verified) -> dict[str, Any]:
    """Those declared for the agent, none of which may be an argument of `make_agent` itself.

    Raises:
        InvalidOptionError: one is.
    """
    options = dict(verified.entry.agent.options)
    taken = sorted({"name", "cost_model", "seed"} & options.keys())
    if taken:
        raise InvalidOptionError(f"no agent has the option {taken[0]!r}.")
    return options
