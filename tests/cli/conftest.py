from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.cli import main
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.fitting import PlacementSampler, collect
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.cost_models.measured import model as measured_model
from shard_gym.tables import Workload
from shard_gym.tasks import TaskSuite, load_suite, save_suite


class Machine(MeasuredCostModel):
    """A device's time follows from its lookups. `jobs` are those that ran; `stop` raises what it returns."""

    jobs: list[tuple[float, ...]] = []  # noqa: RUF012 - shared on purpose: the command makes the models
    stop: Any = staticmethod(lambda count: None)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.layout = "parallel"  # whatever was asked for, and on a machine with one CPU, too

    def _measure(self, jobs: Any, devices: Any) -> Any:
        error = self.stop(len(self.jobs))
        if error is not None:
            raise error
        work = [sum(float(part.tables.lookups_per_batch.sum()) for part in job.parts) for job in jobs]
        self.jobs.append(tuple(work))
        rng = np.random.default_rng(len(self.jobs))
        shape = (self.repeats.iterations, len(jobs), 4)
        return np.array(work)[:, None] * 1e-5 * rng.lognormal(0, 0.01, shape)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Run:
    """Calls main with the arguments given, 80 columns wide unless `columns` says otherwise."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *args: object, columns: int = 80) -> Outcome:
        self.monkeypatch.setenv("COLUMNS", str(columns))
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as ended:
            code = int(str(ended.code))
        return Outcome(code, *self.capsys.readouterr())

    def ok(self, *args: object, columns: int = 80) -> Outcome:
        """The same of a command that must succeed."""
        outcome = self(*args, columns=columns)
        assert outcome.code == 0, outcome.err + outcome.out
        return outcome

    def refused(self, says: str, *args: object, columns: int = 80) -> Outcome:
        """The same of a command that must end with this error, in lines of any width, and print nothing else."""
        outcome = self(*args, columns=columns)
        assert (outcome.code, outcome.out) == (2, "")
        assert says in " ".join(outcome.err.split())
        return outcome


@pytest.fixture
def run(same_searches_once: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(capsys, monkeypatch)


def _agent_rows(out: str) -> dict[str, list[str]]:
    """Agent and cells of each row of the table."""
    table = out[out.index("───") :].partition("\n\n")[0]
    return {line.split()[0]: line.split()[1:] for line in table.splitlines()[1:]}


@pytest.fixture(scope="session")
def agent_rows() -> Callable[[str], dict[str, list[str]]]:
    return _agent_rows


def _few_tasks(path: Path, name: str, train: int = 5, test: int = 3) -> Path:
    counts = {"train": train, "test": test}
    parts = [TaskSuite(path.stem, load_suite(name, split).tasks[:count], split) for split, count in counts.items()]
    save_suite(path, *parts)
    return path


@pytest.fixture(scope="session")
def few_tasks() -> Callable[..., Path]:
    """Writes a suite of its own into a file: the first tasks of each split of the suite `name`."""
    return _few_tasks


def _measured_into(folder: Path, count: int, size: int = 2048, devices: int = 2, repeat_every: int | None = 5) -> Path:
    sampler = PlacementSampler(Workload(size), "a100-dgx", devices, 2**30, tables_per_device=8)
    collect(AnalyticalCostModel, folder, sampler, count=count, repeat_every=repeat_every)
    return folder


@pytest.fixture(scope="session")
def measured_into() -> Callable[..., Path]:
    """Writes estimates of the analytical model into a folder, as if they were measurements."""
    return _measured_into


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 300 placements."""
    return _measured_into(tmp_path_factory.mktemp("measured"), 300)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    """Measured costs come from a `Machine`, in whatever command."""
    fresh = type("Machine", (Machine,), {"jobs": []})
    monkeypatch.setattr(measured_model, "MeasuredCostModel", fresh)
    return fresh
