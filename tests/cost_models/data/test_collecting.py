"""Collecting: append-only, resumable, free of duplicates; it ends in time, and nothing is lost silently."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.data import writer
from shard_gym.cost_models.data.collecting import collect
from shard_gym.cost_models.data.folder import INDEX, read_index
from shard_gym.cost_models.data.measurements import load_measurements
from shard_gym.cost_models.data.sampling import PlacementSampler, split_of
from shard_gym.cost_models.data.measurers import LocalMeasurer, MeasurementId
from shard_gym.cost_models.data.splits import SPLITS
from shard_gym.cost_models.data.writer import MAX_FAILURES
from shard_gym.errors import DamagedFileError, DeviceMemoryError, InvalidOptionError, MissingExtraError, RunsFailedError
from shard_gym.io.files import read_json, write_json
from shard_gym.tables import Workload

SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30, tables_per_device=8)


@dataclass(frozen=True)
class Spread(CostEstimate):
    spread: float


class Fake(AnalyticalCostModel):
    """The analytical model, with a spread; `fails` says which of its estimates, counted from 0, go wrong."""

    hardware = "an-abacus"
    fails: Callable[[int], bool] = staticmethod(lambda _: False)
    stops = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.count = itertools.count()
        self.closed = False

    def estimate(self, *what: Any) -> CostEstimate:
        number = next(self.count)
        if number >= self.stops:
            raise KeyboardInterrupt
        if self.fails(number):
            raise DeviceMemoryError("The abacus has too few beads.")
        said = super().estimate(*what)
        return Spread(said.phases_ms, said.total_ms, 0.25)

    def close(self) -> None:
        self.closed = True


def model(**what: Any) -> type[Fake]:
    return type(
        "Fake", (Fake,), {name: staticmethod(value) if callable(value) else value for name, value in what.items()}
    )


def turns_in(folder: Path) -> list[MeasurementId]:
    notes = read_index(folder).info
    assert notes is not None
    return [MeasurementId(*each) for each in zip(notes.number.tolist(), notes.repeat.tolist(), strict=True)]


def seconds() -> Callable[[], float]:
    """A clock that is a second later whenever it is asked."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


# Order


@given(st.integers(1, 200), st.one_of(st.none(), st.integers(1, 60)))
def test_every_draw_is_measured_once_and_every_kth_twice(count: int, every: int | None) -> None:
    order = list(measurement_schedule(count, every))
    assert len(set(order)) == len(order)
    assert [turn.number for turn in order if not turn.repeat] == list(range(count))
    again = [turn.number for turn in order if turn.repeat]
    assert again == sorted(again)
    # The very last draw could only follow itself.
    assert again == [n for n in range(count - 1) if every and n % every == every - 1]
    for number in again:
        assert order.index(MeasurementId(number, 1)) - order.index(MeasurementId(number, 0)) > 1


def test_a_second_measurement_comes_much_later() -> None:
    order = list(itertools.islice(measurement_schedule(None, 5), 500))
    at = {turn: place for place, turn in enumerate(order)}
    again = [turn for turn in order if turn.repeat]
    assert len(again) > 70
    assert all(at[turn] - at[MeasurementId(turn.number, 0)] > REPEAT_DELAY for turn in again)


# What is written


def test_what_is_measured_is_what_is_drawn(tmp_path: Path) -> None:
    tally = collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=60, repeat_every=7, part_size=16)
    assert (tally.measured, tally.new, tally.repeats, tally.skipped) == (68, 68, 8, 0)
    costs, about = load_measurements(tmp_path), read_index(tmp_path)
    assert about.info is not None
    assert (about.source, about.hardware, about.workload) == (Fake().fingerprint, "an-abacus", SAMPLER.workload)
    assert about.sampling == {**SAMPLER.to_json(), "pools": list(SAMPLER.pools)}
    assert (about.info.spread == 0.25).all()
    for place, turn in enumerate(turns_in(tmp_path)):
        drawn = SAMPLER.sample(turn.number)
        data = costs.data.take([place])
        assert data.cost_ms[0] == Fake().estimate(drawn.placement, drawn.tables, drawn.topology).total_ms
        assert [data.tables.names[row] for row in data.members] == list(drawn.tables.names)
        assert data.devices.tolist() == drawn.placement.tolist()
        assert SPLITS[costs.placement_split[place]] == split_of(turn.number)
    assert len(read_json(tmp_path / INDEX)["parts"]) == 5


