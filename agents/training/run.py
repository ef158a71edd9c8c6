"""A training run in a folder: it can be resumed after every iteration, and logs for TensorBoard.

config.json            agent, suite, cost model, seed and options
training.safetensors   the state of training after the last iteration
agent.safetensors      the agent after the last iteration; see `shard_gym.agents.load_agent`
curve.json             what a few tasks cost after each iteration, if the run is validated; see `Validation`
log/                   events for TensorBoard
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents.base import Agent
from shard_gym.agents.registry import AGENT
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.validation import Validation
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidCheckpointError,
    InvalidOptionError,
    TrainingDivergedError,
    UnwritablePathError,
    missing_extra,
    short_repr,
)
from shard_gym.common.io.arrays import load_arrays, save_arrays
from shard_gym.common.io.files import is_file, read_json, require_writable, write_json
from shard_gym.common.io.lock import exclusive_access
from shard_gym.common.io.parsing import require_fields
from shard_gym.common.text import counted
from shard_gym.evaluation.curve import CURVE

CONFIG, TRAINING, LOG = "config.json", "training.safetensors", "log"
MAX_COUNT = 2**53
_PROGRESS: dict[str, type] = {"iteration": int, "true_cost_queries": int, "seconds": float}
_PROGRESS_LATER: dict[str, type] = {"iterations": int, "costed": int, "failures": int}
"""Keys of the progress in a state, and those that states of older versions lack."""

_KEYS = {"agent", "suite", "split", "suite_sha256", "cost_model", "seed", "options", "version"}
"""Keys of every configuration."""

OnReport = Callable[[Learner, Report], None]  # called after every iteration, once its state is saved


class TrainingRun:
    """A learner and the folder that holds its states.

    Args:
        learner: the learner to train.
        folder: created if it is missing.
        options: the learner's own options, for the configuration.
        resume: continue from the folder's last state, if it has one.
        validation: of the learner; its curve is kept in the folder, and goes on when the run is resumed.

    Raises:
        InvalidOptionError: the folder holds a run already and `resume` is False, or a run with another configuration,
            or a curve of other tasks.
        InvalidCheckpointError: the state cannot be used, or the folder holds an agent without it.
        DamagedFileError: the folder's configuration, or its curve, cannot be read.
        UnwritablePathError: the folder cannot be written to.
    """

    def __init__(
        self,
        learner: Learner,
        folder: Path,
        options: Mapping[str, Any],
        *,
        resume: bool = False,
        validation: Validation | None = None,
    ) -> None:
        self.learner = learner
        self.validation = validation
        self.folder = folder
        self.seconds = 0.0
        self._config = _config(learner, options)
        for name in (CONFIG, TRAINING, AGENT, CURVE):
            require_writable(folder / name)
        if (folder / LOG).exists() and not (folder / LOG).is_dir():
            raise UnwritablePathError(
                f"{folder / LOG} is a file where the log's folder should be; name another folder."
            )
        if any((folder / name).exists() for name in (CONFIG, TRAINING, AGENT)):
            self._require_same_run(resume)
            if (folder / TRAINING).exists():
                self._restore()
            else:
                self._require_first_iteration()
        else:
            write_json(folder / CONFIG, self._config)
        if validation:
            validation.resume(folder / CURVE)

    def _require_same_run(self, resume: bool) -> None:
        if not resume:
            raise InvalidOptionError(
                f"{self.folder} already holds a training run, or its agent. Resume it (--resume), or name another "
                "folder."
            )
        if not (self.folder / CONFIG).exists():
            raise DamagedFileError(
                f"{self.folder} holds files of a training run but no {CONFIG}, so its configuration is unknown. Name "
                "another folder."
            )
        found = read_json(self.folder / CONFIG)
        if not isinstance(found, dict) or not found.keys() >= _KEYS:
            raise DamagedFileError(f"{self.folder / CONFIG} is not the configuration of a run. Name another folder.")
        for key in sorted({*self._config, *found}):
            if found.get(key) != self._config.get(key):
                raise InvalidOptionError(
                    f"The run in {self.folder} was started with {key} {short_repr(found.get(key))}, not "
                    f"{short_repr(self._config.get(key))}. Resume it with the same configuration, or name another "
                    "folder."
                )

    def _require_first_iteration(self) -> None:
        """Refuse a folder whose agent was trained further than the first iteration, without the state of that."""
        if not is_file(self.folder / AGENT):
            return
        trained = load_arrays(self.folder / AGENT, "agent")[1].get("trained")
        done = trained.get("iteration") if isinstance(trained, dict) else None
        if done != 1:  # a run that was killed between its first two files begins again
            after = counted(done, "iteration") if isinstance(done, int) else "training"
            raise InvalidCheckpointError(
                f"{self.folder} holds an agent after {after}, "
                f"but no {TRAINING}, the state to resume from. Restore that file, or name another folder."
            )

    def _restore(self) -> None:
        path = self.folder / TRAINING
        arrays, about = load_arrays(path, "training")
        try:
            require_fields(about, _PROGRESS, str(path), _PROGRESS_LATER)
        except DamagedFileError as error:
            raise InvalidCheckpointError(f"{path} does not hold the progress of the run: {error}") from error
        limits = {"iteration": self.learner.iterations}
        for key, value in about.items():
            if not 0 <= value <= limits.get(key, MAX_COUNT):
                raise InvalidCheckpointError(
                    f"{path} does not hold the progress of the run: {key} is {short_repr(value)}, but it must be from "
                    f"0 to {limits.get(key, MAX_COUNT):,}."
                )
        iteration, queries = about["iteration"], about["true_cost_queries"]
        failures, costed = about.get("failures", 0), about.get("costed", 0)
        self.seconds = float(about["seconds"])
        try:
            self.learner.load_state(arrays)
        except InvalidCheckpointError as error:
            raise InvalidCheckpointError(f"{self.folder / TRAINING} is not a state of this run. {error}") from error
        self.learner.iteration = iteration
        self.learner.cost_model.queries = queries
        self.learner.failures, self.learner.costed = failures, costed

    def run(self, on_report: OnReport | None = None) -> Agent:
        """Do all remaining iterations and return the agent.

        Raises:
            InvalidOptionError: another program trains in the folder now.
            TrainingDivergedError: a weight became NaN or infinite.
        """
        learner = self.learner
        with exclusive_access(self.folder):
            if learner.iteration >= learner.iterations and not self._has_agent():
                self._save()  # that of a finished run was removed, damaged or replaced
            with TrainingLog(self.folder / LOG, learner.iteration) as log:
                while learner.iteration < learner.iterations:
                    started = time.perf_counter()
                    report = self._iterate()
                    learner.iteration += 1
                    self.seconds += time.perf_counter() - started
                    queries = {"true_cost_queries": learner.true_cost_queries, **self._validated()}
                    log.add(learner.iteration, {"mean_cost_ms": report.mean_cost_ms, **queries, **report.numbers})
                    self._save()
                    if on_report:
                        on_report(learner, report)
            return learner.agent()

    def _iterate(self) -> Report:
        """Do one iteration; NaN or infinite weights raise the same error, whatever they broke before."""
        broken: Exception | None = None
        try:
            report = self.learner.iterate()
        except (ArithmeticError, RuntimeError, ValueError) as error:
            broken = error
        if any(not np.isfinite(array).all() for array in self.learner.weights().values()):
            kept = f" {self.folder} keeps the state of the previous iteration." if self.learner.iteration else ""
            raise TrainingDivergedError(
                f"Iteration {self.learner.iteration + 1} of {self.learner.name!r} made a weight NaN or infinite; train "
                f"with a smaller learning_rate.{kept}"
            ) from broken
        if broken:
            raise broken
        return report

    def _validated(self) -> dict[str, float]:
        """The numbers of the curve after this iteration, for the log, if it has a point there."""
        point = self.validation.add() if self.validation else None
        if point is None:
            return {}
        numbers = {"mean_cost_ms": point.mean_cost_ms, "to_reference": point.to_reference, "failures": point.failures}
        return {f"validation/{name}": value for name, value in numbers.items()}

    def _has_agent(self) -> bool:
        """Whether the folder holds the agent of the state that it holds."""
        try:
            arrays, about = load_arrays(self.folder / AGENT, "agent")
        except InvalidCheckpointError:
            return False
        weights = self.learner.weights()
        same = arrays.keys() == weights.keys() and all(np.array_equal(arrays[name], weights[name]) for name in arrays)
        return same and about.get("agent") == self.learner.name

    def _save(self) -> None:
        """Save the agent and the curve, then the state. A run killed in between repeats the iteration and its files."""
        learner = self.learner
        progress = {
            "iteration": learner.iteration,
            "iterations": learner.iterations,
            "true_cost_queries": learner.true_cost_queries,
            "costed": learner.costed,
            "failures": learner.failures,
            "seconds": self.seconds,
        }
        about = {"agent": learner.name, **learner.about(), "trained": {**self._config, **progress}}
        save_arrays(self.folder / AGENT, "agent", learner.weights(), about)
        if self.validation:
            self.validation.save(self.folder / CURVE)
        save_arrays(self.folder / TRAINING, "training", learner.state(), progress)


def _config(learner: Learner, options: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, as it is read back from JSON."""
    import shard_gym

    config = {
        "agent": learner.name,
        "suite": learner.suite.name,
        "split": learner.suite.split,
        "suite_sha256": learner.suite.sha256,
        "cost_model": learner.cost_model.fingerprint_for(learner.device_counts),
        **learner.sources,
        "seed": learner.seed,
        "options": dict(options),
        "version": shard_gym.__version__,
    }
    value: dict[str, Any] = json.loads(json.dumps(config))
    return value


