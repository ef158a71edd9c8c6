"""Learners at equal budgets of true-cost evaluations: `docs/results/budgets.md` from trainings with five seeds.

    python tools/budgets.py run --budgets 100      # what is missing; results go to tools/budgets.json
    python tools/budgets.py page                   # the tables of the page

Every agent is trained on the training tasks of a suite and answers the first of its test tasks. Trainings and
evaluations have one thread each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from entries import SEARCH, dreamshard
from training_runs import RUNS, Option, Run, train_all

from shard_gym.agents import make_agent
from shard_gym.agents.training.jobs import Files, files_of
from shard_gym.cli.job_options import JobOptions
from shard_gym.common.io.files import read_json, write_atomically, write_json
from shard_gym.common.io.markdown import table
from shard_gym.common.system import cpu_model, current_commit
from shard_gym.common.text import format_seconds
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard.entry import SEEDS
from shard_gym.leaderboard.training_data import recorded_training
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.task import cost_model_for

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parent.parent / "docs" / "results" / "budgets.md"
BUDGETS = (100, 500, 5_000)
SUITES = ("mixdim-8", "shard-4", "shard-generalize")
TASKS = 20  # test tasks that are answered
PLACING, SPLITTING = SUITES[:1], SUITES[1:]
T_OF_SEEDS = 2.776  # Student's t of 95% with as many degrees of freedom as seeds but one


INTRODUCTION = """# Learners at equal budgets

Each learner may evaluate the true cost so often in training, and not once when it answers the test tasks. What
it makes of that depends on what it learns: a cost network, under which a search or a policy then plans as long
as it likes, or a policy alone.

- `budget` is what its options allow, `evaluations` what the seed with the most used. Learners that play whole
  rollouts round it.
- `above best known` is the mean over the first {tasks} test tasks, then over five seeds, with Student's 95%
  interval over the seeds. A task without a valid answer is charged its penalty, and counted as failed.
- `placing` is the mean over seeds of the median wall-clock time of a task, with one thread, beside other programs.
- The agents of Stable-Baselines3 see no costs here (`observation=features`). Observations with costs ask for
  that of each table alone first, 6,500 evaluations on `mixdim-8` and 12,000 on `shard-4`, and a rollout takes
  at least 240, so they begin at 500, and have no row where tables are split.
