from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cli.collect import parse_duration
from shard_gym.common.errors import DeviceMemoryError, InvalidOptionError
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.fitting import load_measurements, measuring
from shard_gym.cost_models.fitting.data.folder import read_index
from shard_gym.cost_models.measured import Machine
from shard_gym.cost_models.measured import machine as machines
from shard_gym.tables import Workload

SMALL = ("--devices", 2, "--batch-size", 512)
FAST = {"weight_dtype": "fp16", "optimizer": "sgd"}


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
        return super().estimate(*args)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Makes the command measure with a `Fake`; returns the options of the models that it makes."""

    def use(kind: str = "cuda", memory_gib: float = 8.0, before: Any = None, gpus: int = 1) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        model = type("Fake", (Fake,), {"before": staticmethod(before)} if before else {})

        def make(device: str, **options: Any) -> Fake:
            made.append({"device": device, **options})
            return model()

        def this_machine(asked: str) -> Machine:
            if asked != kind:
                raise InvalidOptionError("There is no such device.")
            return Machine(kind, "NVIDIA H200", gpus, int(memory_gib * 2**30), "", "", "", "")

        monkeypatch.setattr(measuring, "MeasuredCostModel", make)
        monkeypatch.setattr(machines, "this_machine", this_machine)
        return made

    return use


def test_it_measures_continues_and_shows_the_counts(run, fake, tmp_path: Path) -> None:
    made = fake()
    first = run.ok("collect", "--out", tmp_path, *SMALL, "--count", 30, "--repeat-every", 5)
    assert made == [{"device": "cuda", "layout": "sequential", "iterations": 10, **FAST}]
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


def test_cpus_have_other_defaults(run, fake, tmp_path: Path) -> None:
    fake("cpu", 12.5)
    outcome = run.ok("collect", "--out", tmp_path, *SMALL, "--count", 3)
    assert "Measuring on CPUs. There is no such device." in outcome.err.replace("\n", " ")
    index = load_measurements(tmp_path).index
    assert (index.workload, index.sampling["max_bytes"]) == (Workload(512, "fp32", "rowwise_adagrad"), 3 * 2**30)


def test_options_reach_the_sampler(run, fake, tmp_path: Path) -> None:
    made = fake()
    given = ("--weight-dtype", "fp32", "--optimizer", "rowwise_adagrad", "--layout", "sequential", "--iterations", 3)
    rest = ("--memory-gib", 1.5, "--profile", "v100-nvlink", "--seed", 7, "--hardware", "cuda", "--repeat-every", 0)
    assert run("collect", "--out", tmp_path, *SMALL, "--count", 12, *given, *rest).code == 0
    training = {"weight_dtype": "fp32", "optimizer": "rowwise_adagrad"}
    assert made == [{"device": "cuda", "layout": "sequential", "iterations": 3, **training}]
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
    outcome = run.ok("collect", "--out", tmp_path, *SMALL, "--count", 10)
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


@pytest.mark.parametrize(
    ("layout", "gpus", "expected"),
    [("auto", 1, "sequential"), ("auto", 2, "parallel"), ("sequential", 2, "sequential")],
)
def test_a_data_set_has_one_layout(run, fake, tmp_path: Path, layout: str, gpus: int, expected: str) -> None:
    made = fake(gpus=gpus)
    assert run("collect", "--out", tmp_path, *SMALL, "--count", 1, "--layout", layout).code == 0
    assert [options["layout"] for options in made] == [expected]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--budget", "soon"), "--budget must be a duration such as 90s, 30m, 2h or 1d, not 'soon'"),
        (("--budget", "0m"), "--budget must be a duration"),
        (("--devices", 0), "--devices must be an integer from 1 to 4096"),
        (("--devices", 100_000), "--devices must be an integer from 1 to 4096, not 100000"),
        (("--weight-dtype", ""), "weight dtype must be one of"),
        (("--optimizer", ""), "optimizer must be one of"),
        (("--iterations", 0), "--iterations must be an integer of at least 1"),
        (("--repeat-every", -1), "--repeat-every must be an integer of at least 0"),
        (("--memory-gib", -2), "--memory-gib must be a positive number"),
        (("--count", 0), "count must be an integer of at least 1"),
        (("--batch-size", 0), "--batch-size must be an integer from 1 to"),
        (("--profile", "h300"), "There is no hardware profile named 'h300'"),
        (("--weight-dtype", "int4"), "weight dtype must be one of"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    run, fake, tmp_path: Path, args: tuple[object, ...], message: str
) -> None:
    fake()
    run.refused(message, "collect", "--out", tmp_path / "new", *args)
    assert not (tmp_path / "new").exists()


def test_unknown_memory_has_to_be_given(run, fake, tmp_path: Path) -> None:
    fake(memory_gib=0)
    run.refused("--memory-gib", "collect", "--out", tmp_path, *SMALL)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2D ", 172_800)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_collection_that_measures_nothing_fails(run, fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any, placement: Any, tables: Any, topology: Any) -> CostEstimate:
        raise DeviceMemoryError("Device 3 is full.")

    fake()
    monkeypatch.setattr(AnalyticalCostModel, "estimate", never)
    outcome = run("collect", "--out", tmp_path / "costs", *SMALL, "--count", 3)
    assert outcome.code != 0
    assert "Nothing was measured. Device 3 is full." in outcome.err
