"""Computes lower bounds of every test task and keeps the highest: `python tools/bounds.py`.

Linear programs bound every task (cost_models/bounds.py, and plan_bounds.py for plans). Of tasks of whole tables, where
the best known placement is further than `gap` from that and `work` is not 0, CP-SAT goes on from it (agents/exact.py).
The results go to shard_gym/suites/data/bounds/<suite>.json; bounds there already, of the same suite and cost model, can
only rise. Better placements that CP-SAT finds go to shard_gym/suites/data/best_known/<suite>.json, so run
tools/best_known.py first.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
import tyro

from shard_gym.agents import make_agent
from shard_gym.agents.exact import ExactAgent
from shard_gym.answers import PLANS, answers_to
from shard_gym.cost_models import AdditiveCostModel, make_additive_cost_model, make_sharding_cost_model
from shard_gym.cost_models.bounds import lower_bound_ms
from shard_gym.cost_models.plan_bounds import plan_lower_bound_ms
from shard_gym.placement import Placement
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.best_known import BestKnown, best_known, best_known_effort, write_best_known
from shard_gym.suites.bounds import lower_bounds, lower_bounds_effort, write_lower_bounds
from shard_gym.tasks import Task

IMPROVED = "improved by CP-SAT"


class Bounded(NamedTuple):
    """What was found of one task: ms, seconds, and the best placement."""

    simple_ms: float
    linear_ms: float
    bound_ms: float
    start_ms: float
    cost_ms: float
    linear_seconds: float
    seconds: float
    placement: Placement


def bounded(task: Task, model: AdditiveCostModel, start: Placement | None, work: float, gap: float) -> Bounded:
    """Bound one task, from a placement or from that of local search."""
    began = time.perf_counter()
    simple = model.cost_bounds(model.table_loads(task.tables, task.topology), task.topology)[0]
    linear = bound = lower_bound_ms(task.tables, task.topology, model)
    linear_seconds = time.perf_counter() - began
    placement = make_agent("local-search", cost_model=model).place(task) if start is None else start
    start_ms = cost = model.estimate(placement, task.tables, task.topology).total_ms
    if work > 0 and cost > bound * (1.0 + gap):
        solution = ExactAgent(model, max_work=work, gap=gap).solve(task, placement)
        placement, cost, bound = solution.placement, solution.cost_ms, max(bound, solution.lower_bound_ms)
    seconds = time.perf_counter() - began
    return Bounded(simple, linear, bound, start_ms, cost, linear_seconds, seconds, placement)


def bounded_plans(task: Task, best: BestKnown) -> Bounded:
    """Bound the plans of one task; the best known one stays."""
    model, began = make_sharding_cost_model("analytical"), time.perf_counter()
    simple = PLANS.lower_bound_ms(task, model)
    linear = max(simple, plan_lower_bound_ms(task.tables, task.topology, model))
    seconds = time.perf_counter() - began
    return Bounded(simple, linear, linear, best.cost_ms, best.cost_ms, seconds, seconds, best.answer)


def search(suite_name: str, number: int, work: float, gap: float) -> Bounded:
    """Bound one test task of a suite, from its best known placement or plan."""
    if answers_to(load_suite(suite_name)[number]) is PLANS:
        plans = make_sharding_cost_model("analytical")
        task = load_suite(suite_name)[number]
        return bounded_plans(task, best_known(load_suite(suite_name), plans)[task.name])
    model = make_additive_cost_model("analytical")
    suite = load_suite(suite_name)
    known = best_known(suite, model).get(suite[number].name)
    return bounded(suite[number], model, None if known is None else known.answer, work, gap)


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


def main(suite: str = "", work: float = 30.0, gap: float = 1e-4, tasks: int = 0, jobs: int = 2) -> None:
    """Bound all suites, or one.

    Args:
        suite: only this suite
        work: CP-SAT's deterministic seconds for each task; 0 for linear programs alone
        gap: a placement within this share of its bound is not worked on
        tasks: only the first so many tasks of a suite; 0 for all
        jobs: processes
    """
    model = make_additive_cost_model("analytical")
    with ProcessPoolExecutor(jobs) as pool:
        for name in [suite] if suite else [*suite_names("simulated"), *suite_names("sharding")]:
            chosen = load_suite(name)
            exact = work > 0 and answers_to(chosen[0]) is not PLANS
            how = f"linear programs and up to {work:g} s of CP-SAT for each task" if exact else "linear programs"
            first = list(chosen)[: tasks or None]
            waiting = [pool.submit(search, name, number, work, gap) for number in range(len(first))]
            found = {task.name: each.result() for task, each in zip(first, waiting, strict=True)}
            stored = lower_bounds(chosen, model)
            bounds = stored | {task: max(each.bound_ms, stored.get(task, 0.0)) for task, each in found.items()}
            some = f" of the first {len(first)}" if len(first) < len(chosen) else ""
            efforts = [*(lower_bounds_effort(name).split("; ") if stored else ()), how + some]
            write_lower_bounds([chosen], bounds, model, "; ".join(dict.fromkeys(efforts)))
            better = {task: each.placement for task, each in found.items() if each.cost_ms < each.start_ms}
            known = {task: each.answer for task, each in best_known(chosen, model).items()}
            if known and better:
                clauses = dict.fromkeys([*best_known_effort(name).split("; "), IMPROVED])
                write_best_known([chosen], known | better, model, "; ".join(clauses))
            print(summary(name, list(found.values()), gap), flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
