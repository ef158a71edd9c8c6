"""Searches for better placements of every test task and keeps the best: `python tools/best_known.py`.

It starts from the placements known already, which include the leaderboards' entries, so another seed can only improve
them. The results are shard_gym/suites/data/best_known/<suite>.json, with the effort of the search.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import tyro

from shard_gym.agents import AGENTS, make_agent
from shard_gym.cost_models import make_additive_cost_model
from shard_gym.errors import NoPlacementFoundError
from shard_gym.evaluation import score
from shard_gym.placement import Placement
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.best_known import best_known, best_known_effort, write_best_known


def search(suite_name: str, number: int, max_queries: int, seed: int) -> Placement:
    """The best placement of one task that any agent finds."""
    model = make_additive_cost_model("analytical")
    task = load_suite(suite_name)[number]
    agents = [make_agent(name, cost_model=model) for name in AGENTS]  # no shipped agent may beat the best known
    agents.append(make_agent("local-search", cost_model=model, seed=seed, max_queries=max_queries))
    found = []
    for agent in agents:
        with suppress(NoPlacementFoundError):  # another agent finds one; every task has a known placement
            found.append(agent.place(task))
    known = best_known(load_suite(suite_name), model).get(task.name)
    if known is not None:
        found.append(known.answer)
    return min(found, key=lambda placement: score(task, placement, model))


def main(suite: str = "", max_queries: int = 1_000_000, seed: int = 2, jobs: int = 2) -> None:
    """Search all suites, or one.

    Args:
        suite: only this suite
        max_queries: evaluations of the cost model by local search, for each task
        seed: of the local search
        jobs: processes
    """
    how = (
        "best of all agents, of the leaderboards' entries so far, and of local search with "
        f"{max_queries:,} placements tried for each task"
    )
    with ProcessPoolExecutor(jobs) as pool:
        for name in [suite] if suite else suite_names("simulated"):
            tasks = load_suite(name)
            waiting = [pool.submit(search, name, number, max_queries, seed) for number in range(len(tasks))]
            placements = {task.name: each.result() for task, each in zip(tasks, waiting, strict=True)}
            model = make_additive_cost_model("analytical")
            earlier = best_known_effort(name).split("; ") if best_known(tasks, model) else []
            kept = [clause for clause in earlier if clause.startswith("improved by")]
            path = write_best_known([tasks], placements, model, "; ".join([how, *kept]))
            print(f"{name}: {len(placements)} tasks, {path.name}", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
