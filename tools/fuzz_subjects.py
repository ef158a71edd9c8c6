"""The files that tools/fuzz.py damages: one of each kind, made here, and how a user reads it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents import make_agent
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.common.errors import InvalidPlacementError, ShardGymError
from shard_gym.common.io.arrays import load_arrays
from shard_gym.common.io.files import read_json, write_json
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.fitting import PlacementSampler, collect, load_measurements
from shard_gym.cost_models.fitting.data.folder import INDEX
from shard_gym.cost_models.measured import DamagedCacheWarning, MeasuredCostModel, MeasurementCache
from shard_gym.cost_models.neural import NETWORKS, load_cost_model, save_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.hardware import HostMemory, hardware_profile
from shard_gym.interop.plan_files import GivenPlan
from shard_gym.interop.torchrec_json import torchrec_json
from shard_gym.leaderboard.evaluations import EvaluatedAgent, read_evaluation
from shard_gym.leaderboard.race import Measured, Race, load_race, write_race
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.submission import EntryInfo, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_wise, write_plan
from shard_gym.replanning import DriftTask
from shard_gym.replanning.drift.levels import GROWING
from shard_gym.tables import RowPopularity, Tables, Workload, load_pool
from shard_gym.tables.pools import Pool, save_pool
from shard_gym.tasks import Task, TaskSuite, load_suite, problem_of
from shard_gym.tasks.suites import save_suite

CACHE = ".sqlite"  # ending of the cache of measurements

PLAN = "plan.json"  # a plan with a checksum

SUITE = "mlperf-x8"


class Subject:
    """A file to damage; `read` reads it, with all files beside it, and returns a value that tells results apart."""

    def __init__(self, name: str, path: Path, read: Callable[[], Any], *, has_checksum: bool = True) -> None:
        self.name, self.path, self.read, self.has_checksum = name, path, read, has_checksum
        self.content = path.read_bytes()
        self.expected = str(read())


def subjects(folder: Path) -> Iterator[Subject]:
    """One subject of each kind, with files under `folder`."""
    for make in (weights, cache, measurements, entry, race, documents, plans, sequences):
        yield from make(folder)


def weights(folder: Path) -> Iterator[Subject]:
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
    """A suite, an evaluation and tables, which have no checksum."""
    suite, evaluation, pool = folder / "suite.json", folder / "evaluation.json", folder / "tables.json"
    save_suite(suite, TaskSuite("mine", load_suite("dlrm-20x4").tasks[:2], "test"))

    def loaded() -> Any:
        found = load_suite(suite)
        return found.sha256, [(task.name, _values(vars(task.topology.cluster()))) for task in found]

    yield Subject("suite.json", suite, loaded, has_checksum=False)
    write_json(evaluation, evaluate(make_agent("size-greedy"), SUITE).to_json())
    yield Subject("evaluation.json", evaluation, lambda: read_evaluation(evaluation), has_checksum=False)
    shipped = load_pool("dlrm-2021")
    tables = shipped.tables.select(np.arange(5))
    save_pool(Pool("mine", tables, shipped.card), pool)
    yield Subject("tables.json", pool, lambda: load_pool(pool).sha256, has_checksum=False)


def plans(folder: Path) -> Iterator[Subject]:
    """A sharding plan with rows in host memory, as `write_plan` and as TorchRec write it, and a placement."""
    tables = Tables.from_zipf([9000, 500, 64, 8], [64, 16, 8, 4], [9.0, 1.0, 3.0, 0.5], 1.0, Workload(512))
    topology = hardware_profile("a100-dgx").topology(2)
    host = HostMemory(int(tables.memory_bytes.sum() // 4), read_gb_per_s=16.0, update_gb_per_s=20.0)
    tiered = replace(topology, host=host)
    halves, blocks = column_wise(tables, 0, [0, 1]), row_wise(tables, 1, topology)
    plan = ShardingPlan((halves, blocks, data_parallel(tables, 2, topology), table_wise(tables, 3, 1)))
    own, torchrec, placed = folder / PLAN, folder / "torchrec.json", folder / "placement.json"
    write_plan(own, plan, tables, tiered)
    write_json(torchrec, torchrec_json(plan, tables, topology, "sparse.bags"))
    write_json(placed, {"placement": dict(zip(tables.names, [0, 1, 1, 0], strict=True)), "cost_model": "analytical"})
    for path in (own, torchrec, placed):

        def read(path: Path = path) -> Any:
            found = GivenPlan.of_file(path).of(tables, tiered)
            return found.plan, None if found.hbm_rows is None else found.hbm_rows.tolist()

        yield Subject(f"plan: {path.name}", path, read, has_checksum=path is own)


def sequences(folder: Path) -> Iterator[Subject]:
    """Actions of replanning, as an entry holds them."""
    tables = Tables.from_zipf([9000, 500, 64], [64, 16, 8], [9.0, 1.0, 3.0], 1.0, Workload(512))
    task = Task("small", tables, hardware_profile("a100-dgx").topology(2))
    drifts = DriftTask("drifts", task, RowPopularity.zipf([1.0] * 3), GROWING, 0, 30.0)
    path, problem = folder / "sequences.json", problem_of(drifts)
    model = problem.model("analytical")
    write_json(path, {"drifts": problem.to_json(np.arange(336) % 50 // 48)})

    def read() -> Any:
        value = read_json(path)
        if not isinstance(value, dict):
            raise InvalidPlacementError("The file holds no object.")
        answer = problem.from_json(value.get("drifts"), drifts)
        return answer.tolist(), problem.cost_ms(answer, drifts, model), problem.facts(answer, drifts, model)

    yield Subject("sequences.json", path, read, has_checksum=False)