def test_two_programs_never_add_to_one_folder(tmp_path: Path) -> None:
    def estimate(self: Fake, *what: Any) -> CostEstimate:
        with pytest.raises(InvalidOptionError, match="Another program is adding to"):
            collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=3)
        return AnalyticalCostModel.estimate(self, *what)

    tally = collect(LocalMeasurer(type("Fake", (Fake,), {"estimate": estimate}), SAMPLER), tmp_path, SAMPLER, count=2)
    assert tally.measured == len(load_measurements(tmp_path).data) == 2
    assert collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=3).new == 1


@pytest.mark.parametrize("kind", ["tables", "placements"])
def test_nothing_is_added_to_what_cannot_be_read(tmp_path: Path, kind: str) -> None:
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=3)
    (tmp_path / f"{kind}-0000.parquet").unlink()
    with pytest.raises(DamagedFileError, match=r"Part 0 .* is damaged: .* Restore its two files"):
        collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=6)
    assert len(read_json(tmp_path / INDEX)["parts"]) == 1


def test_a_model_that_says_nothing_of_its_spread_has_none(tmp_path: Path) -> None:
    collect(LocalMeasurer(AnalyticalCostModel, SAMPLER), tmp_path, SAMPLER, count=3)
    about = read_index(tmp_path)
    assert about.info is not None
    assert np.isnan(about.info.spread).all()
    assert about.hardware == "analytical"


def test_a_second_measurement_asks_another_model(tmp_path: Path) -> None:
    made: list[Fake] = []

    def make() -> Fake:
        made.append(Fake())
        return made[-1]

    here = LocalMeasurer(make, SAMPLER)
    assert len(made) == 1
    collect(here, tmp_path, SAMPLER, count=10, repeat_every=3)
    assert [next(each.count) for each in made] == [10, 3]
    here.close()
    assert all(each.closed for each in made)


# Going on


