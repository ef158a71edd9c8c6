"""`shard-gym experiment`: the experiments of a paper on the suites, and a page with the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from shard_gym.checks import checked_count
from shard_gym.cli.console import new_progress, output, sentence
from shard_gym.cli.options import OptionalInt, command_line
from shard_gym.errors import InvalidOptionError, RunsFailedError
from shard_gym.experiments.report import PAGE, write_report
from shard_gym.experiments.results import Results
from shard_gym.experiments.runs import Run, perform_all, record_path
from shard_gym.experiments.study import Study
from shard_gym.io.files import require_writable
from shard_gym.io.pictures import matplotlib_missing
from shard_gym.text import counted

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(optional)")]


def experiment(
    name: Annotated[Literal["dreamshard"], tyro.conf.Positional],
    out: Path = Path("docs/results"),
    runs: Path = Path("runs/experiments"),
    seeds: int = 5,
    jobs: int = 2,
    suites: Names = (),
    sections: Names = (),
    methods: Names = (),
    iterations: OptionalInt = None,
    report_only: bool = False,
) -> None:
    """Repeat the experiments of the DreamShard paper on the suites; write a page.

    Finished runs are kept: give the same command again to resume.

    Args:
        name: the paper.
        out: folder for the page and its figure.
        runs: folder for the records of the runs and for trained agents.
        seeds: number of seeds of everything random.
        jobs: processes at a time, with one thread each.
        suites: use only these suites, in place of each section's own.
        sections: suites, sb3, transfer, budget or ablations; all if none is named.
        methods: compare only these methods, beside the heuristics and local search.
        iterations: training iterations of everything that learns, in place of its own number; for a trial.
        report_only: make no runs; write the page from those that exist.
    """
    checked_count("--jobs", jobs, 1)
    study = Study(seeds, sections, suites, methods, iterations)
    if missing := matplotlib_missing():
        raise missing
    require_writable(out / PAGE)
    if report_only and not runs.is_dir():
        raise InvalidOptionError(f"There is no folder {runs} with records of runs, so there is nothing to report.")
    failed: RunsFailedError | None = None
    if not report_only:
        try:
            _perform(study.runs(), runs, jobs)
        except RunsFailedError as error:
            failed = error
        except KeyboardInterrupt:
            saved = "All finished runs and iterations are saved; give the same command to resume."
            raise KeyboardInterrupt(f"Interrupted. {saved}") from None
    results = Results(study.settings(), runs)
    command = command_line("experiment", name, **vars(study))
    written = write_report(results, out, command)
    if results.missing:
        output().print(sentence(f"{counted(len(results.missing), 'run')} not made yet; the page names them."))
    output().print(sentence(f"Written: {', '.join(map(str, written))}.", "dim"), soft_wrap=True)
    if failed:
        raise failed


def _perform(runs: list[Run], folder: Path, jobs: int) -> None:
    """Make the missing runs, with a progress bar."""
    done = sum(record_path(run, folder).exists() for run in runs)
    with new_progress() as progress:
        bar = progress.add_task("runs", total=len(runs), completed=done)

        def on_done(run: Run) -> None:
            progress.update(bar, advance=1, description=f"{run.agent} on {run.test}")

        perform_all(runs, folder, jobs, on_done)
