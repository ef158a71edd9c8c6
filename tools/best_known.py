"""Searches for better placements, or plans, of every test task and keeps the best: `python tools/best_known.py`.

It starts from those known already, which include the leaderboards' entries, so another seed can only improve them. The
results are shard_gym/tasks/suites/data/best_known/<suite>.json, with the effort of the search.
"""

from __future__ import annotations

from contextlib import suppress

import tyro

from shard_gym.agents import agent_names, make_agent
from shard_gym.cli.job_options import JobOptions
from shard_gym.common.errors import InvalidPlanError, NoPlacementFoundError
from shard_gym.common.system import usable_cpus
from shard_gym.tasks import Answer, load_suite, problem_of, suite_names
from shard_gym.tasks.suites.best_known import best_known, best_known_effort, write_best_known

SHIPPED_PLANNERS = ("plan-search", "hugectr")  # planners that need no extra


def search(job: tuple[str, int, int, int]) -> Answer:
    """The best answer found to a task, by its suite and number; then come `max_queries` and `seed` of the search."""
    suite_name, number, max_queries, seed = job
    suite = load_suite(suite_name)
    task = suite[number]
    problem = problem_of(task)
    model = problem.model(suite.cost_model)
    planners = SHIPPED_PLANNERS if task.splittable else ()
    names = [*agent_names("placement"), *planners]  # no shipped agent may beat the best known
    agents = [make_agent(name, cost_model=model) for name in names]
    searcher = "plan-search" if task.splittable else "local-search"
    agents.append(make_agent(searcher, cost_model=model, seed=seed, max_queries=max_queries))
    found = []
    for agent in agents:
        with suppress(NoPlacementFoundError, InvalidPlanError):  # another agent finds one, or knows the constraints
            found.append(problem.checked(problem.asker(agent)(task), task))
    return min(found, key=lambda answer: problem.cost_ms(answer, task, model))


def main(
    suite: str = "", max_queries: int = 1_000_000, seed: int = 2, jobs: int | None = None, cluster: str | None = None
) -> None:
    """Search all suites, or one.

    Args:
        suite: only this suite
        max_queries: evaluations of the cost model by local search, or plan-search, for each task
        seed: of that search
        jobs: processes at a time; one for each CPU if not given
        cluster: search on a Ray cluster: auto or ray://HOST:PORT; its nodes have the same checkout
    """
    where = JobOptions(jobs or (1 if cluster else usable_cpus()), cluster)
    for name in [suite] if suite else [*suite_names("simulated"), *suite_names("sharding")]:
        tasks = load_suite(name)
        problem = problem_of(tasks[0])
        model = problem.model(tasks.cost_model)
        how = (
            "best of all agents, of the leaderboards' entries so far, and of "
            f"{'plan-search' if tasks[0].splittable else 'local search'} with "
            f"{max_queries:,} {problem.noun}s tried for each task"
        )
        known = best_known(tasks, model)
        found = {}
        for index, answer in where.run(search, [(name, number, max_queries, seed) for number in range(len(tasks))]):
            task = tasks[index]
            answers = [answer, *([known[task.name].answer] if task.name in known else [])]
            found[task.name] = min(answers, key=lambda each: problem.cost_ms(each, task, model))
        earlier = best_known_effort(name).split("; ") if known else []
        kept = [clause for clause in earlier if clause.startswith("improved by")]
        path = write_best_known([tasks], found, model, "; ".join([how, *kept]))
        print(f"{name}: {len(found)} tasks, {path.name}", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