def test_a_further_run_goes_on(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    collect(LocalMeasurer(Fake, SAMPLER), whole, SAMPLER, count=50, repeat_every=7)
    for count, new in ((20, 22), (20, 0), (50, 35), (30, 0)):
        tally = collect(LocalMeasurer(Fake, SAMPLER), tmp_path / "parts", SAMPLER, count=count, repeat_every=7)
        assert tally.new == new
    assert sorted(turns_in(whole)) == sorted(turns_in(tmp_path / "parts"))
    assert sorted(load_measurements(whole).data.cost_ms) == sorted(load_measurements(tmp_path / "parts").data.cost_ms)


@pytest.mark.parametrize("stops", [0, 1, 23, 24, 25, 40])
def test_ctrl_c_writes_what_is_there(tmp_path: Path, stops: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(LocalMeasurer(model(stops=stops), SAMPLER), tmp_path, SAMPLER, count=60, repeat_every=None)
    found = read_index(tmp_path).info
    assert (0 if found is None else len(found)) == stops
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=60, repeat_every=None)
    assert turns_in(tmp_path) == [MeasurementId(number, 0) for number in range(60)]


def test_an_end_in_the_middle_of_writing_costs_a_part_and_leaves_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = writer.append_costs
    for late in (False, True):
        folder = tmp_path / str(late)
        collect(LocalMeasurer(Fake, SAMPLER), folder, SAMPLER, count=16, repeat_every=None, part_size=8)

        def torn(*what: Any, late: bool = late) -> None:
            if late:
                written(*what)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(writer, "append_costs", torn)
            with pytest.raises(KeyboardInterrupt):
                collect(LocalMeasurer(Fake, SAMPLER), folder, SAMPLER, count=40, repeat_every=None, part_size=8)
        assert len(load_measurements(folder).data) == (24 if late else 16)
        collect(LocalMeasurer(Fake, SAMPLER), folder, SAMPLER, count=40, repeat_every=None, part_size=8)
        assert turns_in(folder) == [MeasurementId(number, 0) for number in range(40)]


def test_a_killed_program_loses_at_most_a_part(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from shard_gym.cost_models import AnalyticalCostModel\n"
        "from shard_gym.cost_models.data.collecting import collect\n"
        "from shard_gym.cost_models.data.sampling import PlacementSampler\n"
        "from shard_gym.cost_models.data.measurers import LocalMeasurer\n"
        "from shard_gym.tables import Workload\n"
        "draws = PlacementSampler(Workload(2048), 'a100-dgx', 2, 2**30, tables_per_device=8)\n"
        "told = lambda tally: (print(tally.measured, flush=True), time.sleep(0.005))\n"
        "collect(LocalMeasurer(AnalyticalCostModel, draws), sys.argv[1], draws, count=10_000, part_size=8, on_progress=told)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 29:
                process.send_signal(signal.SIGKILL)
                break
        told = max([29, *map(int, process.stdout)])
    assert process.returncode == -signal.SIGKILL
    found = turns_in(tmp_path)
    assert told - 8 <= len(found) <= told + 1
    assert len(load_measurements(tmp_path).data) == len(found)
    collect(LocalMeasurer(AnalyticalCostModel, SAMPLER), tmp_path, SAMPLER, count=60)
    after = turns_in(tmp_path)
    assert after[: len(found)] == found
    assert sorted(after) == sorted(measurement_schedule(60, 10))


# The end


def test_no_measurement_begins_after_the_budget(tmp_path: Path) -> None:
    tally = collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, budget_s=30, clock=seconds())
    # The clock is asked when it begins, and before every measurement.
    assert tally.new == 29
    assert len(turns_in(tmp_path)) == 29
    assert collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, budget_s=10, clock=seconds()).new == 9


def test_the_budget_is_one_of_real_time(tmp_path: Path) -> None:
    begin = time.monotonic()
    tally = collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, budget_s=0.3, count=10_000)
    assert time.monotonic() - begin < 3
    assert 0 < tally.new < 10_000
    assert tally.seconds >= 0.3


def test_whoever_wants_is_told_how_it_stands(tmp_path: Path) -> None:
    told: list[int] = []
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=10, on_progress=lambda tally: told.append(tally.new))
    assert told == list(range(1, 11))


# Failures


def test_what_cannot_be_measured_is_noted_and_not_tried_again(tmp_path: Path) -> None:
    failing = model(fails=lambda number: number % 3 == 0)
    tally = collect(LocalMeasurer(failing, SAMPLER), tmp_path, SAMPLER, count=30, repeat_every=None, part_size=4)
    assert (tally.measured, tally.skipped) == (20, 10)
    assert tally.reasons == {"The abacus has too few beads.": 10}
    about = read_index(tmp_path)
    assert [(each.number, each.repeat) for each in about.skipped] == [(number, 0) for number in range(0, 30, 3)]
    assert {each.reason for each in about.skipped} == {"The abacus has too few beads."}
    again = collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=30, repeat_every=3)
    assert again.new == again.repeats == 9  # 2, 5, ... 26; none of them was skipped, and 29 would follow itself
    assert again.skipped == 10


def test_a_draw_that_was_skipped_is_not_measured_a_second_time_either(tmp_path: Path) -> None:
    failing = model(fails=lambda number: number == 2)
    tally = collect(LocalMeasurer(failing, SAMPLER), tmp_path, SAMPLER, count=10, repeat_every=3)
    assert tally.skipped == 1
    assert [turn.number for turn in turns_in(tmp_path) if turn.repeat] == [5, 8]  # but not 2


