"""`shard-gym experiment`: the questions of a paper asked of the suites, answered on a page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro

from shard_gym.checks import checked_count
from shard_gym.cli import INTERRUPTED_EXIT_CODE, PROG
from shard_gym.cli.console import errors, new_progress, output, sentence
from shard_gym.cli.options import OptionalInt
from shard_gym.cli.pictures import matplotlib_missing
from shard_gym.errors import InvalidOptionError, RunsFailedError
from shard_gym.experiments.answers import Answers
from shard_gym.experiments.parts import Plan
from shard_gym.experiments.report import PAGE, write_report
from shard_gym.experiments.runs import Run, record_path
from shard_gym.experiments.workers import perform_all
from shard_gym.io.files import require_writable
from shard_gym.text import counted

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(optional)")]


def experiment(
    name: Annotated[Literal["dreamshard"], tyro.conf.Positional],
    out: Path = Path("docs/results"),
    runs: Path = Path("runs/experiments"),
    seeds: int = 5,
    jobs: int = 2,
    suites: Names = (),
    parts: Names = (),
    methods: Names = (),
    iterations: OptionalInt = None,
    report_only: bool = False,
) -> int:
    """Repeat the experiments of the DreamShard paper on the suites; write a page.

    No run is made twice: a command that was stopped goes on when given again.

    Args:
        name: the paper.
        out: folder for the page and its pictures.
        runs: folder for the records of the runs and for trained agents.
        seeds: how often everything random is repeated.
        jobs: processes at a time, one thread each.
        suites: ask only about these suites, in place of each part's own.
        parts: suites, sb3, transfer, budget, ablations or time; all if none is named.
        methods: compare only these methods, beside the heuristics and local search.
        iterations: of everything that is trained, in place of its own number; for a trial.
        report_only: make the page from the runs there are.
    """
    checked_count("--jobs", jobs, 1)
    plan = Plan(seeds, parts, suites, methods, iterations)
    if missing := matplotlib_missing():
        raise missing
    require_writable(out / PAGE)
    if report_only and not runs.is_dir():
        raise InvalidOptionError(f"There is no folder {runs} with records of runs, so there is nothing to report.")
    command = _command(name, plan)
    failed: RunsFailedError | None = None
    if not report_only:
        try:
            _perform(plan.runs(), runs, jobs)
        except RunsFailedError as error:
            failed = error
        except KeyboardInterrupt:
            message = "Interrupted. All finished runs and iterations are safe; give the same command to go on."
            errors().print(sentence(message, "bold red"))
            return INTERRUPTED_EXIT_CODE
    answers = Answers(plan.cells(), runs)
    written = write_report(answers, out, command)
    if answers.missing:
        output().print(sentence(f"{counted(len(answers.missing), 'run')} asked for but missing; the page names them."))
    output().print(sentence(f"Written: {', '.join(map(str, written))}.", "dim"), soft_wrap=True)
    if failed:
        raise failed
    return 0


def _perform(asked: list[Run], folder: Path, jobs: int) -> None:
    """Make the missing runs, under a bar."""
    known = sum(record_path(run, folder).exists() for run in asked)
    with new_progress() as progress:
        bar = progress.add_task("runs", total=len(asked), completed=known)

        def show(run: Run) -> None:
            progress.update(bar, advance=1, description=f"{run.agent} on {run.test}")

        perform_all(asked, folder, jobs, show)


def _command(name: str, plan: Plan) -> str:
    """What makes the same page anywhere."""
    words = [PROG, "experiment", name, "--seeds", str(plan.seeds)]
    for option, values in (("--parts", plan.parts), ("--suites", plan.suites), ("--methods", plan.methods)):
        words += [option, *values] if values else []
    words += [] if plan.iterations is None else ["--iterations", str(plan.iterations)]
    return shlex.join(words)
