"""Runs: an agent, trained or not, places the test tasks of a suite. Its record is a JSON file and is made once.

A folder of runs holds

records/HASH.json     one for each run
training/HASH/        what training leaves; runs that differ only in how the agent is used share it
"""

from __future__ import annotations

import json
import os
import platform
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from shard_gym.agents import Agent, load_agent, make_agent
from shard_gym.agents.dreamshard.agent import DreamShardAgent
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.agents.training.run import TRAINING as STATE
from shard_gym.cost_models import AdditiveCostModel, make_additive_cost_model
from shard_gym.errors import DamagedFileError, RunsFailedError, ShardGymError
from shard_gym.evaluation import Evaluation, evaluate, score
from shard_gym.io.files import read_json, sha256_of, write_json
from shard_gym.suites import load_suite, suite_info
from shard_gym.system import cpu_model
from shard_gym.tasks import TaskSuite
from shard_gym.text import counted

Option = bool | int | float | str
Options = tuple[tuple[str, Option], ...]
"""Pairs in the order of their names; see `as_options`."""

Record = dict[str, Any]

COST_MODEL = "analytical"
SCHEMA = 1
RECORDS, TRAINING, TRAINED = "records", "training", "trained.json"
PACKAGES = ("numpy", "torch", "stable-baselines3")
"""Packages whose versions a record names."""

GREEDY = "size-lookup-greedy"
ERROR_KINDS = ("random", "greedy", "own")
"""Placements that a surrogate's error is computed on: random ones, those of `GREEDY`, and the agent's own."""

_THREADS = "OMP_NUM_THREADS"
_KEYS = {"run", "training", "test", "estimate_errors", "made_with"}


def as_options(options: Mapping[str, Option]) -> Options:
    """`options` in a form that can be compared and hashed."""
    return tuple(sorted(options.items()))


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of a run.

    Attributes:
        agent: name of the agent.
        test: suite whose test tasks it places.
        trained_on: suite whose training tasks it learns from; empty for an agent that needs no training.
        seed: of training and placing.
        options: the agent's options in training; for an agent that is not trained, those it is made with.
        placing: options that the trained agent is loaded with.
    """

    agent: str
    test: str
    trained_on: str = ""
    seed: int = 0
    options: Options = ()
    placing: Options = ()

    def description(self) -> dict[str, Any]:
        """All of this as a JSON value, with the suites' checksums and the versions of the code."""
        tested = {"test": self.test, "test_sha256": suite_info(self.test).sha256, "placing": dict(self.placing)}
        return {**self.training_description(), **tested}

    def training_description(self) -> dict[str, Any]:
        """The part that determines the agent."""
        import shard_gym

        return {
            "schema": SCHEMA,
            "version": shard_gym.__version__,
            "cost_model": _cost_model().fingerprint,
            "agent": self.agent,
            "seed": self.seed,
            "options": dict(self.options),
            "trained_on": self.trained_on,
            "trained_on_sha256": suite_info(self.trained_on).sha256 if self.trained_on else "",
        }

    @property
    def key(self) -> str:
        """Names the record."""
        return _hash(self.description())

    @property
    def training_key(self) -> str:
        """Names the training; runs with the same key share it."""
        return _hash(self.training_description())

    def __str__(self) -> str:
        """The run as messages name it."""
        training = f" trained on {self.trained_on}" if self.trained_on else ""
        options = ", ".join(f"{name}={value}" for name, value in (*self.options, *self.placing))
        return f"{self.agent}{training}, seed {self.seed}, on {self.test}" + (f" ({options})" if options else "")


@lru_cache
def _cost_model() -> AdditiveCostModel:
    return make_additive_cost_model(COST_MODEL)


def _hash(description: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(description, sort_keys=True).encode())[:16]


def record_path(run: Run, folder: Path) -> Path:
    """Path of the record of `run`, whether it exists or not."""
    return folder / RECORDS / f"{run.key}.json"


def training_path(run: Run, folder: Path) -> Path:
    """Folder that `run` is trained in; `perform` leaves the trained agent there."""
    return folder / TRAINING / run.training_key


def read_record(run: Run, folder: Path) -> Record | None:
    """The record of `run`, or None if it has not been made.

    Raises:
        DamagedFileError: the file is not the record of this run.
    """
    path = record_path(run, folder)
    if not path.exists():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or set(record) != _KEYS or record["run"] != run.description():
        raise DamagedFileError(f"{path} is no record of the run: {run}. Delete it, and the run is made again.")
    return record


def perform(run: Run, folder: Path) -> Record:
    """The record of `run`: read if it exists, else made and written. Training resumes where it was stopped.

    Raises:
        ShardGymError: the agent, one of its options or a file is not usable.
    """
    if (known := read_record(run, folder)) is not None:
        return known
    training, agent = _trained_agent(run, folder)
    suite, model = load_suite(run.test), _cost_model()
    evaluation = evaluate(agent, suite, model)
    record: Record = {
        "run": run.description(),
        "training": training,
        "test": {
            "costs_ms": {result.task: result.cost_ms for result in evaluation.tasks},
            "mean_cost_ms": evaluation.mean_cost_ms,
            "failures": evaluation.failures,
            "placing_seconds": float(np.median([result.seconds for result in evaluation.tasks])),
            "queries": float(np.mean([result.true_cost_queries for result in evaluation.tasks])),
        },
        "estimate_errors": surrogate_errors(agent, suite, evaluation, model),
        "made_with": _made_with(),
    }
    write_json(record_path(run, folder), record)
    return record