def test_failures_at_the_end_are_noted_too(tmp_path: Path) -> None:
    failing = model(fails=lambda number: number >= 5)
    collect(LocalMeasurer(failing, SAMPLER), tmp_path, SAMPLER, count=10, repeat_every=None)
    assert [each.number for each in read_index(tmp_path).skipped] == [5, 6, 7, 8, 9]


def test_a_folder_may_hold_failures_only(tmp_path: Path) -> None:
    collect(LocalMeasurer(model(fails=lambda _: True), SAMPLER), tmp_path, SAMPLER, count=5, repeat_every=None)
    assert read_index(tmp_path).info is None
    with pytest.raises(InvalidOptionError, match="holds no measurement yet"):
        load_measurements(tmp_path)
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=8, repeat_every=None)
    assert [turn.number for turn in turns_in(tmp_path)] == [5, 6, 7]


def test_a_machine_that_measures_nothing_does_not_use_the_draws_up(tmp_path: Path) -> None:
    failing = model(fails=lambda number: number == 1 or number >= 10)
    with pytest.raises(RunsFailedError, match="too few beads"):
        collect(LocalMeasurer(failing, SAMPLER), tmp_path, SAMPLER, count=100, repeat_every=None)
    assert [each.number for each in read_index(tmp_path).skipped] == [1]
    tally = collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=10 + MAX_FAILURES, repeat_every=None)
    assert tally.new == MAX_FAILURES


def test_a_bug_is_not_noted_but_raised(tmp_path: Path) -> None:
    class Broken(Fake):
        def estimate(self, *what: Any) -> CostEstimate:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collect(LocalMeasurer(Broken, SAMPLER), tmp_path, SAMPLER, count=5)
    assert not read_index(tmp_path).skipped


# Refusals


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: replace(SAMPLER, seed=1), "seed is 0, not 1"),
        (lambda: replace(SAMPLER, max_bytes=2**31), "max_bytes"),
        (lambda: replace(SAMPLER, workload=Workload(1024)), "batch_size"),
    ],
)
def test_other_draws_go_into_another_folder(tmp_path: Path, other: Callable[[], PlacementSampler], words: str) -> None:
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=3)
    with pytest.raises(InvalidOptionError, match=f"{words}.*Name another folder"):
        collect(LocalMeasurer(Fake, other()), tmp_path, other(), count=5)
    assert len(turns_in(tmp_path)) == 3


@pytest.mark.parametrize("change", [{"version": 99}, {"hardware": "a-slide-rule"}])
def test_other_measurers_go_into_another_folder(tmp_path: Path, change: dict[str, Any]) -> None:
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=3)
    with pytest.raises(InvalidOptionError, match="Name another folder"):
        collect(LocalMeasurer(model(**change), SAMPLER), tmp_path, SAMPLER, count=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs an end"),
        ({"budget_s": 0}, "budget_s"),
        ({"budget_s": float("nan")}, "budget_s"),
        ({"count": 0}, "count"),
        ({"count": 2.0}, "count"),
        ({"count": 5, "repeat_every": 0}, "repeat_every"),
        ({"count": 5, "part": 0}, "part"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        lambda index: {key: value for key, value in index.items() if key != "skipped"},
        lambda index: {**index, "skipped": {}},
        lambda index: {**index, "skipped": [{"number": 3}]},
        lambda index: {**index, "drawn": 3},
        lambda index: {key: value for key, value in index.items() if key not in ("drawn", "skipped", "hardware")},
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    collect(LocalMeasurer(Fake, SAMPLER), tmp_path, SAMPLER, count=3)
    write_json(tmp_path / INDEX, change(read_json(tmp_path / INDEX)))
    with pytest.raises(DamagedFileError):
        read_index(tmp_path)


def test_a_missing_package_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    here = LocalMeasurer(model(stops=0), SAMPLER)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        collect(here, tmp_path, SAMPLER, count=5)
    assert not list(tmp_path.iterdir())
