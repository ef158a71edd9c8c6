"""Makes the entries of ShardGym's own agents on every suite, and the tables of them: `make leaderboard`.

    leaderboards/simulated/<suite>/<entry>/     the entries; valid ones are kept
    leaderboards/replayed.json, README.md, and the README around them
    runs/experiments/                           what was trained: an agent that is there is not trained again

Agents that learn are trained five times, once for each seed: on the training tasks of the suite itself where it has
some, else on a suite of the same hardware. Training those of Stable-Baselines3 takes hours on large tasks, so they are
trained on one suite for each hardware and place all the others as they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import tyro

from shard_gym.cli.console import new_progress
from shard_gym.cli.leaderboard import Render, Verify
from shard_gym.experiments.methods import LEARNED, PAPER, SEARCHED, STABLE_BASELINES, Method
from shard_gym.experiments.runs import Run, training_path
from shard_gym.experiments.workers import perform_all
from shard_gym.leaderboard.evaluations import evaluate_agent
from shard_gym.leaderboard.schema import SEEDS
from shard_gym.leaderboard.store import SIMULATED, EntryFolder
from shard_gym.leaderboard.submit import EntryInfo, current_commit, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.suites import suite_info, suite_names
from shard_gym.system import cpu_model

ROOT = Path(__file__).parent.parent
LEADERBOARDS = ROOT / "leaderboards"
AUTHORS = ("The ShardGym authors",)
REPLAYED_TASKS = 5

LARGE = {"rtx2080ti-pcie": "dlrm-50x4", "a100-dgx": "generalize"}
SMALL = {"rtx2080ti-pcie": "dlrm-20x4", "a100-dgx": "mixdim-4"}
"""By hardware: where an agent learns that does not learn on the suite itself; SMALL for those that learn slowly."""


@dataclass(frozen=True)
class Entrant:
    """An agent that has an entry on every suite.

    Attributes:
        slug: of its folders; of an agent that is not trained here, its name.
        name: as the tables show it.
        method: how it is trained; None if it is not.
        elsewhere: suite by hardware, on which it is trained where it is not trained on the suite itself.
        everywhere: whether it is trained on every suite that has training tasks.
    """

    slug: str
    name: str
    method: Method | None = None
    elsewhere: Mapping[str, str] = field(default_factory=lambda: LARGE)
    everywhere: bool = True

    def runs(self, suite: str) -> tuple[Run, ...]:
        """The trainings behind the entry on `suite`, one for each seed; none if it is not trained."""
        if self.method is None:
            return ()
        here = "train" in suite_info(suite).tasks and self.everywhere
        on = suite if here else self.elsewhere[suite_info(suite).hardware]
        return self.method.runs(on, on, len(SEEDS), None)


def _stable_baselines(slug: str, name: str) -> Entrant:
    return Entrant(slug, f"{name} of Stable-Baselines3", STABLE_BASELINES[slug], SMALL, everywhere=False)


ENTRANTS = (
    Entrant("random", "Random"),
    Entrant("size-greedy", "Greedy by size"),
    Entrant("dim-greedy", "Greedy by dim"),
    Entrant("lookup-greedy", "Greedy by lookups"),
    Entrant("size-lookup-greedy", "Greedy by size and lookups"),
    Entrant("cost-greedy", "Greedy by cost"),
    Entrant("local-search", "Local search"),
    Entrant("dreamshard", "DreamShard, as it ships"),
    Entrant("dreamshard-search", "DreamShard, preset dream-search", LEARNED[SEARCHED]),
    Entrant("dreamshard-paper", "DreamShard, preset paper", LEARNED[PAPER]),
    Entrant("rnn", "RNN policy", LEARNED["rnn"]),
    _stable_baselines("ppo", "PPO"),
    _stable_baselines("maskable-ppo", "MaskablePPO"),
    _stable_baselines("a2c", "A2C"),
    _stable_baselines("dqn", "DQN"),
)


@dataclass
class Args:
    """Which entries to make."""

    suites: tuple[str, ...] = ()
    """names of suites; all if left out"""
    entries: tuple[str, ...] = ()
    """folder names of entries; all if left out"""
    anew: bool = False
    """replace valid entries, too"""
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    """processes at a time"""
    runs: Path = ROOT / "runs" / "experiments"
    """folder of trained agents"""


def wanted(args: Args) -> Iterator[tuple[EntryFolder, Entrant]]:
    """The entries that are missing or no longer valid."""
    for suite in args.suites or suite_names():
        for entrant in ENTRANTS:
            if args.entries and entrant.slug not in args.entries:
                continue
            folder = EntryFolder(LEADERBOARDS, SIMULATED, suite, entrant.slug)
            if args.anew or not folder.path.exists() or verify_entry(folder)[0] is None:
                yield folder, entrant


def make(folder: EntryFolder, entrant: Entrant, runs: Path, commit: str) -> None:
    """Make one entry; it replaces the existing one."""
    agents = [str(training_path(run, runs)) for run in entrant.runs(folder.suite)] or [entrant.slug]
    agent = evaluate_agent(agents, folder.suite, {})
    info = EntryInfo(entrant.name, AUTHORS, licence="MIT", link="", machine=cpu_model(), commit=commit)
    shutil.rmtree(folder.path, ignore_errors=True)
    findings = submit(folder, agent, info)
    if findings:
        raise SystemExit(f"{folder.id} is not valid: {findings[0]}")


def main(args: Args) -> int:
    """Train the agents that need it, make the entries, then the tables."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come
    todo, commit = list(wanted(args)), current_commit()
    trainings = dict.fromkeys(run for folder, entrant in todo for run in entrant.runs(folder.suite))
    with new_progress() as progress:
        bar = progress.add_task("training", total=len(trainings))
        perform_all(trainings, args.runs, args.jobs, lambda run: progress.advance(bar))
        bar = progress.add_task("placing", total=len(todo))
        with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(make, *each, args.runs, commit) for each in todo]):
                done.result()
                progress.advance(bar)
    verify = Verify(all=True, replay=REPLAYED_TASKS, keep_times=True, update_best_known=True, root=LEADERBOARDS)
    return verify.run() or Render(root=LEADERBOARDS).run()


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Args, description=__doc__)))
