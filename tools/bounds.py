"""Computes lower bounds of every test task and keeps the highest: `python tools/bounds.py`.

Linear programs bound every task (cost_models/bounds/placements.py, and plans.py for plans, which takes seconds
and is used here alone). Of tasks of whole tables, where the best known placement is further than `gap` from that and
`work` is not 0, CP-SAT goes on from it (agents/search/exact.py). The results go to
shard_gym/tasks/suites/data/bounds/<suite>.json; bounds there already, of the same suite and cost model, can only rise.
Better placements that CP-SAT finds go to shard_gym/tasks/suites/data/best_known/<suite>.json, so run
tools/best_known.py first.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tyro

from shard_gym.agents.search.exact import ExactAgent
from shard_gym.cli.job_options import JobOptions
from shard_gym.common.system import usable_cpus
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.analytical.grouped import sync_ms_per_byte
from shard_gym.cost_models.bounds import lower_bound_ms, plan_lower_bound_ms
from shard_gym.tasks import Answer, Task, load_suite, problem_of, suite_names
from shard_gym.tasks.groups import tasks_of_groups
from shard_gym.tasks.suites.best_known import best_known, best_known_effort, write_best_known
from shard_gym.tasks.suites.bounds import lower_bounds, lower_bounds_effort, write_lower_bounds

IMPROVED = "improved by CP-SAT"


class Bounded(NamedTuple):
    simple_ms: float
    linear_ms: float
    bound_ms: float
    start_ms: float
    cost_ms: float
    linear_seconds: float
    seconds: float
    answer: Answer


def bounded(task: Task, start: Answer, model: AdditiveCostModel, work: float, gap: float) -> Bounded:
    """Bound one task; CP-SAT goes on from the answer `start`, where that is a placement."""
    began, problem = time.perf_counter(), problem_of(task)
    simple = problem.lower_bound_ms(task, model)
    if model.exchanges != 2:  # of serving, which the linear programs do not know
        linear = simple
    elif task.splittable:
        linear = max(simple, bound_of_plans(task, model, problem.cost_ms(start, task, model)))
    else:
        linear = lower_bound_ms(task.tables, task.topology, model, task.constraints)
    bound = linear
    linear_seconds = time.perf_counter() - began
    answer, start_ms = start, problem.cost_ms(start, task, model)
    cost = start_ms
    if not task.splittable and work > 0 and cost > bound * (1.0 + gap):
        solution = ExactAgent(model, max_work=work, gap=gap).solve(task, start)
        answer, cost, bound = solution.placement, solution.cost_ms, max(bound, solution.lower_bound_ms)
    return Bounded(simple, linear, bound, start_ms, cost, linear_seconds, time.perf_counter() - began, answer)


def bound_of_plans(task: Task, model: AnalyticalShardingModel, known_ms: float) -> float:
    """Ms, at most `known_ms`, below which no plan costs, with any groups of devices.

    Averaging waits for the fullest device of a group, which has no fewer bytes than the mean one. Groups whose bound
    without a solver is above `known_ms` need no linear program.
    """
    least = np.inf
    for own in tasks_of_groups(task):
        simple = problem_of(own).lower_bound_ms(own, model)
        if simple < min(known_ms, least):
            mean_bytes = float(own.tables.memory_bytes.sum()) / own.num_devices
            plain = replace(own.topology, replicas=None)
            averaging = sync_ms_per_byte(own.topology) * mean_bytes
            linear = plan_lower_bound_ms(own.tables, plain, model, own.constraints)
            least = min(least, max(simple, linear + averaging))
    return float(min(least, known_ms))


def search(job: tuple[str, int, Answer, float, float]) -> tuple[Any, ...]:
    """The fields of `bounded` of a task, by its suite and number, and its other arguments."""
    suite_name, number, start, work, gap = job
    suite = load_suite(suite_name)
    return tuple(bounded(suite[number], start, problem_of(suite[number]).model(suite.cost_model), work, gap))


def summary(name: str, found: list[Bounded], gap: float) -> str:
    """A line about a suite: mean gaps, how many tasks are proven, and seconds for each task."""
    costs = np.array([task.cost_ms for task in found])
    gaps = [100 * (costs / np.array([task[bound] for task in found]) - 1).mean() for bound in range(3)]
    proven = sum(task.cost_ms <= task.bound_ms * (1.0 + gap) for task in found)
    better = sum(task.cost_ms < task.start_ms * (1.0 - 1e-9) for task in found)
    linear, all_of_it = (np.mean([task[seconds] for task in found]) for seconds in (5, 6))
    return (
        f"{name}: {len(found)} tasks, mean gap {gaps[0]:.2f}% to the bound without a solver, {gaps[1]:.3f}% to linear "
        f"programs, {gaps[2]:.3f}% to the best bound; {proven} proven, {better} better placements; "
        f"{linear:.2f} s for linear programs and {all_of_it:.1f} s in all for each task"
    )


def main(
    suite: str = "",
    work: float = 30.0,
    gap: float = 1e-4,
    tasks: int = 0,
    jobs: int | None = None,
    cluster: str | None = None,
) -> None:
    """Bound all suites, or one.

    Args:
        suite: only this suite
        work: CP-SAT's deterministic seconds for each task; 0 for linear programs alone
        gap: a placement within this share of its bound is not worked on
        tasks: only the first so many tasks of a suite; 0 for all
        jobs: processes at a time; one for each CPU if not given
        cluster: work on a Ray cluster: auto or ray://HOST:PORT; its nodes have the same checkout
    """
    where = JobOptions(jobs or (1 if cluster else usable_cpus()), cluster)
    for name in [suite] if suite else [*suite_names("simulated"), *suite_names("sharding")]:
        chosen = load_suite(name)
        model = problem_of(chosen[0]).model(chosen.cost_model)
        how = "linear programs"
        if work > 0 and not chosen[0].splittable:
            how += f" and up to {work:g} s of CP-SAT for each task"
        first = list(chosen)[: tasks or None]
        if len(first) < len(chosen):
            how += f" of the first {len(first)}"
        known = best_known(chosen, model)
        todo = [(name, number, known[task.name].answer, work, gap) for number, task in enumerate(first)]
        results = dict(where.run(search, todo))
        found = {task.name: Bounded(*results[number]) for number, task in enumerate(first)}
        stored = lower_bounds(chosen, model)
        bounds = stored | {task: max(each.bound_ms, stored.get(task, 0.0)) for task, each in found.items()}
        efforts = [*(lower_bounds_effort(name).split("; ") if stored else ()), how]
        write_lower_bounds([chosen], bounds, model, "; ".join(dict.fromkeys(efforts)))
        better = {task: each.answer for task, each in found.items() if each.cost_ms < each.start_ms}
        if better:
            answers = {task: each.answer for task, each in known.items()}
            clauses = dict.fromkeys([*best_known_effort(name).split("; "), IMPROVED])
            write_best_known([chosen], answers | better, model, "; ".join(clauses))
        print(summary(name, list(found.values()), gap), flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
