"""The files that tools/fuzz.py damages: one of each kind, made here, and how a user reads it."""

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

CACHE = ".sqlite"
"""Ending of the cache of measurements."""

SUITE = "mlperf-x8"


class Subject:
    """A file to damage, and how it is read.

    Attributes:
        name: the kind of file.
        path: the file.
        read: reads it, with all files beside it; returns a value that tells results apart.
        has_checksum: whether any other result than the first is silent damage.
    """

    def __init__(self, name: str, path: Path, read: Callable[[], Any], *, has_checksum: bool = True) -> None:
        self.name, self.path, self.read, self.has_checksum = name, path, read, has_checksum
        self.content = path.read_bytes()
        self.expected = str(read())


def subjects(folder: Path) -> Iterator[Subject]:
    """One subject of each kind, with files under `folder`."""
    for make in (weights, cache, measurements, entry, race, documents):
        yield from make(folder)


def weights(folder: Path) -> Iterator[Subject]:
    """A cost model, and the three files of a training run."""
    model, network = folder / "model.safetensors", NETWORKS["pooled"]
    save_cost_model(network(network.new_weights(np.random.default_rng(0)), {"hardware": "none"}), model)
    yield Subject("cost model", model, lambda: _values(load_cost_model(model).weights))
    run, task = folder / "run", load_suite("dlrm-20x4")[0]
    options = {"iterations": 2, "measurements": 4, "cost_updates": 5, "queries": 50}
    TrainingRun(make_learner("dreamshard", "dlrm-20x4", **options), run, options).run()

    def placed() -> Any:
        return make_agent(run).place(task).tolist(), _values(load_arrays(run / "agent.safetensors", "agent")[0])

    def resumed() -> Any:
        learner = make_learner("dreamshard", "dlrm-20x4", **options)
        TrainingRun(learner, run, options, resume=True)
        return learner.iteration, learner.true_cost_queries, _values(learner.state())

    yield Subject("agent", run / "agent.safetensors", placed)
    yield Subject("state of training", run / "training.safetensors", resumed)
    # Its values are compared with those of the command that resumes, and it holds no others.
    yield Subject("configuration of a run", run / "config.json", resumed)


def _values(arrays: Any) -> Any:
    return [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in sorted(arrays.items())]


def cache(folder: Path) -> Iterator[Subject]:
    """A cache of measurements; a row that is lost is measured again, so only times that differ are damage."""
    times = {f"{number:024x}": [number + 0.25] * 20 for number in range(300)}
    path = folder / f"cache{CACHE}"
    made = MeasurementCache(path)
    for key, ms in times.items():
        made.put(key, ms)

    def read() -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DamagedCacheWarning)
            opened = MeasurementCache(path)
            wrong = [key for key, ms in times.items() if opened.get(key, 20) not in (None, ms)]
            opened._connect().close()
        foreign = [each for each in said if not issubclass(each.category, DamagedCacheWarning)]
        return wrong, [str(each.message) for each in foreign]

    yield Subject("cache of measurements", path, read)


def measurements(folder: Path) -> Iterator[Subject]:
    """The index and the parts of a collection."""
    folder = folder / "costs"
    sampler = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30)
    collect(AnalyticalCostModel, folder, sampler, count=12, part_size=6)

    def read() -> Any:
        found = load_measurements(folder)
        return found.index, _values(found.costs.data.to_arrays()), _values(vars(found.info))

    yield Subject("index of measurements", folder / INDEX, read)
    for kind in ("tables", "placements"):
        yield Subject(f"Parquet of {kind}", folder / f"{kind}-0001.parquet", read)


def entry(root: Path) -> Iterator[Subject]:
    """The files of an entry of a leaderboard."""
    folder = EntryFolder(root / "leaderboards", "simulated", SUITE, "greedy")
    folder.root.mkdir()
    agent = EvaluatedAgent("size-greedy", False, (evaluate(make_agent("size-greedy"), SUITE),))
    info = EntryInfo("Greedy", ("Ada Example",), "MIT", "https://example.org/code", "a laptop", "0" * 40)
    assert submit(folder, agent, info) == []

    def read() -> Any:
        verified, findings = verify_entry(folder)
        if verified is None:
            raise ShardGymError("; ".join(map(str, findings)))
        return verified.entry, [[each.tolist() for each in row if each is not None] for row in verified.answers]

    for name in ("entry.toml", "placements.json"):
        yield Subject(name, folder.path / name, read, has_checksum=False)


def race(folder: Path) -> Iterator[Subject]:
    """The files of a race."""
    folder, suite, rng = folder / "race", load_suite(SUITE), np.random.default_rng(0)
    task = suite[0]
    placements = {name: [make_agent(name).place(task)] for name in ("size-greedy", "dim-greedy")}
    measured = tuple(
        Measured(number, 0, name, 0.5, rng.uniform(1, 2, (5, task.num_devices, 4)))
        for number in range(3)
        for name in placements
    )
    model = MeasuredCostModel("cpu", layout="parallel", iterations=5)
    settings, penalty_ms = model.settings_for({task.num_devices}), model.penalty_ms(task.tables, task.topology)
    write_race(folder, Race(suite, "a100", model.fingerprint, settings, placements, measured, np.array([penalty_ms])))

    def read() -> Any:
        race = load_race(folder, suite)
        return race.results(), race.hardware, race.cost_model, dict(race.settings), race.costs_ms().tolist()

    for name in ("race.json", "rounds.parquet"):
        yield Subject(name, folder / name, read)


def documents(folder: Path) -> Iterator[Subject]:
    """A suite and an evaluation, which have no checksum."""
    suite, evaluation = folder / "suite.json", folder / "evaluation.json"
    save_suite(suite, TaskSuite("mine", load_suite("dlrm-20x4").tasks[:2], "test"))

    def loaded() -> Any:
        found = load_suite(suite)
        return found.sha256, [(task.name, _values(vars(task.topology.cluster()))) for task in found]

    yield Subject("suite.json", suite, loaded, has_checksum=False)
    write_json(evaluation, evaluate(make_agent("size-greedy"), SUITE).to_json())
    yield Subject("evaluation.json", evaluation, lambda: read_evaluation(evaluation), has_checksum=False)
