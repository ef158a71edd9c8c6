"""`shard-gym experiment`: the experiments behind the pages of results; each writes its page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.checks import checked_count
from shard_gym.cli.console import new_progress, output, sentence
from shard_gym.cli.options import OptionalInt, command_line
from shard_gym.errors import InvalidOptionError, RunsFailedError
from shard_gym.experiments import hardware, hardware_report
from shard_gym.experiments.report import PAGE, write_report
from shard_gym.experiments.results import Results
from shard_gym.experiments.runs import Run, perform_all, record_path
from shard_gym.experiments.study import Study
from shard_gym.io.files import require_writable
from shard_gym.io.pictures import matplotlib_missing
from shard_gym.text import counted

Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(optional)")]

RESUME = "All finished runs and iterations are saved; give the same command to resume."


@dataclass(frozen=True)
class DreamShard:
    """Repeat the experiments of the DreamShard paper on the suites, under the analytical cost model.

    Finished runs are kept: give the same command again to resume.

    Attributes:
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

    out: Path = Path("docs/results")
    runs: Path = Path("runs/experiments")
    seeds: int = 5
    jobs: int = 2
    suites: Names = ()
    sections: Names = ()
    methods: Names = ()
    iterations: OptionalInt = None
    report_only: bool = False

    def run(self) -> None:
        """Make the runs and the page."""
        checked_count("--jobs", self.jobs, 1)
        study = Study(self.seeds, self.sections, self.suites, self.methods, self.iterations)
        _require_matplotlib(self.out / PAGE)
        if self.report_only and not self.runs.is_dir():
            raise InvalidOptionError(
                f"There is no folder {self.runs} with records of runs, so there is nothing to report."
            )
        failed: RunsFailedError | None = None
        if not self.report_only:
            try:
                _perform(study.runs(), self.runs, self.jobs)
            except RunsFailedError as error:
                failed = error
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"Interrupted. {RESUME}") from None
        results = Results(study.settings(), self.runs)
        command = command_line("experiment", "dreamshard", **vars(study))
        written = write_report(results, self.out, command)
        if results.missing:
            output().print(sentence(f"{counted(len(results.missing), 'run')} not made yet; the page names them."))
        output().print(sentence(f"Written: {', '.join(map(str, written))}.", "dim"), soft_wrap=True)
        if failed:
            raise failed


@dataclass(frozen=True)
class Hardware:
    """Train agents on measured costs, and race them with the heuristics on unseen tasks; needs FBGEMM.

    Nothing else should run on the machine. What is finished is kept: give the same command again to resume.

    Attributes:
        out: folder for the page; what it is computed from goes into hardware-DEVICE beside it.
        runs: folder for measurements, trained agents and the race.
        suite: suite of the tasks to learn from and to race on.
        device: what is measured on, cpu or cuda; it stands for all devices of a task.
        budgets: numbers of placements to measure in training.
        seeds: number of seeds of everything that learns.
        tasks: number of test tasks, the first ones; 0 for all.
        rounds: number of rounds of the race.
        policy_iterations: training iterations of maskable-ppo, in place of its own number; for a trial.
        report_only: measure nothing; write the page again from the files beside it.
    """

    out: Path = Path("docs/results")
    runs: Path = Path("runs/hardware")
    suite: str = "cpu-40x4"
    device: str = "cpu"
    budgets: tuple[int, ...] = (100, 300)
    seeds: int = 3
    tasks: int = 0
    rounds: int = 3
    policy_iterations: OptionalInt = None
    report_only: bool = False

    def run(self) -> None:
        """Train, race, and write the page."""
        options = {name: value for name, value in vars(self).items() if name not in ("out", "runs", "report_only")}
        study = hardware.HardwareStudy(self.runs, **options)
        name = f"hardware-{self.device}"
        path, results = self.out / f"{name}.md", self.out / name
        _require_matplotlib(path)
        if self.report_only:
            race, facts = hardware_report.read_results(results, study.test)
        else:
            with new_progress() as progress:
                bar = progress.add_task("", total=None)
                try:
                    race = hardware.perform(study, lambda step: progress.update(bar, description=step))
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(f"Interrupted. {RESUME}") from None
            facts = hardware.facts_of(study, race)
            hardware_report.write_results(results, race, facts)
        command = command_line("experiment", "hardware", **options)
        hardware_report.write_page(path, results, race, facts, command)
        output().print(sentence(f"Written: {path}, {results}.", "dim"), soft_wrap=True)


def experiment(
    command: Annotated[DreamShard, tyro.conf.subcommand("dreamshard")]
    | Annotated[Hardware, tyro.conf.subcommand("hardware")],
) -> None:
    """Make the experiments behind the pages of results."""
    command.run()


def _require_matplotlib(page: Path) -> None:
    if missing := matplotlib_missing():
        raise missing
    require_writable(page)


def _perform(runs: list[Run], folder: Path, jobs: int) -> None:
    """Make the missing runs, with a progress bar."""
    done = sum(record_path(run, folder).exists() for run in runs)
    with new_progress() as progress:
        bar = progress.add_task("runs", total=len(runs), completed=done)

        def on_done(run: Run) -> None:
            progress.update(bar, advance=1, description=f"{run.agent} on {run.test}")

        perform_all(runs, folder, jobs, on_done)
