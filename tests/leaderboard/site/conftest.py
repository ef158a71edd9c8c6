"""Leaderboards of two small suites, made from placements that were really evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard.site import EntryData, ProfileData, SiteData, SuiteData
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

SUITES = ("dlrm-20x4", "merlin-tiny-x16")
AGENTS = ("cost-greedy", "lookup-greedy", "random")
TASKS = 4
"""Of each suite, so that the tests stay quick."""


def first_tasks(name: str) -> TaskSuite:
    """The first test tasks of a named suite, as a suite of their own."""
    return TaskSuite(name, load_suite(name).tasks[:TASKS], split="test")


def _entry(evaluation: Evaluation, best: np.ndarray, place: int) -> EntryData:
    return {
        "id": evaluation.agent,
        "name": evaluation.agent,
        "authors": ["The ShardGym authors"],
        "link": "https://example.org/agent",
        "licence": "MIT",
        "agent": "heuristic",
        "hardware": "one CPU core",
        "seeds": 1,
        "mean_cost_ms": evaluation.mean_cost_ms,
        "interval_ms": list(evaluation.interval_ms),
        "failures": evaluation.failures,
        "gap": float((evaluation.costs_ms / best).mean() - 1.0),
        "improvement_over_next": None if place == len(AGENTS) - 1 else 0.9,
        "planning_ms": 0.25 * 10**place,  # a time that was taken would differ from run to run
        "planning_replayed": place != 1,
        "training_queries": 0,
        "planning_queries": float(place),
        "training_data": "",
        "shard_gym": "0.1.0",
        "task_costs_ms": evaluation.costs_ms.tolist(),
        "placements": [result.placement for result in evaluation.tasks],
    }


def _suite(name: str, evaluations: list[Evaluation], model: AdditiveCostModel) -> SuiteData:
    tasks = first_tasks(name)
    best = np.min([evaluation.costs_ms for evaluation in evaluations], axis=0)
    bounds = [model.cost_bounds(model.table_loads(task.tables, task.topology), task.topology) for task in tasks]
    ranked = sorted(evaluations, key=lambda evaluation: evaluation.mean_cost_ms)
    return {
        "name": name,
        "track": "simulated",
        "hardware": "rtx2080ti" if name.startswith("dlrm") else "a100-dgx",
        "description": f"The first tasks of {name}.",
        "cost_model": "analytical",
        "tasks": [
            {"name": task.name, "best_known_ms": float(best[place]), "lower_bound_ms": bounds[place][0]}
            for place, task in enumerate(tasks)
        ],
        "entries": [_entry(evaluation, best, place) for place, evaluation in enumerate(ranked)],
    }


def _profile(evaluations: dict[str, list[Evaluation]]) -> ProfileData:
    taus = np.round(np.linspace(1.0, 2.0, 41), 3)
    best = {suite: np.min([each.costs_ms for each in found], axis=0) for suite, found in evaluations.items()}
    lines = []
    for place, agent in enumerate(AGENTS):
        ratios = np.concatenate([found[place].costs_ms / best[suite] for suite, found in evaluations.items()])
        shares = [float((ratios <= tau).mean()) for tau in taus]
        lines.append({"id": agent, "name": agent, "tasks": len(ratios), "shares": shares})
    return {"track": "simulated", "hardware": None, "about": "All tasks.", "taus": taus.tolist(), "lines": lines}


@dataclass(frozen=True)
class Boards:
    """Data of a site, and the evaluations that they stand for: by suite, in the order of AGENTS."""

    data: SiteData
    evaluations: dict[str, list[Evaluation]]
    load: Callable[[str], TaskSuite]


@pytest.fixture(scope="session")
def boards() -> Boards:
    model = make_cost_model("analytical")
    evaluations = {
        name: [evaluate(make_agent(agent, seed=0), first_tasks(name), model) for agent in AGENTS] for name in SUITES
    }
    suites = [_suite(name, found, model) for name, found in evaluations.items()]
    data: Any = {"suites": suites, "profiles": [_profile(evaluations)]}
    return Boards(data, evaluations, first_tasks)