class TrainingLog:
    """The TensorBoard events of a run, from its start or from where it was resumed.

    Each part has a file of TensorBoard's own writer, which programs that follow it see, such as Weights & Biases with
    `sync_tensorboard`. TensorBoard reads the files of a folder in the order of their names, which begin with the second
    in which they were opened. Each file begins by declaring all later steps void, so iterations that are repeated
    replace the old ones.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
            from tensorboard.summary.writer import event_file_writer  # type: ignore[import-untyped]
        except ImportError as error:
            raise missing_extra("tensorboard", "torch", "Training") from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        while any(int(time.time()) <= _second_of(file) <= time.time() + 60.0 for file in folder.glob(f"{_EVENTS}*")):
            time.sleep(0.05)  # a file of the same second might be read after this one
        self._writer = event_file_writer.EventFileWriter(str(folder))
        started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(iteration + 1, session_log=started)

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of an iteration."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(iteration, summary=self._summary(value=values))

    def _write(self, step: int, **content: object) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **content))
        self._writer.flush()


_EVENTS = "events.out.tfevents."


def _second_of(file: Path) -> int:
    """When a file of events was opened, by its name; 0 if it does not say."""
    second = file.name.removeprefix(_EVENTS).split(".")[0]
    return int(second) if second.isdigit() else 0
