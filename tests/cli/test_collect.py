from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cli import collect
from shard_gym.cli.collect import Hardware, parse_duration
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.data import measurers
from shard_gym.cost_models.data.folder import read_index
from shard_gym.cost_models.data.measurements import load_measurements, load_workloads
from shard_gym.cost_models.data.measurers import LocalMeasurer, MeasurementId, MeasurementResult, WorkerPool
from shard_gym.cost_models.measured.machine import Machine
from shard_gym.errors import DeviceMemoryError
from shard_gym.tables import Workload

SMALL = ("--devices", 2, "--batch-size", 512)


@dataclass(frozen=True)
class EstimateWithSpread(CostEstimate):
    spread: float


class Fake(AnalyticalCostModel):
    """Estimates instead of measuring; `before` runs before each estimate, with its number from 1 up."""

    hardware = "nvidia-h200"
    before: Callable[[int], None] = staticmethod(lambda _: None)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def estimate(self, *args: Any) -> CostEstimate:
        self.count += 1
        self.before(self.count)
        estimate = super().estimate(*args)
        return EstimateWithSpread(estimate.phases_ms, estimate.total_ms, 0.1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Makes the command measure with a `Fake`; returns the arguments of `find_hardware`."""

    def use(kind: str = "cuda", memory_gib: float = 8.0, before: Any = None) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []
        model = type("Fake", (Fake,), {"before": staticmethod(before)} if before else {})

        def find(*args: Any) -> Hardware:
            calls.append(args)
            return Hardware(kind, Fake.hardware, int(memory_gib * 2**30), model)

        monkeypatch.setattr(collect, "find_hardware", find)
        return calls

    return use


def test_it_measures_continues_and_shows_the_counts(run, fake, tmp_path: Path) -> None:
    calls = fake()
    first = run("collect", "--out", tmp_path, *SMALL, "--count", 30, "--repeat-every", 5)
    assert first.code == 0, first.err
    assert calls == [("auto", "auto", 2, None, 10, None, None)]
    assert "Measured on nvidia-h200" in first.out
    assert first.out.split("\n")[-2].split()[1:5] == ["35", "5", "35", "0"]
    assert "24 measured, 0 failed" in first.err.replace("\n", " ")
    second = run("collect", "--out", tmp_path, *SMALL, "--count", 40, "--repeat-every", 5)
    assert second.out.split("\n")[-2].split()[1:5] == ["47", "7", "12", "0"]
    found = load_measurements(tmp_path)
    assert len(found.first.data) == 40
    assert found.index.workload == Workload(512, "fp16", "sgd")
    assert found.index.sampling["profile"] == "h200-dgx"
    assert found.index.sampling["max_bytes"] == 4 * 2**30
    assert {topology.num_devices for topology in found.costs.data.topologies} == {2}


def test_every_batch_size_is_a_data_set(run, fake, tmp_path: Path) -> None:
    fake("cpu", 12.5)
    sizes = ("--batch-size", 1024, "--batch-size", 256, "--batch-size", 1024)
    outcome = run("collect", "--out", tmp_path, "--devices", 2, *sizes, "--budget", "2s")  # a second for each
    assert outcome.code == 0, outcome.err
    found = load_workloads(tmp_path)
    assert list(found) == ["batch-256", "batch-1024"]
    assert [each.index.workload for each in found.values()] == [
        Workload(size, "fp32", "rowwise_adagrad") for size in (256, 1024)
    ]
    assert {each.index.sampling["max_bytes"] for each in found.values()} == {3 * 2**30}


def test_options_reach_the_sampler(run, fake, tmp_path: Path) -> None:
    calls = fake()
    given = ("--weight-dtype", "fp32", "--optimizer", "rowwise_adagrad", "--layout", "sequential", "--iterations", 3)
    rest = ("--memory-gib", 1.5, "--profile", "v100-nvlink", "--seed", 7, "--hardware", "cuda", "--repeat-every", 0)
    assert run("collect", "--out", tmp_path, *SMALL, "--count", 12, *given, *rest).code == 0
    assert calls == [("cuda", "sequential", 2, None, 3, "fp32", "rowwise_adagrad")]
    found = load_measurements(tmp_path)
    assert found.index.workload == Workload(512, "fp32", "rowwise_adagrad")
    sampling = found.index.sampling
    assert (sampling["max_bytes"], sampling["profile"], sampling["seed"]) == (3 * 2**29, "v100-nvlink", 7)
    assert len(found.info) == 12


def test_some_reasons_of_failures_are_shown(run, fake, tmp_path: Path) -> None:
    def fail(number: int) -> None:
        if number < 9:
            raise DeviceMemoryError(f"{max(number, 3)} bytes too few.")

    fake(before=fail)
    outcome = run("collect", "--out", tmp_path, *SMALL, "--count", 10)
    assert outcome.code == 0
    assert "3 x: 3 bytes too few." in outcome.out
    assert outcome.out.count("bytes too few") == 5
    assert "... and for 1 other reasons" in outcome.out
    assert len(read_index(tmp_path).failed) == 8


@pytest.mark.parametrize("by_signal", [False, True])
def test_an_interrupted_run_writes_its_measurements(run, fake, tmp_path: Path, by_signal: bool) -> None:
    def interrupt(number: int) -> None:
        if number == 6:
            if not by_signal:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    fake(before=interrupt)
    outcome = run("collect", "--out", tmp_path, *SMALL)
    assert outcome.code == 130
    assert "repeat the command to continue" in outcome.err.replace("\n", " ")
    assert len(load_measurements(tmp_path).costs.data) == 5
    assert "5" in outcome.out
    assert signal.getsignal(signal.SIGTERM) == before


def test_further_sizes_go_beside_the_others_and_never_into_one(run, fake, tmp_path: Path) -> None:
    fake()
    given = ("--devices", 2, "--count", 3)
    assert run("collect", "--out", tmp_path / "two", *given, "--batch-size", 512, "--batch-size", 1024).code == 0
    assert run("collect", "--out", tmp_path / "two", *given, "--batch-size", 256).code == 0
    assert [each.index.workload.batch_size for each in load_workloads(tmp_path / "two").values()] == [256, 512, 1024]
    assert run("collect", "--out", tmp_path / "one", *given, "--batch-size", 512).code == 0
    outcome = run("collect", "--out", tmp_path / "one", *given, "--batch-size", 512, "--batch-size", 1024)
    assert outcome.code == 2
    assert "is a data set of one batch size" in outcome.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("layout", "gpus", "expected"),
    [
        ("auto", None, "parallel"),
        ("auto", 1, "sequential"),
        ("auto", 4, "parallel"),
        ("sequential", None, "sequential"),
    ],
)
def test_a_data_set_has_one_layout(
    monkeypatch: pytest.MonkeyPatch, layout: str, gpus: int | None, expected: str
) -> None:
    machine = Machine("cuda", "NVIDIA H200", 4, 2**37, "2.13.0", "1.8.0", "13.0", "2.28")
    for module in ("machine", "model"):
        monkeypatch.setattr(f"shard_gym.cost_models.measured.{module}.this_machine", lambda kind: machine)
    found = collect.find_hardware("cuda", layout, 4, gpus, 10, None, None)
    assert found.make_model().fingerprint.startswith(f"measured-v1-{expected}-")


def test_ray_workers_measure(run, fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[dict[str, Any]] = []

    class Pool(WorkerPool):
        def __init__(self, make_model: Any, sampler: Any, **room: Any) -> None:
            rooms.append(room)
            self._local = LocalMeasurer(make_model, sampler)
            super().__init__([(self._local.fingerprint, "a-cluster")])

        def start(self, worker: int, id: MeasurementId) -> Any:
            return id

        def first_done(self, tasks: Any) -> Any:
            return tasks[0]

        def result(self, task: Any, id: MeasurementId) -> MeasurementResult:
            return self._local.measure_one(id)

        def close(self) -> None:
            pass

    monkeypatch.setattr(measurers, "RayWorkerPool", Pool)
    fake()
    outcome = run("collect", "--out", tmp_path, *SMALL, "--count", 5, "--ray", "--workers", 2, "--gpus-per-worker", 4)
    assert outcome.code == 0, outcome.err
    assert rooms == [{"workers": 2, "cpus": 1, "gpus": 4}]
    assert read_index(tmp_path).hardware == "a-cluster"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--budget", "soon"), "--budget must be a duration such as 90s, 30m, 2h or 1d, not 'soon'"),
        (("--budget", "0m"), "--budget must be a duration"),
        (("--budget", "1e9d"), "--budget must be a duration"),
        (("--devices", 0), "--devices must be an integer of at least 1"),
        (("--iterations", 0), "--iterations must be an integer of at least 1"),
        (("--repeat-every", -1), "--repeat-every must be an integer of at least 0"),
        (("--gpus-per-worker", 0), "--gpus-per-worker must be an integer of at least 1"),
        (("--memory-gib", -2), "--memory-gib must be a positive number"),
        (("--count", 0), "count must be an integer of at least 1"),
        (("--batch-size", 0), "batch_size must be an integer from 1 to"),
        (("--profile", "h300"), "There is no hardware profile named 'h300'"),
        (("--weight-dtype", "int8"), "weight_dtype must be one of"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    run, fake, tmp_path: Path, args: tuple[object, ...], message: str
) -> None:
    fake()
    outcome = run("collect", "--out", tmp_path / "new", *args)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
    assert not (tmp_path / "new").exists()


def test_unknown_memory_has_to_be_given(run, fake, tmp_path: Path) -> None:
    fake(memory_gib=0)
    assert "--memory-gib" in run("collect", "--out", tmp_path, *SMALL).err


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2D ", 172_800)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration("--budget", text) == seconds
