"""The files that are damaged: one of each kind, made here, and how a user reads it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents import make_agent
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.data.collecting import collect
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.measurements import load_measurements
from shard_gym.cost_models.data.sampling import PlacementSampler
from shard_gym.cost_models.measured.cache import DamagedCacheWarning, MeasurementCache
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.cost_models.neural.storage import NETWORKS, load_cost_model, save_cost_model
from shard_gym.errors import ShardGymError
from shard_gym.evaluation import evaluate
from shard_gym.io.arrays import load_arrays
from shard_gym.io.files import write_json
from shard_gym.leaderboard.evaluations import EvaluatedAgent, read_evaluation
from shard_gym.leaderboard.race import Measured, Race
from shard_gym.leaderboard.race_files import load_race, write_race
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.submit import EntryInfo, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.suites import load_suite
from shard_gym.suites.own import save_suite
from shard_gym.tasks import TaskSuite
from shard_gym.workload import Workload

SUITE = "mlperf-x8"


class Subject:
    """A file to damage, and how it is read.

    Attributes:
        name: the kind of file.
        path: the file.
        read: reads it, with all files beside it; returns a value that tells results apart.
        has_checksum: whether any other result than the first is silent damage.
    """

    def __init__(self, name: str, path: Path, read: Callable[[], Any], *, has_checksum: bool) -> None:
        self.name, self.path, self.read, self.has_checksum = name, path, read, has_checksum
        self.content = path.read_bytes()
        self.expected = read()


def subjects(folder: Path) -> Iterator[Subject]:
    """One subject of each kind, with files of their own under `folder`."""
    yield from _weights(folder)
    yield _cache(folder / "cache.sqlite")
    yield from _measurements(folder / "costs")
    yield from _entry(folder / "leaderboards")
    yield from _race(folder / "race")
    yield from _documents(folder)


def _weights(folder: Path) -> Iterator[Subject]:
    model = folder / "model.safetensors"
    network = NETWORKS["pooled"]
    save_cost_model(network(network.new_weights(np.random.default_rng(0)), {"hardware": "none"}), model)
    yield Subject("cost model", model, lambda: _arrays(load_cost_model(model).weights), has_checksum=True)
    run = folder / "run"
    options = {"iterations": 2, "measurements": 4, "cost_updates": 5, "queries": 50}

    def resumed() -> Any:
        learner = make_learner("dreamshard", "dlrm-20x4", **options)
        TrainingRun(learner, run, options, resume=True)
        return learner.iteration, learner.true_cost_queries, _arrays(learner.state())

    TrainingRun(make_learner("dreamshard", "dlrm-20x4", **options), run, options).run()
    task = load_suite("dlrm-20x4")[0]

    def placed() -> Any:
        return make_agent(run).place(task).tolist(), _arrays(load_arrays(run / "agent.safetensors", "agent")[0])

    yield Subject("agent", run / "agent.safetensors", placed, has_checksum=True)
    yield Subject("state of training", run / "training.safetensors", resumed, has_checksum=True)
    # Its values are compared with those of the command that resumes, and it holds no others.
    yield Subject("configuration of a run", run / "config.json", resumed, has_checksum=True)


def _arrays(arrays: Any) -> Any:
    return [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in sorted(arrays.items())]


def _cache(path: Path) -> Subject:
    keys = [f"{number:024x}" for number in range(300)]
    cache = MeasurementCache(path)
    for number, key in enumerate(keys):
        cache.put(key, [number + 0.25] * 20)

    def times() -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DamagedCacheWarning)
            opened = MeasurementCache(path)
            found = [opened.get(key, 20) for key in keys]
            opened._connect().close()
        # A key that is lost is measured again, so only times that differ are damage.
        wrong = [key for number, key in enumerate(keys) if found[number] not in (None, [number + 0.25] * 20)]
        if wrong:
            return "other times", wrong
        if said and not issubclass(said[0].category, DamagedCacheWarning):
            return "other warning", str(said[0].message)
        return "times or nothing"

    return Subject("cache of measurements", path, times, has_checksum=True)


def _measurements(folder: Path) -> Iterator[Subject]:
    sampler = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30)
    collect(AnalyticalCostModel, folder, sampler, count=12, part_size=6)

    def read() -> Any:
        found = load_measurements(folder)
        return found.index, _arrays(found.costs.data.to_arrays()), _arrays(vars(found.info))

    yield Subject("index of measurements", folder / INDEX, read, has_checksum=True)
    for kind in ("tables", "placements"):
        yield Subject(f"Parquet of {kind}", folder / f"{kind}-0001.parquet", read, has_checksum=True)


def _entry(root: Path) -> Iterator[Subject]:
    folder = EntryFolder(root, "simulated", SUITE, "greedy")
    root.mkdir()
    agent = EvaluatedAgent("size-greedy", False, (evaluate(make_agent("size-greedy"), SUITE),))
    info = EntryInfo("Greedy", ("Ada Example",), "MIT", "https://example.org/code", "a laptop", "0" * 40)
    assert submit(folder, agent, info) == []

    def read() -> Any:
        verified, findings = verify_entry(folder)
        if verified is None:
            raise _Findings("; ".join(map(str, findings)))
        return verified.entry, [[each.tolist() for each in row if each is not None] for row in verified.answers]

    yield Subject("entry.toml", folder.path / "entry.toml", read, has_checksum=False)
    yield Subject("placements.json", folder.path / "placements.json", read, has_checksum=False)


class _Findings(ShardGymError):
    """The findings of an entry."""


def _race(folder: Path) -> Iterator[Subject]:
    suite = load_suite(SUITE)
    task = suite[0]
    placements = {name: [make_agent(name).place(task)] for name in ("size-greedy", "dim-greedy")}
    rng = np.random.default_rng(0)
    measured = tuple(
        Measured(number, 0, name, 0.5, rng.uniform(1, 2, (5, task.num_devices, 4)))
        for number in range(3)
        for name in placements
    )
    model = MeasuredCostModel("cpu", layout="parallel", iterations=5)
    settings, penalty_ms = model.settings_for({task.num_devices}), model.penalty_ms(task.tables, task.topology)
    race = Race(suite, "a100", model.fingerprint, settings, placements, measured, np.array([penalty_ms]))
    write_race(folder, race)

    def read() -> Any:
        race = load_race(folder, suite)
        return race.results(), race.hardware, race.cost_model, dict(race.settings), race.costs_ms().tolist()

    yield Subject("race.json", folder / "race.json", read, has_checksum=True)
    yield Subject("rounds.parquet", folder / "rounds.parquet", read, has_checksum=True)


def _documents(folder: Path) -> Iterator[Subject]:
    suite = folder / "suite.json"
    tasks = load_suite("dlrm-20x4")
    save_suite(suite, TaskSuite("mine", tasks.tasks[:2], "test"))

    def loaded() -> Any:
        found = load_suite(suite)
        return found.sha256, [(task.name, _arrays(vars(task.topology.cluster()))) for task in found]

    yield Subject("suite.json", suite, loaded, has_checksum=False)
    path = folder / "evaluation.json"
    write_json(path, evaluate(make_agent("size-greedy"), SUITE).to_json())
    yield Subject("evaluation.json", path, lambda: read_evaluation(path), has_checksum=False)
