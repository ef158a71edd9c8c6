"""Many workers: every turn is taken once, an idle worker gets the next one, and one program writes."""

from __future__ import annotations

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
from shard_gym.cost_models.data import ray_workers
from shard_gym.cost_models.data.collecting import collect
from shard_gym.cost_models.data.folder import read_index
from shard_gym.cost_models.data.measurements import load_measurements
from shard_gym.cost_models.data.measurers import LocalMeasurer, MeasurementId, MeasurementResult, RayWorkerPool, WorkerPool
from shard_gym.cost_models.data.sampling import PlacementSampler
from shard_gym.cost_models.data.collecting import measurement_schedule
from shard_gym.errors import InvalidOptionError, MissingExtraError
from shard_gym.tables import Workload

SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30, tables_per_device=8)


class Scripted:
    """Workers that finish in random order; every turn of `deadly` kills the one that takes it."""

    def __init__(self, workers: int = 3, deadly: Sequence[int] = (), origins: Any = None) -> None:
        self._here, self._random = LocalMeasurer(AnalyticalCostModel, SAMPLER), random.Random(0)
        self._origins = origins or [(self._here.fingerprint, "a-hall")] * workers
        self._deadly = deadly
        self.busy: dict[int, int] = {}
        self.most_busy, self.closed, self._tasks = 0, False, 0

    def origins(self) -> list[tuple[str, str]]:
        return list(self._origins)

    def start(self, worker: int, turn: MeasurementId) -> int:
        assert worker not in self.busy.values()
        self._tasks += 1
        self.busy[self._tasks] = worker
        self.most_busy = max(self.most_busy, len(self.busy))
        return self._tasks

    def first(self, tasks: Sequence[int]) -> int:
        assert sorted(tasks) == sorted(self.busy)
        return self._random.choice(list(tasks))

    def outcome(self, task: int, turn: MeasurementId) -> MeasurementResult:
        del self.busy[task]
        return MeasurementResult(turn, None, reason="It died.") if turn.number in self._deadly else self._here.measure_one(turn)

    def close(self) -> None:
        self.closed = True


def test_all_workers_work_and_the_data_are_those_of_one(tmp_path: Path) -> None:
    crew = Scripted()
    collect(SpreadOut(crew), tmp_path / "many", SAMPLER, count=50, repeat_every=7)
    collect(LocalMeasurer(AnalyticalCostModel, SAMPLER), tmp_path / "one", SAMPLER, count=50, repeat_every=7)
    assert crew.most_busy == 3
    many, one = (read_index(tmp_path / name).info for name in ("many", "one"))
    assert many is not None
    assert one is not None
    found = list(zip(many.number.tolist(), many.repeat.tolist(), strict=True))
    assert sorted(found) == sorted(measurement_schedule(50, 7))
    assert found != list(measurement_schedule(50, 7))
    costs = [load_measurements(tmp_path / name).data.cost_ms for name in ("many", "one")]
    assert sorted(costs[0]) == sorted(costs[1])
    assert read_index(tmp_path / "many").hardware == "a-hall"


def test_a_worker_that_dies_costs_its_turn_only(tmp_path: Path) -> None:
    tally = collect(SpreadOut(Scripted(deadly=(3, 11))), tmp_path, SAMPLER, count=20, repeat_every=None)
    assert (tally.measured, tally.skipped, tally.reasons) == (18, 2, {"It died.": 2})
    assert sorted(each.number for each in read_index(tmp_path).skipped) == [3, 11]


def test_an_interrupted_run_goes_on_without_duplicates(tmp_path: Path) -> None:
    class Interrupted(Scripted):
        def first(self, tasks: Sequence[int]) -> int:
            if self._tasks > 20:
                raise KeyboardInterrupt
            return super().first(tasks)

    with pytest.raises(KeyboardInterrupt):
        collect(SpreadOut(Interrupted()), tmp_path, SAMPLER, count=50)
    notes = read_index(tmp_path).info
    assert notes is not None
    assert 15 <= len(notes) <= 20
    collect(SpreadOut(Scripted()), tmp_path, SAMPLER, count=50)
    notes = read_index(tmp_path).info
    assert notes is not None
    assert sorted(zip(notes.number.tolist(), notes.repeat.tolist(), strict=True)) == sorted(measurement_schedule(50, 10))


