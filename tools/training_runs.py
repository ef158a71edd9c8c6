"""Training runs behind the shipped data: each is `shard-gym train` in a folder of its own, which resumes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import shard_gym
from shard_gym.agents.training.jobs import Files, TrainingJob, train_in_jobs, trained
from shard_gym.cli.job_options import HERE, JobOptions
from shard_gym.common.errors import ShardGymError
from shard_gym.common.io.files import sha256_of
from shard_gym.cost_models import make_cost_model
from shard_gym.tasks import load_suite, suite_info
from shard_gym.tasks.task import cost_model_for

Option = bool | int | float | str
Options = tuple[tuple[str, Option], ...]  # pairs in the order of their names

RUNS = Path(__file__).parent.parent / "runs" / "trainings"


@dataclass(frozen=True)
class Run:
    """Everything that determines a trained agent."""

    agent: str  # name of the learner
    suite: str  # suite whose training tasks it learns from
    seed: int = 0
    options: Options = ()

    def folder(self, runs: Path = RUNS) -> Path:
        """The folder of the run; its name changes with the agent, the suite, the cost model and the version."""
        described = {
            "version": shard_gym.__version__,
            "cost_model": make_cost_model("analytical").fingerprint,
            "suite_sha256": suite_info(self.suite).sha256,
            "options": dict(self.options),
        }
        digest = sha256_of(json.dumps(described, sort_keys=True).encode())[:16]
        return runs / f"{self.agent}-{self.suite}-seed{self.seed}-{digest}"

    def training(self) -> TrainingJob:
        """The same as a job."""
        tasks = load_suite(self.suite, "train")
        model = make_cost_model(cost_model_for(tasks, "analytical"))
        return TrainingJob(self.agent, tasks, model, self.seed, "cpu", dict(self.options), validate=0)

    def command(self, runs: Path = RUNS) -> list[str]:
        """The arguments of `shard-gym` that train the agent, or go on where the training was stopped."""
        options = [word for name, value in self.options for word in ("--option", f"{name}={value}")]
        named = ["--agent", self.agent, "--suite", self.suite, "--seed", str(self.seed), *options]
        return ["train", *named, "--out", str(self.folder(runs)), "--resume", "--no-evaluate", "--validate", "0"]


def train_all(
    trainings: Iterable[Run], runs: Path = RUNS, where: JobOptions = HERE, on_done: Callable[[], None] = lambda: None
) -> None:
    """Train what is not trained yet, each training as a job; one that fails does not end the others."""
    some = list(dict.fromkeys(trainings))
    failures = []

    def show(index: int, said: str) -> None:
        if said.startswith(FAILED):
            failures.append(f"shard-gym {' '.join(some[index].command(runs))}\n{said}")
        on_done()

    train_in_jobs([run.training() for run in some], [run.folder(runs) for run in some], where, show, attempted)
    if failures:
        raise SystemExit("\n\n".join([f"Failed trainings: {len(failures)} of {len(some)}.", *failures]))


FAILED = "It failed: "


def attempted(training: TrainingJob) -> tuple[str, Files]:
    """`trained`; of one that fails only the reason comes back."""
    try:
        return trained(training)
    except ShardGymError as error:
        return f"{FAILED}{error}", {}
