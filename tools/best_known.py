"""Searches for better placements of every test task and keeps the best: `python tools/best_known.py`.

It starts from the placements known already, which include the leaderboards' entries, so another seed can only improve
them. The results are shard_gym/suites/data/best_known/<suite>.json, with the effort of the search.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import tyro

from shard_gym.agents import AGENTS, make_agent
from shard_gym.cost_models import make_additive_cost_model
from shard_gym.errors import NoPlacementFoundError
from shard_gym.evaluation import score
from shard_gym.placement import Placement
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.best_known import best_known, write_best_known


@dataclass
class Args:
    """How long to search."""

    suite: str = ""
    """only this suite"""
    max_queries: int = 1_000_000
    """evaluations of the cost model by local search, for each task"""
    seed: int = 2
    """of the local search"""
    jobs: int = 2
    """processes"""


def search(suite_name: str, number: int, max_queries: int, seed: int) -> Placement:
    """The best placement of one task that any agent finds."""
    model = make_additive_cost_model("analytical")
    task = load_suite(suite_name)[number]
    agents = [make_agent(name, cost_model=model) for name in AGENTS]  # no shipped agent may beat the best known
    agents.append(make_agent("local-search", cost_model=model, seed=seed, max_queries=max_queries))
    found = []
    for agent in agents:
        try:
            found.append(agent.place(task))
        except NoPlacementFoundError:
            continue  # another agent finds one; every task has a known placement
    known = best_known(load_suite(suite_name), model).get(task.name)
    if known is not None:
        found.append(known.placement)
    return min(found, key=lambda placement: score(task, placement, model))


def main() -> None:
    """Search all suites, or one."""
    args = tyro.cli(Args, description=__doc__)
    how = (
        "best of all agents, of the leaderboards' entries so far, and of local search with "
        f"{args.max_queries:,} placements tried for each task"
    )
    with ProcessPoolExecutor(args.jobs) as pool:
        for name in [args.suite] if args.suite else suite_names("simulated"):
            suite = load_suite(name)
            waiting = [pool.submit(search, name, number, args.max_queries, args.seed) for number in range(len(suite))]
            placements = {task.name: each.result() for task, each in zip(suite, waiting, strict=True)}
            path = write_best_known([suite], placements, make_additive_cost_model("analytical"), how)
            print(f"{name}: {len(placements)} tasks, {path.name}", flush=True)


if __name__ == "__main__":
    main()
