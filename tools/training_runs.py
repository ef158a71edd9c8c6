"""Training runs behind the shipped data: each is `shard-gym train` in a folder of its own, which resumes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import shard_gym
from shard_gym.cost_models import make_cost_model
from shard_gym.io.files import sha256_of
from shard_gym.suites import suite_info

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

    def command(self, runs: Path = RUNS) -> list[str]:
        """The arguments of `shard-gym` that train the agent, or go on where the training was stopped."""
        options = [word for name, value in self.options for word in ("--option", f"{name}={value}")]
        named = ["--agent", self.agent, "--suite", self.suite, "--seed", str(self.seed), *options]
        return ["train", *named, "--out", str(self.folder(runs)), "--resume", "--no-evaluate", "--validate", "0"]


def train_all(
    trainings: Iterable[Run], runs: Path = RUNS, jobs: int = 1, on_done: Callable[[], None] = lambda: None
) -> None:
    """Train what is not trained yet, in at most `jobs` processes of one thread at a time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def train(run: Run) -> str:
        command = run.command(runs)
        ran = subprocess.run(
            [sys.executable, "-m", "shard_gym", *command], env=environment, capture_output=True, text=True, check=False
        )
        return "" if ran.returncode == 0 else f"shard-gym {' '.join(command)}\n{ran.stderr[-2_000:]}"

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(train, run) for run in dict.fromkeys(trainings)]
        try:
            for each in as_completed(waiting):
                each.result()
                on_done()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if failures := [each.result() for each in waiting if each.result()]:
        raise SystemExit("\n\n".join([f"Failed trainings: {len(failures)} of {len(waiting)}.", *failures]))
