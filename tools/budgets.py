"""Learners at equal budgets of true-cost evaluations: `docs/results/budgets.md` from trainings with five seeds.

    python tools/budgets.py run --budgets 100      # what is missing; results go to runs/budgets.json
    python tools/budgets.py page                   # the tables of the page
    python tools/budgets.py curves                 # its picture

Every agent is trained on the training tasks of a suite and answers its test tasks. Trainings and evaluations have one
thread each.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from entries import SEARCH, dreamshard
from training_runs import RUNS, Option, Run, train_all

from shard_gym.agents import make_agent
from shard_gym.cli.job_options import JobOptions
from shard_gym.common.io.files import read_json, write_atomically, write_json
from shard_gym.common.io.markdown import table, with_block
from shard_gym.common.io.pictures import save_picture
from shard_gym.common.system import cpu_model, current_commit
from shard_gym.common.text import format_seconds
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation.curve import CURVE, load_curve
from shard_gym.evaluation.evaluations import evaluate
from shard_gym.evaluation.plots import plot_learning
from shard_gym.leaderboard.entry import SEEDS
from shard_gym.leaderboard.training_data import recorded_training
from shard_gym.tasks.suites import load_suite
from shard_gym.tasks.suites.best_known import best_known_costs

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "runs" / "budgets.json"
PAGE = ROOT / "docs" / "results" / "budgets.md"
PICTURE = PAGE.parent / "images" / "learning.png"
CURVE_SUITE, CURVE_BUDGET, CURVE_TASKS = "mixdim-4", 500, 10
BUDGETS = (100, 500, 5_000)
PLACING, SPLITTING = ("mixdim-4", "mixdim-8"), ("shard-4",)
SUITES = (*PLACING, *SPLITTING)
STEPS = {
    "mixdim-4": 60,
    "mixdim-8": 120,
    "shard-4": 118,
}  # of a rollout of Stable-Baselines3's agents in an environment


@dataclass(frozen=True)
class Method:
    """A learner, with options for each budget that make it evaluate the true cost so often in training."""

    name: str  # shown in the table
    learner: str
    options: Callable[[str, int], Mapping[str, Option]]  # of a suite and a budget
    suites: tuple[str, ...] = SUITES
    budgets: tuple[int, ...] = BUDGETS

    def run(self, suite: str, budget: int, seed: int) -> Run:
        return Run(self.learner, suite, seed, tuple(sorted(self.options(suite, budget).items())))


def iterations(preset: str, count: int) -> Callable[[str, int], Mapping[str, Option]]:
    """Options of a preset whose budget is measured in `count` iterations."""
    return lambda suite, budget: {"preset": preset, "iterations": count, "measurements": budget // count}


def neuroshard(suite: str, budget: int) -> Mapping[str, Option]:
    """With fewer updates than for its own 20,000 measurements, which take three minutes."""
    return {**iterations("paper", 10)(suite, budget), "cost_updates": 100 if budget < 5_000 else 300}


def attention(suite: str, budget: int) -> Mapping[str, Option]:
    steps = {100: (5, 1, 1), 500: (25, 1, 1), 5_000: (25, 5, 2)}[budget]
    sizes = dict(zip(("iterations", "updates", "tasks"), steps, strict=True))
    return {**sizes, "rollouts": 20, "records": 20, "cost_updates": 3_000 // sizes["iterations"]}


def stable_baselines(suite: str, budget: int) -> Mapping[str, Option]:
    """Eight environments and as many iterations as the budget allows after the first evaluation of each task."""
    left = budget - len(load_suite(suite, "train"))
    splits = {"observation": "splits"} if suite in SPLITTING else {}
    return {"num_envs": 8, "iterations": max(1, left // (8 * STEPS[suite])), **splits}


METHODS = (
    Method(
        "DreamShard (`dream-search`)", "dreamshard", lambda suite, budget: dreamshard(SEARCH, measurements=budget // 5)
    ),
    Method(
        "— random loads alone",
        "dreamshard",
        lambda suite, budget: {"iterations": 1, "measurements": budget, "cost_updates": 3_000},
        budgets=(100,),
    ),
    Method("DreamShard (`paper`)", "dreamshard", iterations("paper", 10), PLACING),
    Method("NeuroShard (`paper`)", "neuroshard", neuroshard),
    Method("SurCo (`zero`)", "surco", iterations("zero", 5), PLACING[:1], BUDGETS[:1]),
    Method("attention policy", "attention", attention),
    Method(
        "AutoShard (`cost`)",
        "autoshard",
        lambda suite, budget: {"preset": "cost", "iterations": budget // 10, "episodes": 10},
        PLACING,
    ),
    Method("RNN policy", "rnn", lambda suite, budget: {"iterations": budget // 10}, PLACING),
    *(Method(name, name, stable_baselines, budgets=BUDGETS[2:]) for name in ("maskable-ppo", "ppo", "a2c", "dqn")),
)


def key(run: Run) -> str:
    return run.folder(Path()).name


def wanted(suites: tuple[str, ...], budgets: tuple[int, ...], learners: tuple[str, ...]) -> Iterator[Run]:
    for budget in budgets:
        for method in METHODS:
            for suite in suites:
                if (
                    suite in method.suites
                    and budget in method.budgets
                    and method.learner in (learners or [method.learner])
                ):
                    yield from (method.run(suite, budget, seed) for seed in SEEDS)


def measured(run: Run) -> dict[str, Any]:
    """What the answers of a trained agent cost, and what training took."""
    folder = str(run.folder())
    training = recorded_training(folder, run.suite, {})
    assert training is not None  # it is the folder of a training
    evaluation = evaluate(make_agent(folder, seed=run.seed, suite=run.suite), run.suite)
    return {
        "suite": run.suite,
        "queries": training.queries,
        "training_s": training.seconds,
        "placing_s": float(np.median([each.seconds for each in evaluation.tasks])),
        "failed": sum(not each.valid for each in evaluation.tasks),
        "costs_ms": [each.cost_ms for each in evaluation.tasks],
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
    found, where = read_json(RESULTS) if RESULTS.exists() else {}, JobOptions(jobs)
    todo = [each for each in wanted(suites, budgets, learners) if key(each) not in found]
    for first in range(0, len(todo), len(SEEDS)):
        some = todo[first : first + len(SEEDS)]
        train_all(some, RUNS, where)
        results = {key(some[index]): result for index, result in where.run(measured, some)}
        found = {**(read_json(RESULTS) if RESULTS.exists() else {}), **results}
        write_json(RESULTS, found)
        print(some[0].agent, some[0].suite, dict(some[0].options), summary([results[key(each)] for each in some]))


def gap(result: Mapping[str, Any]) -> float:
    """How much more the answers cost than the best that are known today, the mean over tasks, in percent."""
    suite = load_suite(result["suite"])
    best = best_known_costs(suite, make_cost_model(additive=True, splits=True))
    return 100.0 * float(np.mean(np.divide(result["costs_ms"], [best[task.name] for task in suite]) - 1.0))


def summary(results: list[Mapping[str, Any]]) -> list[str]:
    gaps = [gap(each) for each in results]
    failed = sum(each["failed"] for each in results)
    return [
        f"{np.mean(gaps):.1f}% ± {2.776 * np.std(gaps, ddof=1) / np.sqrt(len(gaps)):.1f}"  # Student's t, 4 degrees
        + (f", {failed} failed" if failed else ""),
        format_seconds(float(np.mean([each["training_s"] for each in results]))),
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
        header = ["budget", "learner", "evaluations", "above best known", "training", "placing"]
        text.append(f"## {suite}\n\n{table(header, rows, left=2)}")
    made = f"Made on {datetime.now(timezone.utc):%d %B %Y} at commit {current_commit()[:7]} on {cpu_model()}."
    write_atomically(PAGE, with_block(PAGE, "budgets", "\n\n".join([made, *text])).encode())


def curves() -> None:
    """Draw the learning curves of the page."""
    folders = {}
    for method in METHODS:
        if CURVE_BUDGET in method.budgets and CURVE_SUITE in method.suites and method.learner != "neuroshard":
            training = method.run(CURVE_SUITE, CURVE_BUDGET, 0)
            folders[method.name.replace("`", "")] = training.folder(RUNS / "curves")
            command = [*training.command(RUNS / "curves")[:-1], str(CURVE_TASKS)]
            subprocess.run([sys.executable, "-m", "shard_gym", *command], check=True)
    save_picture(plot_learning({name: load_curve(folder / CURVE) for name, folder in folders.items()}), PICTURE)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "page": page, "curves": curves}, description=__doc__)
