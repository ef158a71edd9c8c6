"""Answers fresh tasks with ShardGym's agents that have entries: `python tools/fresh.py`, then
`shard-gym leaderboard render`. Those that need no training cannot fit the test tasks, so they show what chance does.

Best known costs are of all these agents and of a search with ten times its usual budget. An agent that is trained for
its entry is trained again with the first seed (tools/entries.py says how), in runs/trainings/. The results are
leaderboards/fresh.json.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tyro
from entries import LEADERBOARDS, Entrant, places
from training_runs import RUNS, train_all

from shard_gym.agents import make_agent
from shard_gym.agents.registry import AGENT
from shard_gym.common.arrays import FloatArray
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard.entry import FreshEntry, FreshTasks, VerifiedEntry
from shard_gym.leaderboard.fresh import SEEDS, fresh_table, read_fresh, write_fresh
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites.fresh import fresh_name

SUITES = ("mixdim-4", "mixdim-8", "generalize", "shard-4", "shard-8")
SEARCHERS = {False: "local-search", True: "plan-search"}  # by whether tables may be split
TIMES = 10  # the budget of the search, in multiples of its usual one
DIGITS = 7


def rounded(costs: FloatArray) -> list[float | None]:
    return [None if np.isnan(cost) else float(f"{cost:.{DIGITS}g}") for cost in costs.tolist()]


def costs_of(agent: str, suite: str, names: list[str], **options: object) -> FloatArray:
    """The costs of the test tasks of the suites `names`, one after the other; NaN where there is no answer."""
    found = []
    for name in names:
        tasks = load_suite(name)
        placed = evaluate(make_agent(agent, cost_model=tasks.cost_model, seed=0, suite=suite, **options), tasks)
        found += [result.cost_ms if result.valid else np.nan for result in placed.tasks]
    return np.array(found)


def searched(suite: str, names: list[str]) -> FloatArray:
    """The costs of a search with `TIMES` its usual budget."""
    searcher = SEARCHERS[load_suite(suite)[0].splittable]
    usual = make_agent(searcher, cost_model=load_suite(suite).cost_model).search_budget
    return costs_of(searcher, suite, names, max_queries=TIMES * usual)


def chosen(suite: str) -> dict[EntryFolder, Entrant]:
    """The entries of a suite whose agents do not search under the scoring cost model."""
    return {
        folder: entrant
        for folder, entrant in places().items()
        if folder.suite == suite and entrant.slug not in SEARCHERS.values()
    }


def main(
    suites: tuple[str, ...] = SUITES, entries: tuple[str, ...] = (), train: bool = True, runs: Path = RUNS
) -> None:
    """Run the agents that have no costs yet, and those whose entries changed.

    Args:
        suites: names of suites
        entries: folder names of entries; all if left out
        train: train those agents that need it; without, only those that are trained already are run
        runs: folder of trained agents
    """
    verified: dict[str, VerifiedEntry] = {}
    for suite in SUITES:
        for folder in chosen(suite):
            if (entry := verify_entry(folder)[0]) is not None:
                verified[folder.id] = entry
    table = read_fresh(LEADERBOARDS, verified.values())[0]
    tasks, rows = dict(table.suites), dict(table.entries)
    for suite in suites:
        names = [fresh_name(suite, seed) for seed in SEEDS]
        sha256 = [load_suite(name).sha256 for name in names]
        if suite not in tasks or tasks[suite].sha256 != sha256:
            tasks[suite] = FreshTasks(seeds=list(SEEDS), sha256=sha256, best_ms=rounded(searched(suite, names)))
        for folder, entrant in chosen(suite).items():
            if folder.id in rows or folder.id not in verified or (entries and folder.slug not in entries):
                continue
            trainings = entrant.runs(suite)[:1]
            if train:
                train_all(trainings, runs)
            agent = str(trainings[0].folder(runs)) if trainings else entrant.slug
            if trainings and not (trainings[0].folder(runs) / AGENT).exists():
                continue
            test, fresh = (costs_of(agent, suite, each, **entrant.placing) for each in ([suite], names))
            first = verified[folder.id].costs_ms[0]
            same = np.isclose(test, first, rtol=1e-6) | np.isnan(test)
            print(f"{folder.id}: {same.mean():.0%} of the test tasks cost what they cost in the entry", flush=True)
            rows[folder.id] = FreshEntry(
                answers=verified[folder.id].sha256, test_ms=rounded(test), fresh_ms=rounded(fresh)
            )
            best = np.fmin(tasks[suite].best_ms, np.array(rows[folder.id].fresh_ms, np.float64))
            tasks[suite] = FreshTasks(seeds=list(SEEDS), sha256=sha256, best_ms=best.tolist())
            write_fresh(LEADERBOARDS, fresh_table(tasks, rows))
        write_fresh(LEADERBOARDS, fresh_table(tasks, rows))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
