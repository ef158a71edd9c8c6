"""Trainings as jobs, which other processes or nodes of a cluster finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from shard_gym.agents.registry import make_agent
from shard_gym.agents.training.learner import Learner, make_learner
from shard_gym.agents.training.run import TrainingRun
from shard_gym.agents.training.validation import NUM_TASKS, Validation
from shard_gym.common.checks import checked_count
from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.lock import LOCK
from shard_gym.common.jobs import Jobs
from shard_gym.common.text import counted, format_seconds
from shard_gym.cost_models import CostModel, CountedEstimates
from shard_gym.tasks import Suite, problem_of

Files = Mapping[str, bytes]
"""The content of files by their path in a folder, with slashes."""


class TrainingJob(NamedTuple):
    """A training as a job: what `make_learner` and `TrainingRun` are given.

    Attributes:
        validate: number of tasks of the validation, as --validate says.
        folder: of the run; None where only its files are known.
        files: those of the run if it is resumed.
    """

    agent: str
    tasks: Suite[Any]
    cost_model: CostModel
    seed: int
    device: str
    options: Mapping[str, Any]
    validate: int | None
    folder: Path | None = None
    files: Files | None = None


def train_in_jobs(
    trainings: Sequence[TrainingJob],
    folders: Sequence[Path],
    where: Jobs,
    on_done: Callable[[int, str], None],
    train: Callable[[TrainingJob], tuple[str, Files]] | None = None,
) -> None:
    """Finish a training in each of `folders`, which may hold runs to resume.

    Args:
        trainings: with any folder and files; they get those that `where` needs.
        folders: one for each training.
        where: where they train.
        on_done: called with the number of each training that is done, and how much work it was.
        train: what a job does; `trained` if not given.
    """
    jobs = [
        each._replace(folder=None, files=files_of(folder)) if where.cluster else each._replace(folder=folder)
        for each, folder in zip(trainings, folders, strict=True)
    ]
    for index, (done, files) in where.run(train or trained, jobs):
        write_files(folders[index], files)
        on_done(index, done)


def trained(training: TrainingJob) -> tuple[str, Files]:
    """Finish a training: how much work it was, and the files of the run, none if its folder is on this machine."""
    learner = make_learner(
        training.agent,
        training.tasks,
        cost_model=training.cost_model,
        seed=training.seed,
        device=training.device,
        **training.options,
    )
    with TemporaryDirectory() if training.folder is None else nullcontext(training.folder) as name:
        folder = Path(name)
        write_files(folder, training.files or {})
        validation = validation_of(learner, training.validate)
        run = TrainingRun(learner, folder, training.options, resume=True, validation=validation)
        run.run()
        return work_of(run), files_of(folder) if training.folder is None else {}


def files_of(folder: Path) -> Files:
    """All files of a run; none if there is no such folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_files(folder: Path, files: Files) -> None:
    """Write what `files_of` read."""
    for name, content in files.items():
        path = folder.joinpath(*PurePosixPath(name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def validation_of(learner: Learner, count: int | None) -> Validation | None:
    """The validation on `count` tasks; if that is not given, on `NUM_TASKS` where it is cheap."""
    if count is None:
        count = NUM_TASKS if Validation.is_cheap(learner) else 0
    if checked_count("--validate", count, least=0) == 0:
        return None
    problem = problem_of(learner.suite[0])
    rivals = [make_agent(name, suite=learner.suite.name) for name in problem.goals or problem.rivals]
    return Validation(learner, rivals, count)


def work_of(run: TrainingRun) -> str:
    """How much work a run was, in a few words."""
    learner = run.learner
    return f"{counted(learner.iterations, 'iteration')}, {said_of(learner)}, {format_seconds(run.seconds)}"


def said_of(learner: Learner) -> str:
    """What a learner has evaluated so far, in a few words."""
    if not isinstance(learner.cost_model, CountedEstimates):
        replans = problem_of(learner.suite[0]).name == "replanning"
        return counted(learner.true_cost_queries, "decision" if replans else "cost-model evaluation")
    return f"{counted(learner.true_cost_queries, 'measurement')}, {counted(learner.failures, 'failure')}"