- DreamShard (`paper`), SurCo, AutoShard and the RNN policy place whole tables.
- NeuroShard's preset `search` is DreamShard's `dream-search`.
- `random loads alone` measures no plan of its own: one iteration of random loads, with as many updates in all."""


@dataclass(frozen=True)
class Method:
    """A learner, with options for each suite and budget that make it evaluate the true cost so often in training."""

    name: str  # shown in the table
    learner: str
    options: Callable[[str, int], Mapping[str, Option]]  # of a suite and a budget
    suites: tuple[str, ...] = SUITES
    budgets: tuple[int, ...] = BUDGETS

    def run(self, suite: str, budget: int, seed: int) -> Run:
        return Run(self.learner, suite, seed, tuple(sorted(self.options(suite, budget).items())))


def iterations(preset: str, count: int, **more: Option) -> Callable[[str, int], Mapping[str, Option]]:
    """Options of a preset whose budget is measured in `count` iterations."""
    return lambda suite, budget: {"preset": preset, "iterations": count, "measurements": budget // count, **more}


def neuroshard(suite: str, budget: int) -> Mapping[str, Option]:
    """With fewer updates than for its own 20,000 measurements, which take three minutes."""
    return {**iterations("paper", 10)(suite, budget), "cost_updates": 100 if budget < 5_000 else 300}


def attention(suite: str, budget: int) -> Mapping[str, Option]:
    steps = {100: (5, 1, 1), 500: (25, 1, 1), 5_000: (25, 5, 2)}[budget]
    sizes = dict(zip(("iterations", "updates", "tasks"), steps, strict=True))
    return {**sizes, "rollouts": 20, "records": 20, "cost_updates": 3_000 // sizes["iterations"]}


def stable_baselines(suite: str, budget: int) -> Mapping[str, Option]:
    """As many rollouts as the budget allows, of eight environments or two, which show no costs.

    Those that show costs ask for that of each table alone first: 6,500 evaluations on mixdim-8, 12,000 on shard-4.
    """
    envs = 8 if budget >= 5_000 else 2
    rollouts = budget // (envs * load_suite(suite, "train").max_tables)
    return {"num_envs": envs, "iterations": rollouts, "observation": "features"}


METHODS = (
    Method(
        "DreamShard (`dream-search`)", "dreamshard", lambda suite, budget: dreamshard(SEARCH, measurements=budget // 5)
    ),
    Method(
        "— random loads alone",
        "dreamshard",
        lambda suite, budget: dreamshard(SEARCH, iterations=1, measurements=budget, cost_updates=3_000),
        budgets=BUDGETS[:1],
    ),
    Method("DreamShard (`paper`)", "dreamshard", iterations("paper", 10), PLACING),
    Method("NeuroShard (`paper`)", "neuroshard", neuroshard),
    Method("SurCo (`zero`)", "surco", iterations("zero", 5, steps=10), PLACING),
    Method("attention policy", "attention", attention),
    Method(
        "AutoShard (`cost`)",
        "autoshard",
        lambda suite, budget: {"preset": "cost", "iterations": budget // 10, "episodes": 10},
        PLACING,
    ),
    Method("RNN policy", "rnn", lambda suite, budget: {"iterations": budget // 10}, PLACING),
    *(Method(name, name, stable_baselines, PLACING, BUDGETS[1:]) for name in ("maskable-ppo", "ppo", "a2c", "dqn")),
)


def key(run: Run) -> str:
    return run.folder(Path()).name


def wanted(suites: tuple[str, ...], budgets: tuple[int, ...], learners: tuple[str, ...]) -> Iterator[Run]:
    for budget in budgets:
        for suite in suites:
            for method in METHODS:
                chosen = not learners or method.learner in learners
                if chosen and suite in method.suites and budget in method.budgets:
                    yield from (method.run(suite, budget, seed) for seed in SEEDS)


def measured(job: tuple[str, str, int, Files]) -> dict[str, Any]:
    """The mean gap of the answers of a trained agent to the best known ones, and what it evaluated in training."""
    folder, name, seed, _ = job
    training = recorded_training(folder, name, {})
    assert training is not None  # it is the folder of a training
    suite = load_suite(name)
    model = make_cost_model(cost_model_for(suite, "analytical"), additive=True, splits=suite[0].splittable)
    best = best_known_costs(suite, model)
    tasks = replace(suite, tasks=suite[:TASKS])
    evaluation = evaluate(make_agent(folder, seed=seed, suite=name), tasks, model)
    return {
        "queries": training.queries,
        "placing_s": float(np.median([each.seconds for each in evaluation.tasks])),
        "failed": sum(not each.valid for each in evaluation.tasks),
        "gap_percent": 100.0 * float(np.mean([each.cost_ms / best[each.task] - 1.0 for each in evaluation.tasks])),
    }


def run(
    suites: tuple[str, ...] = SUITES, budgets: tuple[int, ...] = BUDGETS, learners: tuple[str, ...] = (), jobs: int = 1
) -> None:
    """Train and evaluate what has no result yet.

    Args:
        suites: names of suites
        budgets: evaluations of the true cost in training
        learners: names of learners; all if left out
        jobs: processes at a time
    """
    where, found = JobOptions(jobs), read_json(RESULTS) if RESULTS.exists() else {}
    todo = [each for each in wanted(suites, budgets, learners) if key(each) not in found]
    for first in range(0, len(todo), len(SEEDS)):
        some = todo[first : first + len(SEEDS)]
        train_all(some, RUNS, where)
        each_job = [(str(each.folder()), each.suite, each.seed, files_of(each.folder())) for each in some]
        results = {key(some[index]): result for index, result in where.run(measured, each_job)}
        found = {**(read_json(RESULTS) if RESULTS.exists() else {}), **results}
        write_json(RESULTS, found)
        shown = {name: value for name, value in some[0].options if name in ("preset", "iterations", "measurements")}
        print(some[0].agent, some[0].suite, shown, max(each["queries"] for each in results.values()), end=" ")
        print(summary([results[key(each)] for each in some]), flush=True)


def summary(results: list[Mapping[str, Any]]) -> list[str]:
    gaps = [each["gap_percent"] for each in results]
    failed = sum(each["failed"] for each in results)
    return [
        f"{np.mean(gaps):.1f}% ± {T_OF_SEEDS * np.std(gaps, ddof=1) / np.sqrt(len(gaps)):.1f}"
        + (f", {failed} failed" if failed else ""),
        format_seconds(float(np.mean([each["placing_s"] for each in results]))),
    ]


def page() -> None:
    """Write the tables of the page from the results."""
    found, text = read_json(RESULTS), []
    for suite in SUITES:
        rows = []
        for budget in BUDGETS:
            for method in METHODS:
                if suite not in method.suites or budget not in method.budgets:
                    continue
                runs = [key(method.run(suite, budget, seed)) for seed in SEEDS]
                if all(each in found for each in runs):
                    results = [found[each] for each in runs]
                    queries = max(each["queries"] for each in results)
                    rows.append([f"{budget:,}", method.name, f"{queries:,}", *summary(results)])
        header = ["budget", "learner", "evaluations", "above best known", "placing"]
        text.append(f"## {suite}\n\n{table(header, rows, left=2)}")
    made = (
        f"Made on {datetime.now(timezone.utc):%d %B %Y} at commit {current_commit()[:7]} with "
        f"`python tools/budgets.py run` and `page`, a script of that commit, on {cpu_model()}."
    )
    write_atomically(PAGE, ("\n\n".join([INTRODUCTION.format(tasks=TASKS), made, *text]) + "\n").encode())


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "page": page}, description=__doc__)
