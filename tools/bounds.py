"""Computes lower bounds of every test task and keeps the highest: `python tools/bounds.py`.

Linear programs bound every task (cost_models/bounds/placements.py, and plans.py for plans, which takes seconds to
minutes and is used here alone). Of plans there are proofs, in shard_gym/tasks/suites/data/proofs/, which
`python tools/bounds.py --check` computes anew without a solver. Of tasks of whole tables, where the best known
placement is further than `gap` from that and `work` is not 0, CP-SAT goes on from it (agents/search/exact.py).

The results go to shard_gym/tasks/suites/data/bounds/<suite>.json; bounds there already, of the same suite and cost
model, can only rise. Better placements that CP-SAT finds go to shard_gym/tasks/suites/data/best_known/<suite>.json, so
run tools/best_known.py first.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import tyro

from shard_gym.agents.search.exact import ExactAgent
from shard_gym.cli.job_options import JobOptions
from shard_gym.common.system import usable_cpus
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.bounds import PlanProof, lower_bound_ms, prove
from shard_gym.tasks import Answer, Task, load_suite, problem_of, suite_names
from shard_gym.tasks.groups import tasks_of_groups
from shard_gym.tasks.suites.best_known import best_known, best_known_effort, write_best_known
from shard_gym.tasks.suites.bounds import lower_bounds, lower_bounds_effort, write_lower_bounds
from shard_gym.tasks.suites.proofs import TaskProof, checked_ms, read_proofs, write_proofs

IMPROVED = "improved by CP-SAT"
PROGRAMS_OF_GROUP = 300  # most linear programs of one of several groups of devices
PROVEN_WITHIN = 1e-9  # share by which a proof may prove less elsewhere, for rounding


class Bounded(NamedTuple):
    simple_ms: float
    linear_ms: float
    bound_ms: float
    start_ms: float
    cost_ms: float
    linear_seconds: float
    seconds: float
    answer: Answer
    proof: TaskProof | None = None  # of plans


def bounded(task: Task, start: Answer, model: AdditiveCostModel, work: float, gap: float) -> Bounded:
    """Bound one task; CP-SAT goes on from the answer `start`, where that is a placement."""
    began, problem = time.perf_counter(), problem_of(task)
    simple, proof = problem.lower_bound_ms(task, model), None
    if task.splittable:
        proof = proof_of_plans(task, model, problem.cost_ms(start, task, model))
        linear = max(simple, proof.bound_ms)
    elif model.exchanges != 2:  # of serving, which the linear programs of placements do not know
        linear = simple
    else:
        linear = lower_bound_ms(task.tables, task.topology, model, task.constraints)
    bound = linear
    linear_seconds = time.perf_counter() - began
    answer, start_ms = start, problem.cost_ms(start, task, model)
    cost = start_ms
    if not task.splittable and work > 0 and cost > bound * (1.0 + gap):
        solution = ExactAgent(model, max_work=work, gap=gap).solve(task, start)
        answer, cost, bound = solution.placement, solution.cost_ms, max(bound, solution.lower_bound_ms)
    return Bounded(simple, linear, bound, start_ms, cost, linear_seconds, time.perf_counter() - began, answer, proof)


def proof_of_plans(task: Task, model: AnalyticalShardingModel, known_ms: float) -> TaskProof:
    """The proof of ms, at most `known_ms`, below which no plan costs, with any groups of devices.

    Groups whose bound without a solver is above `known_ms` need no linear program. The others are in the order of their
    first one, so that most of them have to be above the bound of the first groups only.
    """
    groups = tasks_of_groups(task)
    simple = [problem_of(own).lower_bound_ms(own, model) for own in groups]
    proofs: dict[int, PlanProof] = {}

    def proof_of(group: int, known_ms: float, max_programs: int | None = None) -> PlanProof:
        own = groups[group]
        return prove(own.tables, own.topology, model, own.constraints, known_ms, max_programs)

    todo = [group for group in range(len(groups)) if simple[group] < known_ms]
    if len(todo) > 1:
        proofs = {group: proof_of(group, known_ms, 1) for group in todo}
    least = known_ms
    for group in sorted(todo, key=lambda each: proofs[each].bound_ms if proofs else 0.0):
        if not proofs or proofs[group].bound_ms < least:
            proofs[group] = proof_of(group, least, None if len(todo) == 1 else PROGRAMS_OF_GROUP)
        least = min(least, max(simple[group], proofs[group].bound_ms))
    return TaskProof(float(least), tuple(proofs.get(group) for group in range(len(groups))))


def holds(name: str) -> bool:
    """Whether all proofs of a suite prove what they state; says so, and how many of its bounds are these."""
    suite = load_suite(name)
    model = problem_of(suite[0]).model(suite.cost_model)
    proofs, bounds, wrong = read_proofs(suite, model), lower_bounds(suite, model), []
    for task in suite:
        if task.name in proofs:
            stated = proofs[task.name].bound_ms
            if not checked_ms(proofs[task.name], task, model) >= stated * (1.0 - PROVEN_WITHIN):
                wrong.append(task.name)
    above = {each: bounds.get(each, 0.0) / proof.bound_ms - 1.0 for each, proof in proofs.items()}
    lower = [each for each, share in above.items() if share < -PROVEN_WITHIN]
    of_bounds = sum(share <= PROVEN_WITHIN for share in above.values())
    print(
        f"{name}: {len(proofs) - len(wrong)} of {len(proofs)} proofs hold; {of_bounds} of {len(bounds)} bounds have one"
        + "".join(f"; WRONG: {each}" for each in wrong)
        + "".join(f"; the bound is lower than the proof: {each}" for each in lower),
        flush=True,
    )
    return not wrong and not lower


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
    check: bool = False,
) -> None:
    """Bound all suites, or one.

    Args:
        suite: only this suite
        work: CP-SAT's deterministic seconds for each task; 0 for linear programs alone
        gap: a placement within this share of its bound is not worked on
        tasks: only the first so many tasks of a suite; 0 for all
        jobs: processes at a time; one for each CPU if not given
        cluster: work on a Ray cluster: auto or ray://HOST:PORT; its nodes have the same checkout
        check: check the proofs of bounds on plans, and compute no bound
    """
    if check:
        names = [suite] if suite else suite_names("sharding")
        held = [holds(name) for name in names]
        if not all(held):
            raise SystemExit(1)
        return
    where = JobOptions(jobs or (1 if cluster else usable_cpus()), cluster)
    for name in [suite] if suite else [*suite_names("simulated"), *suite_names("sharding")]:
        chosen = load_suite(name)
        model = problem_of(chosen[0]).model(chosen.cost_model)
        how = "branch and bound" if chosen[0].splittable else "linear programs"
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
        proofs = read_proofs(chosen, model) if chosen[0].splittable else {}
        for task, each in found.items():
            if each.proof is not None and (task not in proofs or proofs[task].bound_ms < each.proof.bound_ms):
                proofs[task] = each.proof
        if proofs:
            write_proofs([chosen], proofs, model)
        better = {task: each.answer for task, each in found.items() if each.cost_ms < each.start_ms}
        if better:
            answers = {task: each.answer for task, each in known.items()}
            clauses = dict.fromkeys([*best_known_effort(name).split("; "), IMPROVED])
            write_best_known([chosen], answers | better, model, "; ".join(clauses))
        print(summary(name, list(found.values()), gap), flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
