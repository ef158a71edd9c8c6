from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cli import COMMANDS, collect
from shard_gym.cli.collect import Hardware, parse_duration
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.data.folder import load_collected
from shard_gym.cost_models.data.loading import read_all, read_measured
from shard_gym.cost_models.data.ray_workers import SpreadOut
from shard_gym.cost_models.data.schedule import Here
from shard_gym.cost_models.measured.machine import Machine
from shard_gym.errors import DeviceMemoryError, InvalidOptionError
from shard_gym.tables import Workload

SMALL = ("--devices", 2, "--batch-size", 512)


@dataclass(frozen=True)
class Spread(CostEstimate):
    spread: float


class Abacus(AnalyticalCostModel):
    """Measures without a device; what it was made with is what the command asked for."""

    hardware = "nvidia-h200"
    fails = 0
    stops = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def estimate(self, *what: Any) -> CostEstimate:
        self.count += 1
        if self.count > self.stops:
            raise KeyboardInterrupt
        if self.count <= self.fails:
            raise DeviceMemoryError("Too few beads.")
        said = super().estimate(*what)
        return Spread(said.phases_ms, said.total_ms, 0.1)


@pytest.fixture
def abacus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Has the command measure with an `Abacus`; returns what it was asked for."""

    def use(kind: str = "cuda", memory_gib: float = 8.0, **changes: Any) -> list[tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []

        def find(*what: Any) -> Hardware:
            asked.append(what)
            return Hardware(kind, Abacus.hardware, int(memory_gib * 2**30), type("Abacus", (Abacus,), changes))

        monkeypatch.setattr(collect, "find_hardware", find)
        return asked

    return use


def test_it_measures_goes_on_and_tells(run, abacus, tmp_path: Path) -> None:
    asked = abacus()
    first = run("collect", "--out", tmp_path, *SMALL, "--count", 30, "--repeat-every", 5)
    assert first.code == 0, first.err
    assert asked == [("auto", "auto", 2, None, 10, None, None)]
    assert "Measured on nvidia-h200" in first.out
    assert first.out.split("\n")[-2].split()[1:5] == ["35", "5", "35", "0"]
    assert "24 measured, 0 skipped" in first.err.replace("\n", " ")
    second = run("collect", "--out", tmp_path, *SMALL, "--count", 40, "--repeat-every", 5)
    assert second.out.split("\n")[-2].split()[1:5] == ["47", "7", "12", "0"]
    measured = read_measured(tmp_path)
    assert len(measured.first.data) == 40
    assert measured.about.workload == Workload(512, "fp16", "sgd")
    assert measured.about.drawn["profile"] == "h200-dgx"
    assert measured.about.drawn["max_bytes"] == 4 * 2**30
    assert {topology.num_devices for topology in measured.costs.data.topologies} == {2}


def test_every_batch_size_is_a_data_set(run, abacus, tmp_path: Path) -> None:
    abacus("cpu", 12.5)
    sizes = ("--batch-size", 1024, "--batch-size", 256, "--batch-size", 1024)
    outcome = run("collect", "--out", tmp_path, "--devices", 2, *sizes, "--count", 6)
    assert outcome.code == 0, outcome.err
    found = read_all(tmp_path)
    assert list(found) == ["batch-256", "batch-1024"]
    assert [each.about.workload for each in found.values()] == [
        Workload(size, "fp32", "rowwise_adagrad") for size in (256, 1024)
    ]
    assert {each.about.drawn["max_bytes"] for each in found.values()} == {3 * 2**30}


def test_the_time_is_shared_by_the_data_sets(run, abacus, tmp_path: Path) -> None:
    abacus()
    sizes = ("--batch-size", 1024, "--batch-size", 256)
    outcome = run("collect", "--out", tmp_path, "--devices", 2, *sizes, "--budget", "0.6s")
    assert outcome.code == 0, outcome.err
    assert all(len(each.costs.data) > 0 for each in read_all(tmp_path).values())


def test_options_reach_the_draws(run, abacus, tmp_path: Path) -> None:
    asked = abacus()
    given = ("--weight-dtype", "fp32", "--optimizer", "rowwise_adagrad", "--layout", "in-turn", "--iterations", 3)
    rest = ("--memory-gib", 1.5, "--profile", "v100-nvlink", "--seed", 7, "--hardware", "cuda", "--repeat-every", 0)
    assert run("collect", "--out", tmp_path, *SMALL, "--count", 12, *given, *rest).code == 0
    assert asked == [("cuda", "in-turn", 2, None, 3, "fp32", "rowwise_adagrad")]
    about = load_collected(tmp_path)
    assert about.workload == Workload(512, "fp32", "rowwise_adagrad")
    assert (about.drawn["max_bytes"], about.drawn["profile"], about.drawn["seed"]) == (3 * 2**29, "v100-nvlink", 7)
    assert about.notes is not None
    assert len(about.notes) == 12


def test_failures_are_shown(run, abacus, tmp_path: Path) -> None:
    abacus(fails=3)
    outcome = run("collect", "--out", tmp_path, *SMALL, "--count", 8)
    assert outcome.code == 0
    assert "3 x: Too few beads." in outcome.out
    assert len(load_collected(tmp_path).skipped) == 3


def test_only_some_reasons_are_shown(run, abacus, tmp_path: Path) -> None:
    def estimate(self: Abacus, *what: Any) -> CostEstimate:
        self.count += 1
        if self.count < 9:
            raise DeviceMemoryError(f"{self.count} beads too few.")
        return AnalyticalCostModel.estimate(self, *what)

    abacus(estimate=estimate)
    outcome = run("collect", "--out", tmp_path, *SMALL, "--count", 10)
    assert outcome.out.count("beads too few") == 5
    assert "... and for 3 other reasons" in outcome.out


def test_ctrl_c_leaves_what_was_measured(run, abacus, tmp_path: Path) -> None:
    abacus(stops=5)
    outcome = run("collect", "--out", tmp_path, *SMALL)
    assert outcome.code == 130
    assert "give the same command to go on" in outcome.err.replace("\n", " ")
    assert len(read_measured(tmp_path).costs.data) == 5
    assert "5" in outcome.out


def test_being_told_to_end_leaves_what_was_measured(run, abacus, tmp_path: Path) -> None:
    def estimate(self: Abacus, *what: Any) -> CostEstimate:
        self.count += 1
        if self.count == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return AnalyticalCostModel.estimate(self, *what)

    before = signal.getsignal(signal.SIGTERM)
    abacus(estimate=estimate)
    assert run("collect", "--out", tmp_path, *SMALL).code == 130
    assert len(read_measured(tmp_path).costs.data) == 3
    assert signal.getsignal(signal.SIGTERM) == before


def test_further_sizes_go_beside_the_others_and_never_into_one(run, abacus, tmp_path: Path) -> None:
    abacus()
    given = ("--devices", 2, "--count", 3)
    assert run("collect", "--out", tmp_path / "two", *given, "--batch-size", 512, "--batch-size", 1024).code == 0
    assert run("collect", "--out", tmp_path / "two", *given, "--batch-size", 256).code == 0
    assert [each.about.workload.batch_size for each in read_all(tmp_path / "two").values()] == [256, 512, 1024]
    assert run("collect", "--out", tmp_path / "one", *given, "--batch-size", 512).code == 0
    outcome = run("collect", "--out", tmp_path / "one", *given, "--batch-size", 512, "--batch-size", 1024)
    assert outcome.code == 2
    assert "is a data set of its own" in outcome.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("layout", "gpus", "expected"),
    [("auto", None, "each"), ("auto", 1, "in-turn"), ("auto", 4, "each"), ("in-turn", None, "in-turn")],
)
def test_a_data_set_has_one_layout(
    monkeypatch: pytest.MonkeyPatch, layout: str, gpus: int | None, expected: str
) -> None:
    machine = Machine("cuda", "NVIDIA H200", 4, 2**37, "2.13.0", "1.8.0", "13.0", "2.28")
    for module in ("machine", "model"):
        monkeypatch.setattr(f"shard_gym.cost_models.measured.{module}.this_machine", lambda kind: machine)
    found = collect.find_hardware("cuda", layout, 4, gpus, 10, None, None)
    assert found.make_model().fingerprint.startswith(f"measured-v1-{expected}-")


def test_workers_of_ray_take_the_turns(run, abacus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shard_gym.cost_models.data import ray_workers

    asked: list[dict[str, Any]] = []

    class Crew:
        def __init__(self, make_model: Any, draws: Any, **room: Any) -> None:
            asked.append(room)
            self._here = Here(make_model, draws)

        def origins(self) -> list[tuple[str, str]]:
            return [(self._here.fingerprint, "a-hall")]

        def start(self, worker: int, turn: Any) -> Any:
            return turn

        def first(self, tasks: Any) -> Any:
            return tasks[0]

        def outcome(self, task: Any, turn: Any) -> Any:
            return self._here.measured(turn)

        def close(self) -> None:
            pass

    assert SpreadOut(Crew(AnalyticalCostModel, None)).hardware == "a-hall"
    monkeypatch.setattr(ray_workers, "RayCrew", Crew)
    abacus()
    outcome = run("collect", "--out", tmp_path, *SMALL, "--count", 5, "--ray", "--workers", 2, "--gpus-per-worker", 4)
    assert outcome.code == 0, outcome.err
    assert asked[1:] == [{"workers": 2, "cpus": 1, "gpus": 4}]
    assert load_collected(tmp_path).hardware == "a-hall"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "soon"), "--budget wants a duration such as 90s, 30m, 2h or 1d, not 'soon'"),
        (("--budget", "0m"), "--budget wants a duration"),
        (("--devices", 0), "--devices must be at least 1"),
        (("--iterations", 0), "--iterations must be at least 1"),
        (("--repeat-every", -1), "--repeat-every must be at least 0"),
        (("--gpus-per-worker", 0), "--gpus-per-worker must be at least 1"),
        (("--memory-gib", -2), "--memory-gib must be a positive number"),
        (("--count", 0), "count must be an integer of at least 1"),
        (("--batch-size", 0), "batch_size must be an integer of at least 1"),
        (("--profile", "h300"), "There is no hardware profile named 'h300'"),
        (("--weight-dtype", "int8"), "weight_dtype must be one of"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    run, abacus, tmp_path: Path, args: tuple[object, ...], words: str
) -> None:
    abacus()
    outcome = run("collect", "--out", tmp_path / "new", *args)
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())
    assert not (tmp_path / "new").exists()


def test_unknown_memory_has_to_be_told(run, abacus, tmp_path: Path) -> None:
    abacus(memory_gib=0)
    outcome = run("collect", "--out", tmp_path, *SMALL)
    assert outcome.code == 2
    assert "--memory-gib" in outcome.err


def test_the_help_is_a_line(run) -> None:
    assert COMMANDS["collect"] in " ".join(run("--help", columns=200).out.split())
    text = run("collect", "--help").out
    assert "goes on where it stopped" in " ".join(text.split())


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2D ", 172_800)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration("--budget", text) == seconds


@given(st.text(max_size=6))
def test_no_text_is_taken_for_a_duration_by_chance(text: str) -> None:
    try:
        seconds = parse_duration("--budget", text)
    except InvalidOptionError:
        return
    assert text.strip().lower()[-1] in "smhd"
    assert seconds > 0