def test_the_budget_holds_for_all(tmp_path: Path) -> None:
    ticks: Iterator[int] = iter(range(10_000))
    tally = collect(SpreadOut(Scripted()), tmp_path, SAMPLER, budget_s=40, clock=lambda: float(next(ticks)))
    assert tally.new == len(load_measurements(tmp_path).data)
    assert tally.new == 39


@pytest.mark.parametrize("origins", [[("v1", "one"), ("v2", "one")], [("v1", "one"), ("v1", "other")]])
def test_workers_that_measure_different_things_are_refused(origins: list[tuple[str, str]]) -> None:
    crew = Scripted(origins=origins)
    with pytest.raises(InvalidOptionError, match="the same hardware"):
        SpreadOut(crew)
    assert crew.closed


# Ray

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed (extra `ray`)")


class Hall(AnalyticalCostModel):
    """Kills its process at loads of certain numbers of tables."""

    hardware = "a-hall"

    def __init__(self, deadly: Sequence[int] = ()) -> None:
        super().__init__()
        self._deadly = deadly

    def estimate(self, placement: Any, tables: Any, topology: Any) -> Any:
        if len(tables) in self._deadly:
            import os

            os._exit(1)
        return super().estimate(placement, tables, topology)


def broken() -> AnalyticalCostModel:
    raise InvalidOptionError("There is no such device here.")


@pytest.fixture
def cluster() -> Iterator[None]:
    import ray
    from ray import cloudpickle

    # Workers cannot import this file, so its classes travel with the turns.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error", object_store_memory=80 << 20
    )
    yield
    ray.shutdown()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@needs_ray
def test_actors_measure(tmp_path: Path, cluster: None) -> None:
    # The load that kills: that of draw 7, and of all others with as many tables.
    size = len(SAMPLER.sample(7).tables)
    deadly = [number for number in range(12) if len(SAMPLER.sample(number).tables) == size]
    crew = RayCrew(partial(Hall, (size,)), SAMPLER, workers=2, cpus=0.1)
    measurer = SpreadOut(crew)
    assert (measurer.fingerprint, measurer.hardware) == (AnalyticalCostModel().fingerprint, "a-hall")
    tally = collect(measurer, tmp_path, SAMPLER, count=12, repeat_every=None)
    measurer.close()
    assert sorted(each.number for each in read_index(tmp_path).skipped) == deadly
    assert tally.measured == 12 - len(deadly)
    assert list(tally.reasons) == ["The worker died while it measured this."]

    with pytest.raises(InvalidOptionError, match="no such device here"):
        SpreadOut(RayCrew(broken, SAMPLER, workers=1, cpus=0.1))
    with pytest.raises(InvalidOptionError, match="room for 1 workers of 1 CPUs"):
        RayCrew(AnalyticalCostModel, SAMPLER, workers=9, cpus=1)
    with pytest.raises(InvalidOptionError, match="room for 0"):
        RayCrew(AnalyticalCostModel, SAMPLER, cpus=0.1, gpus=1)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[ray\]"):
        RayCrew(AnalyticalCostModel, SAMPLER)


def test_in_one_process_turns_are_taken_as_late_as_possible() -> None:
    taken: list[MeasurementId] = []

    def watched() -> Iterator[MeasurementId]:
        for turn in measurement_schedule(5, None):
            taken.append(turn)
            yield turn

    outcomes = LocalMeasurer(AnalyticalCostModel, SAMPLER).measure(watched())
    next(outcomes)
    assert len(taken) == 1


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("nobody answers")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_workers, "import_module", lambda name: ray)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InvalidOptionError, match=r"no Ray cluster at 10\.0\.0\.1:6379: nobody answers"):
        RayCrew(AnalyticalCostModel, SAMPLER)
