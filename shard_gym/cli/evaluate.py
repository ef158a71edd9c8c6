"""`shard-gym evaluate`: agents side by side on one suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from shard_gym.agents import AGENTS, Agent, make_agent
from shard_gym.cli.console import (
    FAILED,
    NONE,
    REFERENCE,
    heading,
    new_progress,
    new_table,
    output,
    print_table,
    sentence,
)
from shard_gym.cli.options import OptionalPath
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import Evaluation, compare
from shard_gym.evaluation import evaluate as evaluate_agent
from shard_gym.io.files import require_writable, write_json
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs
from shard_gym.tasks import TaskSuite
from shard_gym.text import counted, format_change, format_ms, format_seconds

MAX_FAILURES_SHOWN = 5

HEADERS = (
    "mean\nms",
    "95%\ninterval",
    "vs\nrandom",
    "gap to\nbest",
    "failed\ntasks",
    "plan\ntime",
    "queries\n/ task",
)

EXPENDABLE = ("95%\ninterval", "queries\n/ task", "plan\ntime", "vs\nrandom")
"""Headers of the columns that a narrow window goes without, the first first."""


def evaluate(
    agent: Annotated[list[str], tyro.conf.UseAppendAction],
    suite: str,
    split: str = "test",
    cost_model: str = "analytical",
    seed: int = 0,
    out: OptionalPath = None,
) -> None:
    """Let agents place every task of a suite and compare what their placements cost.

    Args:
        agent: name of an agent, or the folder of a training run; give the option again for each further one.
        suite: name of the suite; `shard-gym suites` lists them.
        split: the split of the suite, train or test.
        cost_model: the model that scores the placements, and that agents may ask while they plan.
        seed: of the agents that are random.
        out: write the results to this JSON file: an object for one agent, a list of them for several.
    """
    if not agent:
        raise InvalidOptionError(f"Name an agent with --agent NAME. Known: {', '.join(sorted(AGENTS))}.")
    if out is not None:
        require_writable(out)
    tasks = load_suite(suite, split)
    model = make_cost_model(cost_model)
    asked = {name: make_agent(name, cost_model=model, seed=seed) for name in agent}
    agents = {REFERENCE: make_agent(REFERENCE, cost_model=model, seed=seed), **asked}
    evaluations = evaluate_all(agents, tasks, model)
    shown = [evaluations[name] for name in asked]
    console = output()
    print_evaluations(console, shown, evaluations[REFERENCE], best_known_costs(tasks, model))
    if out is not None:
        write_json(out, shown[0].to_json() if len(shown) == 1 else [evaluation.to_json() for evaluation in shown])
        console.print(sentence(f"\nWritten to {out}.", "dim"))


def evaluate_all(agents: Mapping[str, Agent], tasks: TaskSuite, model: AdditiveCostModel) -> dict[str, Evaluation]:
    """Every agent on every task, under one progress bar each; the results call them by their keys."""
    evaluations = {}
    with new_progress() as progress:
        bars = {name: progress.add_task(name, total=len(tasks), start=False) for name in agents}
        for name, placer in agents.items():
            progress.start_task(bars[name])
            evaluation = evaluate_agent(placer, tasks, model, progress=partial(_show, progress, bars[name]))
            evaluations[name] = replace(evaluation, agent=name)
    return evaluations


def _show(progress: Progress, bar: TaskID, done: int, _: int) -> None:
    progress.update(bar, completed=done)


def print_evaluations(
    console: Console, evaluations: list[Evaluation], reference: Evaluation, best: Mapping[str, float]
) -> None:
    """A table of all agents, the cheapest first, and below it what went wrong."""
    count = counted(len(reference.tasks), "task")
    heading(console, f"{reference.suite} {reference.split}, {count}, {reference.cost_model}\n")
    table = new_table()
    table.add_column("\nagent", no_wrap=True)
    for header in HEADERS:
        table.add_column(header, justify="right", no_wrap=True)
    for evaluation in sorted(evaluations, key=lambda each: each.mean_cost_ms):
        row = compare(evaluation, reference, best)
        table.add_row(
            sentence(evaluation.agent),
            format_ms(evaluation.mean_cost_ms),
            "-".join(map(format_ms, evaluation.interval_ms)) if len(evaluation.tasks) > 1 else NONE,
            format_change(row.to_random),
            NONE if row.to_best is None else format_change(row.to_best),
            Text(str(evaluation.failures), FAILED if evaluation.failures else ""),
            format_seconds(row.seconds),
            f"{row.queries:,.0f}" if row.queries else NONE,
        )
    print_table(console, table, EXPENDABLE)
    ratios = f"vs {REFERENCE} and gap to best (known)" if best else f"vs {REFERENCE}"
    console.print(sentence(f"\n{ratios}: mean over the tasks of each task's own ratio of costs.", "dim"))
    _print_failures(console, evaluations)


def _print_failures(console: Console, evaluations: list[Evaluation]) -> None:
    """What went wrong, in red; a few tasks of each agent."""
    for evaluation in evaluations:
        failed = [result for result in evaluation.tasks if not result.valid]
        if failed:
            count = f"{len(failed)} of {counted(len(evaluation.tasks), 'task')}"
            console.print(sentence(f"\n{evaluation.agent} failed on {count}, each charged with its penalty:", FAILED))
        for result in failed[:MAX_FAILURES_SHOWN]:
            console.print(sentence(f"  {result.task}: {result.failure}", "red"))
        if len(failed) > MAX_FAILURES_SHOWN:
            console.print(sentence(f"  and {len(failed) - MAX_FAILURES_SHOWN} more.", "red"))
