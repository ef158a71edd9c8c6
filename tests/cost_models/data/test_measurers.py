"""Worker pools: every measurement is done once, idle workers get the next one, and one program writes."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.data import measurers
from shard_gym.cost_models.data.collecting import collect, measurement_schedule
from shard_gym.cost_models.data.folder import read_index
from shard_gym.cost_models.data.measurements import load_measurements
from shard_gym.cost_models.data.measurers import (
    LocalMeasurer,
    MeasurementId,
    MeasurementResult,
    RayWorkerPool,
    WorkerPool,
)
from shard_gym.cost_models.data.sampling import PlacementSampler
from shard_gym.errors import InvalidOptionError, MissingExtraError
from shard_gym.tables import Workload

SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30, tables_per_device=8)


class FakePool(WorkerPool):
    """Workers that finish in random order; the numbers of `deadly` kill the worker that measures them."""

    def __init__(self, deadly: Sequence[int] = (), interrupted_at: int = 10**9, origins: Any = None) -> None:
        self._local, self._random = LocalMeasurer(AnalyticalCostModel, SAMPLER), random.Random(0)
        self._deadly, self._interrupted_at, self._tasks = deadly, interrupted_at, 0
        self.busy: dict[int, int] = {}
        self.most_busy = 0
        super().__init__([(self._local.fingerprint, "a-cluster")] * 3 if origins is None else origins)

    def start(self, worker: int, id: MeasurementId) -> int:
        assert worker not in self.busy.values()
        self._tasks += 1
        self.busy[self._tasks] = worker
        self.most_busy = max(self.most_busy, len(self.busy))
        return self._tasks

    def first_done(self, tasks: Sequence[int]) -> int:
        if self._tasks > self._interrupted_at:
            raise KeyboardInterrupt
        assert sorted(tasks) == sorted(self.busy)
        return self._random.choice(list(tasks))

    def result(self, task: int, id: MeasurementId) -> MeasurementResult:
        del self.busy[task]
        return (
            MeasurementResult(id, None, reason="It died.") if id.number in self._deadly else self._local.measure_one(id)
        )

    def close(self) -> None:
        pass


def measured_ids(folder: Path) -> list[tuple[int, int]]:
    info = load_measurements(folder).info
    return list(zip(info.number.tolist(), info.repeat.tolist(), strict=True))


def test_all_workers_work_and_the_data_are_those_of_one(tmp_path: Path) -> None:
    pool, many, one = FakePool(), tmp_path / "many", tmp_path / "one"
    collect(pool, many, SAMPLER, count=50, repeat_every=7)
    collect(LocalMeasurer(AnalyticalCostModel, SAMPLER), one, SAMPLER, count=50, repeat_every=7)
    assert pool.most_busy == 3
    assert sorted(measured_ids(many)) == sorted(measurement_schedule(50, 7))
    assert measured_ids(many) != list(measurement_schedule(50, 7))
    costs = [load_measurements(folder).costs.data.cost_ms for folder in (many, one)]
    assert sorted(costs[0]) == sorted(costs[1])
    assert read_index(many).hardware == "a-cluster"


def test_a_worker_that_dies_loses_its_measurement_only(tmp_path: Path) -> None:
    progress = collect(FakePool(deadly=(3, 11)), tmp_path, SAMPLER, count=20, repeat_every=None)
    assert (progress.measured, progress.failed, progress.reasons) == (18, 2, {"It died.": 2})
    assert sorted(each.number for each in read_index(tmp_path).failed) == [3, 11]


def test_an_interrupted_run_continues_without_duplicates(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(FakePool(interrupted_at=20), tmp_path, SAMPLER, count=50)
    assert 15 <= len(measured_ids(tmp_path)) <= 20
    collect(FakePool(), tmp_path, SAMPLER, count=50)
    assert sorted(measured_ids(tmp_path)) == sorted(measurement_schedule(50, 10))


def test_the_budget_holds_for_all(tmp_path: Path) -> None:
    ticks: Iterator[int] = iter(range(10_000))
    progress = collect(FakePool(), tmp_path, SAMPLER, budget_s=40, clock=lambda: float(next(ticks)))
    assert progress.new == len(measured_ids(tmp_path)) == 39


@pytest.mark.parametrize("origins", [[("v1", "one"), ("v2", "one")], [("v1", "one"), ("v1", "other")], []])
def test_workers_that_measure_different_things_are_refused(
    origins: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[FakePool] = []
    monkeypatch.setattr(FakePool, "close", lambda pool: closed.append(pool))
    with pytest.raises(InvalidOptionError, match="the same hardware"):
        FakePool(origins=origins)
    assert len(closed) == 1


def test_a_local_measurer_takes_ids_as_late_as_possible() -> None:
    ids = measurement_schedule(5, None)
    next(LocalMeasurer(AnalyticalCostModel, SAMPLER).measure(ids))
    assert next(ids).number == 1


# Ray

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra `ray`)")


class Deadly(AnalyticalCostModel):
    """Kills its process at placements with certain numbers of tables."""

    hardware = "a-cluster"

    def __init__(self, deadly: Sequence[int] = ()) -> None:
        super().__init__()
        self._deadly = deadly

    def estimate(self, placement: Any, tables: Any, topology: Any) -> Any:
        if len(tables) in self._deadly:
            os._exit(1)
        return super().estimate(placement, tables, topology)


def broken() -> AnalyticalCostModel:
    raise InvalidOptionError("There is no such device here.")


@pytest.fixture
def cluster() -> Iterator[None]:
    import ray
    from ray import cloudpickle

    # Workers cannot import this file, so its classes are sent to them.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error", object_store_memory=80 << 20
    )
    yield
    ray.shutdown()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@needs_ray
def test_actors_measure(tmp_path: Path, cluster: None) -> None:
    # Placement 7 kills, and all others with as many tables.
    size = len(SAMPLER.sample(7).tables)
    deadly = [number for number in range(12) if len(SAMPLER.sample(number).tables) == size]
    pool = RayWorkerPool(partial(Deadly, (size,)), SAMPLER, workers=2, cpus=0.1)
    assert (pool.fingerprint, pool.hardware) == (AnalyticalCostModel().fingerprint, "a-cluster")
    progress = collect(pool, tmp_path, SAMPLER, count=12, repeat_every=None)
    pool.close()
    assert sorted(each.number for each in read_index(tmp_path).failed) == deadly
    assert progress.measured == 12 - len(deadly)
    assert list(progress.reasons) == ["The worker died while it measured this."]

    with pytest.raises(InvalidOptionError, match="no such device here"):
        RayWorkerPool(broken, SAMPLER, workers=1, cpus=0.1)
    with pytest.raises(InvalidOptionError, match="room for 1 workers of 1 CPUs"):
        RayWorkerPool(AnalyticalCostModel, SAMPLER, workers=9, cpus=1)
    with pytest.raises(InvalidOptionError, match="room for 0"):
        RayWorkerPool(AnalyticalCostModel, SAMPLER, cpus=0.1, gpus=1)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[ray\]"):
        RayWorkerPool(AnalyticalCostModel, SAMPLER)


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("no answer")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(measurers, "import_module", lambda name: ray)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InvalidOptionError, match=r"no Ray cluster at 10\.0\.0\.1:6379: no answer"):
        RayWorkerPool(AnalyticalCostModel, SAMPLER)
