"""Replaying: an entry of an agent that comes with ShardGym is made again in part, to see what it declares."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from shard_gym.agents import AGENTS, make_agent
from shard_gym.errors import NoPlacementFoundError, ShardGymError
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.judge import SCORED_BY, judge_of
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
        tasks: how many were placed again, by the first seed.
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
    if verified.place.track != SIMULATED or agent.name not in AGENTS or MACHINE_DEPENDENT in agent.options:
        return False
    shipped = known_training(agent.name)
    learnt = (list(shipped.data), shipped.queries) if shipped else ([], 0)
    return (training.data, training.queries) == learnt


def replay(verified: Verified, tasks: int) -> Replay:
    """Place the first `tasks` tasks again with the entry's first seed, and compare costs and time."""
    judge = judge_of(verified.place.suite, verified.place.track)
    said, seed = verified.entry.agent, verified.grid.seeds[0]
    seconds: list[float] = []
    findings = []
    try:
        agent = make_agent(said.name, cost_model=SCORED_BY[SIMULATED], seed=seed, **said.options)
    except ShardGymError as error:
        reason = f"The agent cannot be made as declared: {error}"
        return Replay(0, 0.0, verified.entry.planning.seconds, (Finding(verified.place.named(ENTRY), reason),))
    chosen = list(judge.suite)[:tasks]
    with suppress(NoPlacementFoundError):
        agent.place(chosen[0])  # the first time takes longer: modules are imported, weights laid out
    for number, task in enumerate(chosen):
        started, cost = time.perf_counter(), float(judge.penalties[number])
        placed = None
        with suppress(NoPlacementFoundError):
            placed = agent.place(task)
        seconds.append(time.perf_counter() - started)
        if placed is not None:
            cost = float(judge.costs(number, check_placement(placed, task.tables, task.topology)[None])[0])
        claimed = float(verified.costs_ms[0, number])
        if abs(cost - claimed) > SAME * claimed:
            reason = f"Replayed, the agent's placement costs {cost} ms; the entry's costs {claimed} ms."
            findings.append(Finding(verified.place.named(PLACEMENTS), reason, task.name, seed))
    return Replay(len(chosen), float(np.median(seconds)), verified.entry.planning.seconds, tuple(findings))