def _trained_agent(run: Run, folder: Path) -> tuple[dict[str, float] | None, Agent]:
    """Seconds, evaluations and iterations of training (None without training), and the agent ready to place."""
    options = dict(run.options)
    if not run.trained_on:
        return None, make_agent(run.agent, cost_model=_cost_model(), seed=run.seed, **options)
    path = training_path(run, folder)
    if not (path / TRAINED).exists():
        learner = make_learner(run.agent, run.trained_on, cost_model=_cost_model(), seed=run.seed, **options)
        trained = TrainingRun(learner, path, options, resume=True)
        trained.run()
        facts = {"seconds": trained.seconds, "queries": learner.true_cost_queries, "iterations": learner.iterations}
        write_json(path / TRAINED, facts)
    (path / STATE).unlink(missing_ok=True)  # a replay memory is large, and training is complete
    training: dict[str, float] = read_json(path / TRAINED)
    return training, load_agent(path, cost_model=_cost_model(), seed=run.seed, **dict(run.placing))


def surrogate_errors(
    agent: Agent, suite: TaskSuite, evaluation: Evaluation, model: AdditiveCostModel
) -> dict[str, float] | None:
    """The mean over the tasks of |estimate - cost| / cost for each of `ERROR_KINDS`; None without a surrogate.

    A kind without any valid placement is left out.

    Args:
        agent: any agent; only DreamShard has a surrogate.
        suite: the tasks.
        evaluation: of `agent` on them, under `model`.
        model: the cost model that the surrogate learned from.
    """
    if not isinstance(agent, DreamShardAgent):
        return None
    others = [evaluate(make_agent(name), suite, model) for name in ("random", GREEDY)]
    errors = {}
    for kind, placed in zip(ERROR_KINDS, (*others, evaluation), strict=True):
        shares = [
            abs(score(suite.task(result.task), np.array(result.placement), agent.cost_model) / result.cost_ms - 1.0)
            for result in placed.tasks
            if result.valid
        ]
        if shares:
            errors[kind] = float(np.mean(shares))
    return errors


def _made_with() -> dict[str, str]:
    """The machine, and the versions of the packages that influence the numbers."""
    made_with = {"machine": f"{cpu_model()}, {os.cpu_count()} cores", "python": platform.python_version()}
    for name in PACKAGES:
        try:
            made_with[name] = version(name)
        except PackageNotFoundError:
            continue
    return made_with


# Many runs


def perform_all(
    runs: Iterable[Run], folder: Path, jobs: int = 1, on_done: Callable[[Run], None] = lambda run: None
) -> None:
    """Make the records of `runs` that are missing, in at most `jobs` processes of one thread at a time.

    Runs that share a training are made one after the other by one process. When this function ends, by an exception
    too, so do its processes.

    Args:
        runs: may have duplicates.
        folder: of the runs.
        jobs: processes at a time.
        on_done: called for each run that has ended, with a record or without.

    Raises:
        RunsFailedError: some runs failed; the message names each and says why.
    """
    groups: dict[str, list[Run]] = {}
    for run in dict.fromkeys(runs):
        if not record_path(run, folder).exists():
            groups.setdefault(run.training_key, []).append(run)
    waiting, failures, others = deque(groups.values()), list[str](), active_children()
    # Each group has a pool of its own: if a process dies (out of memory, say), all calls of its pool fail.
    working: dict[Future[list[str]], tuple[list[Run], ProcessPoolExecutor]] = {}
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                group, pool = waiting.popleft(), ProcessPoolExecutor(1, get_context("spawn"), _begin_process)
                with _one_thread():
                    working[pool.submit(_perform_group, group, folder)] = (group, pool)
            for future in wait(working, return_when=FIRST_COMPLETED).done:
                group, pool = working.pop(future)
                pool.shutdown()
                try:
                    failures += future.result()
                except BrokenProcessPool:
                    lost = [run for run in group if not record_path(run, folder).exists()]
                    failures += [f"{run}: its process was killed, for want of memory perhaps." for run in lost]
                for run in group:
                    on_done(run)
    finally:
        for process in set(active_children()).difference(others):
            process.terminate()
        for _, pool in working.values():
            pool.shutdown()
    if failures:
        raise RunsFailedError(
            "\n".join([f"{counted(len(failures), 'run')} failed; the records of the others are written.", *failures])
        )


def _perform_group(runs: list[Run], folder: Path) -> list[str]:
    """Perform `runs` in order; the messages of those that fail."""
    failures = []
    for run in runs:
        try:
            perform(run, folder)
        except ShardGymError as error:
            failures.append(f"{run}: {error}")
        except Exception:
            failures.append(f"{run}: a bug:\n{traceback.format_exc()}")
    return failures


def _begin_process() -> None:
    """Prepare a new process: Ctrl-C goes to all, but is for the parent; when that ends, even killed, so does this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started inside compute on one thread."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
        if before is not None:
            os.environ[_THREADS] = before
