"""`shard-gym evaluate`: agents side by side on one suite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import TaskID
from rich.text import Text

from shard_gym.agents import AGENTS, Agent
from shard_gym.agents.named import NamedAgent, require_problem
from shard_gym.cli.console import FAILED, NONE, heading, new_progress, new_table, output, print_table, sentence, warn
from shard_gym.cli.job_options import HERE, JobOptions
from shard_gym.cli.options import (
    ANALYTICAL,
    AgentOptions,
    CostModelOptions,
    OptionalPath,
    first_tasks,
    parse_options,
    placing_agent,
)
from shard_gym.common.errors import InvalidOptionError, MeasurementError
from shard_gym.common.io.files import require_writable, write_json
from shard_gym.common.text import counted, format_change, format_seconds
from shard_gym.cost_models import CostModel
from shard_gym.envs.real.tasks import as_measured
from shard_gym.evaluation import Evaluation
from shard_gym.evaluation import evaluate as evaluate_agent
from shard_gym.evaluation.evaluations import compare
from shard_gym.evaluation.jobs import evaluate_in_jobs
from shard_gym.tasks import Problem, Suite, load_suite, problem_of
from shard_gym.tasks.suites.best_known import best_known_costs

MEASUREMENTS = ".measurements.sqlite"
"""Ending, in place of `.json`, of the file beside the results that keeps what was measured."""

MAX_FAILURES_SHOWN = 5

MACHINE_DEPENDENT = "max_seconds"
"""The attribute of agents that stop by the clock."""


def evaluate(
    agent: Annotated[list[str], tyro.conf.UseAppendAction],
    option: AgentOptions,
    suite: str,
    split: str = "test",
    tasks: int = 0,
    cost: CostModelOptions = ANALYTICAL,
    seed: int = 0,
    where: JobOptions = HERE,
    out: OptionalPath = None,
) -> None:
    """Let agents answer every task of a suite and compare what their answers cost.

    Where costs are measured, an answer that cannot be is charged its penalty.

    Five of them in a row end the evaluation.

    Args:
        agent: name of an agent, folder of a training run, or FILE.py:NAME of your own; repeat it for more agents.
        option: an option of the agent, such as max_queries=5000, if there is only one; repeat it for more.
        suite: name of the suite; `shard-gym suites` lists them, and says how to draw fresh tasks.
        split: split of the suite, train or test.
        tasks: number of tasks, the first ones of the split; 0 for all.
        cost: the cost model that scores the answers. Measurements are kept in a file beside --out unless --cache
            says where, so that the same command continues an evaluation that was stopped; without both they are not.
            With measured costs, agents that ask a cost model plan under analytical.
        seed: of the stochastic agents.
        where: where the answers are made. They are the same everywhere, but planning times are those of processes
            that work side by side.
        out: write the results to this JSON file: an object for one agent, a list for several.
    """
    if option and len(set(agent)) > 1:
        raise InvalidOptionError("--option is for one --agent. Evaluate agents with options one by one.")
    options = parse_options(option)
    whole = load_suite(suite, split)
    chosen, problem = first_tasks(whole, tasks), problem_of(whole[0])
    if cost.measures:
        where.refuse("Costs are measured one after another, on a machine that does nothing else.")
    if not agent:
        known = sorted(name for name, entry in AGENTS.items() if problem.name in entry.problems)
        raise InvalidOptionError(f"Name an agent with --agent NAME. Known: {', '.join(known)}.")
    for name in agent:
        require_problem(name, problem.name)
    cache = cost.cache
    if out is not None:
        require_writable(out)
        if cost.measures and cache is None:
            cache = out.with_suffix(MEASUREMENTS)
            require_writable(cache)
            out.parent.mkdir(parents=True, exist_ok=True)
    model = cost.make(cache, whole)
    model = problem.model(model)
    placed = as_measured(chosen, model)
    reference = problem.reference
    labels = {name: " ".join([name, *option]) for name in agent}  # with options it may be another than the reference
    given = {reference: (reference, dict[str, Any]()), **{labels[name]: (name, options) for name in agent}}
    agents = {label: placing_agent(name, model, seed, whole.name, **own) for label, (name, own) in given.items()}
    for label, each in agents.items():
        problem.require_agent(each)
        if getattr(each, MACHINE_DEPENDENT, None) is not None:
            where.refuse(f"The answers of {label} depend on the clock, by its {MACHINE_DEPENDENT}.")
    try:
        if where.elsewhere:
            named = {label: NamedAgent(name, model, seed, whole.name, own) for label, (name, own) in given.items()}
            with new_progress() as progress:
                bars = {label: progress.add_task(label, total=len(placed)) for label in named}
                evaluations = evaluate_in_jobs(
                    named, placed, model, where, lambda label, count: progress.advance(bars[label], count)
                )
        else:
            evaluations = evaluate_all(agents, placed, model)
    except (KeyboardInterrupt, MeasurementError) as error:
        if not cost.measures:
            raise
        kept = "No measurement is kept; name a file with --cache or --out."
        if cache is not None:
            kept = f"All measurements are kept in {cache}; repeat the command to continue."
        raise type(error)(f"{error} {kept}".strip()) from error
    shown = [evaluations[label] for label in labels.values()]
    console = output()
    rivals = [label for name, label in labels.items() if name in AGENTS and len(labels) > 1]
    print_evaluations(console, shown, evaluations[reference], best_known_costs(whole, model), problem, rivals)
    if out is not None:
        written = [replace(evaluations[label], agent=name).to_json() for name, label in labels.items()]
        write_json(out, written[0] if len(written) == 1 else written)
        console.print(sentence(f"\nWritten to {out}.", "dim"))


def evaluate_all(agents: Mapping[str, Agent], tasks: Suite[Any], model: CostModel) -> dict[str, Evaluation]:
    """Every agent on every task, with a progress bar each; the results name the agents by their keys."""
    evaluations = {}
    if notice := problem_of(tasks[0]).notice:
        warn(notice, "dim")
    with new_progress() as progress:
        for name, agent in agents.items():
            bar = progress.add_task(name, total=len(tasks))

            def show(done: int, _: int, bar: TaskID = bar) -> None:
                progress.update(bar, completed=done)

            evaluations[name] = replace(evaluate_agent(agent, tasks, model, progress=show), agent=name)
    return evaluations


def print_evaluations(
    console: Console,
    evaluations: list[Evaluation],
    reference: Evaluation,
    best: Mapping[str, float],
    problem: Problem[Any],
    rivals: Collection[str] = (),
) -> None:
    """Print a table of all agents, the cheapest first, and their failures below it; no column without a value.

    Those of `rivals`, agents of ShardGym beside others, have a line each.
    """
    count = counted(len(reference.tasks), "task")
    heading(console, f"{reference.suite} {reference.split}, {count}, {reference.cost_model}\n")
    rows = []
    for evaluation in sorted(evaluations, key=lambda each: each.mean_cost_ms):
        row = compare(evaluation, reference, best)
        rows.append(
            (
                problem.format_cost(evaluation.mean_cost_ms),
                "-".join(map(problem.format_cost, evaluation.interval_ms)) if len(evaluation.tasks) > 1 else NONE,
                NONE if row.to_random is None else format_change(row.to_random),
                NONE if row.to_best is None else format_change(row.to_best),
                Text(str(evaluation.failures), FAILED if evaluation.failures else ""),
                format_seconds(row.seconds),
                f"{row.queries:,.0f}" if row.queries else NONE,
                sentence(_label(evaluation)),
            )
        )
    columns = list(zip(*rows, strict=True))
    table = new_table()
    table.add_column("\nagent", overflow="fold", min_width=18 if console.width >= 80 else 12)
    shown = [columns[-1]]
    headers = (
        *(f"mean\n{problem.unit}", "95%\ninterval", f"vs\n{reference.agent}", f"gap to\n{problem.best_name}"),
        *("failed\ntasks", "plan\ntime", "queries\n/ task"),
    )
    for header, cells in zip(headers, columns[:-1], strict=True):
        if any(cell != NONE for cell in cells):
            table.add_column(header, justify="right", no_wrap=True)
            shown.append(cells)
    for cells in zip(*shown, strict=True):
        table.add_row(*cells)
    print_table(console, table)
    known = "" if problem.bounds_are_reached else " known"
    named = ((2, f"vs {reference.agent}"), (3, f"gap to {problem.best_name}{known}"))
    ratios = " and ".join(name for place, name in named if any(cell != NONE for cell in columns[place]))
    none = " - where a task failed: a penalty is no cost." if any(each.failures for each in evaluations) else ""
    if ratios:
        console.print(sentence(f"\n{ratios}: mean over the tasks of each task's own ratio of costs.{none}", "dim"))
    _print_failures(console, evaluations, rivals)


def _label(evaluation: Evaluation) -> str:
    """The agent, of FILE.py:NAME the name, and who answered the tasks that it left to others."""
    name, others = evaluation.agent.rpartition(".py:")[2], evaluation.left_to_others
    return f"{name} ({others})" if others else name


def _print_failures(console: Console, evaluations: list[Evaluation], rivals: Collection[str]) -> None:
    own_first = sorted(evaluations, key=lambda each: each.agent in rivals)
    for evaluation in own_first:
        failed = [result for result in evaluation.tasks if not result.valid]
        if not failed:
            continue
        count = f"{evaluation.agent} failed on {len(failed)} of {counted(len(evaluation.tasks), 'task')}"
        if evaluation.agent in rivals:
            line = sentence(" ".join(f"{count}: {failed[0].failure}".split()), FAILED)
            # A window shows what fits; a file has it whole.
            cut: Literal["ellipsis", "ignore"] = "ellipsis" if console.is_terminal else "ignore"
            console.print(line, no_wrap=True, overflow=cut, crop=console.is_terminal)
            continue
        console.print(sentence(f"\n{count}, each charged with its penalty:", FAILED))
        for result in failed[:MAX_FAILURES_SHOWN]:
            console.print(sentence(f"  {result.task}: {result.failure}", "red"))
        if len(failed) > MAX_FAILURES_SHOWN:
            console.print(sentence(f"  and {len(failed) - MAX_FAILURES_SHOWN} more.", "red"))
