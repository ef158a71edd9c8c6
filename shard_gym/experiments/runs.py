"""A run: an agent, trained or not, places the test tasks of a suite. Its record is a JSON file that is never redone.

A folder of runs holds

records/HASH.json     one for each run
training/HASH/        what training leaves; runs that differ only in how the agent is used share it
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents import Agent, load_agent, make_agent
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.agents.training.run import TRAINING as STATE
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.errors import DamagedFileError
from shard_gym.evaluation import evaluate
from shard_gym.experiments.estimates import estimate_errors
from shard_gym.io.files import read_json, sha256_of, write_json
from shard_gym.suites import load_suite, suite_info
from shard_gym.system import cpu_model

Option = bool | int | float | str
Options = tuple[tuple[str, Option], ...]
"""Pairs in the order of their names; see `as_options`."""

Record = dict[str, Any]

COST_MODEL = "analytical"
SCHEMA = 1
RECORDS, TRAINING, TRAINED = "records", "training", "trained.json"
PACKAGES = ("numpy", "torch", "stable-baselines3")
"""Whose versions a record names."""

_KEYS = {"run", "training", "test", "estimate_errors", "made_with"}


def as_options(options: Mapping[str, Option]) -> Options:
    """`options` in a form that can be compared and hashed."""
    return tuple(sorted(options.items()))


@dataclass(frozen=True)
class Run:
    """Everything that decides what a run finds out.

    Attributes:
        agent: name of the agent.
        test: suite whose test tasks it places.
        trained_on: suite whose training tasks it learns from; empty for an agent that needs no training.
        seed: of training and placing.
        options: the agent's own in training; of an agent that is not trained, those it is made with.
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
        tested = {"test": self.test, "test_sha256": _sha256(self.test), "placing": dict(self.placing)}
        return {**self.training_description(), **tested}

    def training_description(self) -> dict[str, Any]:
        """The part that decides how the agent is made."""
        import shard_gym

        return {
            "schema": SCHEMA,
            "version": shard_gym.__version__,
            "cost_model": _cost_model().fingerprint,
            "agent": self.agent,
            "seed": self.seed,
            "options": dict(self.options),
            "trained_on": self.trained_on,
            "trained_on_sha256": _sha256(self.trained_on) if self.trained_on else "",
        }

    @property
    def key(self) -> str:
        """Names the record."""
        return _hash(self.description())

    @property
    def training_key(self) -> str:
        """Names the training; runs that have the same may share it."""
        return _hash(self.training_description())

    def __str__(self) -> str:
        """As messages call it."""
        learnt = f" trained on {self.trained_on}" if self.trained_on else ""
        options = ", ".join(f"{name}={value}" for name, value in (*self.options, *self.placing))
        return f"{self.agent}{learnt}, seed {self.seed}, on {self.test}" + (f" ({options})" if options else "")


@lru_cache
def _sha256(suite: str) -> str:
    return suite_info(suite).sha256


@lru_cache
def _cost_model() -> AdditiveCostModel:
    return make_cost_model(COST_MODEL)


def _hash(description: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(description, sort_keys=True).encode())[:16]


def record_path(run: Run, folder: Path) -> Path:
    """Where the record of `run` is, or will be."""
    return folder / RECORDS / f"{run.key}.json"


def training_path(run: Run, folder: Path) -> Path:
    """The folder in which `run` is trained, or will be; `perform` leaves the trained agent there."""
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
    """The record of `run`: read if it is there, else made and written.

    Training goes on where it was stopped.

    Raises:
        ShardGymError: the agent, one of its options or a file is not usable.
    """
    if (known := read_record(run, folder)) is not None:
        return known
    training, agent = _made(run, folder)
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
        "estimate_errors": estimate_errors(agent, suite, evaluation, model),
        "made_with": made_with(),
    }
    write_json(record_path(run, folder), record)
    return record


def _made(run: Run, folder: Path) -> tuple[dict[str, float] | None, Agent]:
    """What training took (None without any), and the agent ready to place."""
    if not run.trained_on:
        return None, make_agent(run.agent, cost_model=_cost_model(), seed=run.seed, **dict(run.options))
    place = training_path(run, folder)
    if not (place / TRAINED).exists():
        write_json(place / TRAINED, _train(run, place))
    (place / STATE).unlink(missing_ok=True)  # a replay memory is large, and nothing is left to go on with
    training: dict[str, float] = read_json(place / TRAINED)
    return training, load_agent(place, cost_model=_cost_model(), seed=run.seed, **dict(run.placing))


def _train(run: Run, place: Path) -> dict[str, float]:
    """Train in the folder `place` until all is done; what it took."""
    options = dict(run.options)
    learner = make_learner(run.agent, run.trained_on, cost_model=_cost_model(), seed=run.seed, **options)
    training = TrainingRun(learner, place, options, resume=True)
    training.run()
    return {"seconds": training.seconds, "queries": learner.true_cost_queries, "iterations": learner.iterations}


def made_with() -> dict[str, str]:
    """The machine and the versions that matter to the numbers."""
    return {"machine": f"{cpu_model()}, {os.cpu_count()} cores", "python": platform.python_version(), **_packages()}


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
