"""Collecting: append-only, resumable, without duplicates; it ends in time, and failures are noted."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import (
    DamagedFileError,
    DeviceMemoryError,
    InvalidOptionError,
    MissingExtraError,
    RunsFailedError,
    UnwritablePathError,
)
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.fitting import CollectionProgress, PlacementSampler, load_measurements
from shard_gym.cost_models.fitting.data import collecting
from shard_gym.cost_models.fitting.data.collecting import (
    MAX_FAILURES,
    REPEAT_DELAY,
    MeasurementId,
    measurement_schedule,
)
from shard_gym.cost_models.fitting.data.folder import read_index
from shard_gym.cost_models.fitting.data.sampling import split_of
from shard_gym.cost_models.fitting.data.splits import SPLITS
from shard_gym.tables import Workload

SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30, tables_per_device=8)


@dataclass(frozen=True)
class EstimateWithSpread(CostEstimate):
    spread: float
    clock_ghz: float = 1.98
    late: int = 2


class Fake(AnalyticalCostModel):
    """The analytical model, with a spread; `fails` says which of its estimates, counted from 0, fail."""

    hardware = "fake-device"
    fails: Callable[[int], bool] = staticmethod(lambda _: False)
    interrupted_at = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.count = itertools.count()
        self.closed = False

    def estimate(self, *args: Any) -> CostEstimate:
        number = next(self.count)
        if number >= self.interrupted_at:
            raise KeyboardInterrupt
        if self.fails(number):
            raise DeviceMemoryError("The device has too little memory.")
        estimate = super().estimate(*args)
        return EstimateWithSpread(estimate.phases_ms, estimate.total_ms, 0.25)

    def close(self) -> None:
        self.closed = True


def fake(**attributes: Any) -> type[Fake]:
    return type(
        "Fake", (Fake,), {name: staticmethod(each) if callable(each) else each for name, each in attributes.items()}
    )


def collect(
    folder: Path, make_model: Any = Fake, sampler: PlacementSampler = SAMPLER, **options: Any
) -> CollectionProgress:
    return collecting.collect(make_model, folder, sampler, **options)


def measured_ids(folder: Path) -> list[MeasurementId]:
    """In the order in which they were written."""
    info = load_measurements(folder).info
    return [MeasurementId(*each) for each in zip(info.number.tolist(), info.repeat.tolist(), strict=True)]


def ticking_clock() -> Callable[[], float]:
    """A clock that is a second later at each call."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


# Order


@given(st.integers(1, 200), st.one_of(st.none(), st.integers(1, 60)))
def test_every_placement_is_measured_once_and_every_kth_twice(count: int, every: int | None) -> None:
    order = list(measurement_schedule(count, every))
    assert len(set(order)) == len(order)
    assert [id.number for id in order if not id.repeat] == list(range(count))
    repeats = [id.number for id in order if id.repeat]
    # The very last placement is not repeated: nothing is measured between.
    assert repeats == [n for n in range(count - 1) if every and n % every == every - 1]
    for number in repeats:
        delay = order.index(MeasurementId(number, 1)) - order.index(MeasurementId(number, 0))
        assert delay > (REPEAT_DELAY if number + REPEAT_DELAY + 1 < count else 1)


# What is written


def test_what_is_measured_is_what_is_sampled(tmp_path: Path) -> None:
    progress = collect(tmp_path, count=60, repeat_every=7, part_size=16)
    assert (progress.measured, progress.new, progress.repeats, progress.failed) == (68, 68, 8, 0)
    found = load_measurements(tmp_path)
    index, data = found.index, found.costs.data
    assert (index.source, index.hardware, index.workload) == (Fake().fingerprint, "fake-device", SAMPLER.workload)
    assert index.sampling == {**SAMPLER.to_json(), "pools": list(SAMPLER.pools)}
    assert len(index.parts) == 5
    assert (found.info.spread == 0.25).all()
    assert (found.info.clock_ghz == 1.98).all()
    assert (found.info.late == 2).all()
    for row, id in enumerate(measured_ids(tmp_path)):
        sampled, taken = SAMPLER.sample(id.number), data.take([row])
        assert taken.cost_ms[0] == Fake().estimate(sampled.placement, sampled.tables, sampled.topology).total_ms
        assert [data.tables.names[table] for table in taken.members] == list(sampled.tables.names)
        assert taken.devices.tolist() == sampled.placement.tolist()
        assert SPLITS[found.costs.placement_split[row]] == split_of(id.number)


def test_two_programs_never_add_to_one_folder(tmp_path: Path) -> None:
    class Second(Fake):
        def estimate(self, *args: Any) -> CostEstimate:
            with pytest.raises(InvalidOptionError, match="Another program is adding to"):
                collect(tmp_path, count=3)
            return AnalyticalCostModel.estimate(self, *args)

    assert collect(tmp_path, Second, count=2).measured == len(measured_ids(tmp_path)) == 2
    assert collect(tmp_path, count=3).new == 1


def test_what_a_full_disk_refused_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[CollectionProgress] = []
    append_part = collecting.append_part

    def full(folder: Path, *rest: Any) -> None:
        if read_index(folder).parts:
            raise UnwritablePathError("No space left on device.")
        append_part(folder, *rest)

    monkeypatch.setattr(collecting, "append_part", full)
    failing = fake(fails=lambda number: number in (3, 20))
    with pytest.raises(UnwritablePathError, match="No space left"):
        collect(tmp_path, failing, count=30, part_size=16, repeat_every=None, on_progress=said.append)
    assert len(measured_ids(tmp_path)) == said[-1].measured == said[-1].new == 16
    assert said[-1].failed == len(read_index(tmp_path).failed) == 1


def test_one_model_measures_first_and_again(tmp_path: Path) -> None:
    made, again = [], []

    class Caching(Fake):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def measure_again(self, *args: Any) -> CostEstimate:
            again.append(args)
            return AnalyticalCostModel.estimate(self, *args)

    collect(tmp_path, Caching, count=10, repeat_every=3)
    (model,) = made
    assert (next(model.count), len(again), model.closed) == (10, 3, True)


# Continuing


def test_a_further_run_continues(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    collect(whole, count=50, repeat_every=7)
    for count, new in ((20, 22), (20, 0), (50, 35), (30, 0)):
        assert collect(parts, count=count, repeat_every=7).new == new
    assert sorted(measured_ids(whole)) == sorted(measured_ids(parts))
    one, other = (sorted(load_measurements(folder).costs.data.cost_ms) for folder in (whole, parts))
    assert one == other


@pytest.mark.parametrize("measured", [0, 24])
def test_ctrl_c_writes_all_measurements(tmp_path: Path, measured: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, fake(interrupted_at=measured), count=60, repeat_every=None)
    if measured:
        assert len(measured_ids(tmp_path)) == measured
    else:
        assert not read_index(tmp_path).parts
    collect(tmp_path, count=60, repeat_every=None)
    assert measured_ids(tmp_path) == [MeasurementId(number, 0) for number in range(60)]


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupted_write_loses_at_most_a_part_and_leaves_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    append_part = collecting.append_part
    collect(tmp_path, count=16, repeat_every=None, part_size=8)

    def interrupted(*args: Any) -> None:
        if written:
            append_part(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "append_part", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collect(tmp_path, count=40, repeat_every=None, part_size=8)
    assert len(measured_ids(tmp_path)) == (24 if written else 16)
    collect(tmp_path, count=40, repeat_every=None, part_size=8)
    assert measured_ids(tmp_path) == [MeasurementId(number, 0) for number in range(40)]


# The end


def test_no_measurement_begins_after_the_budget(tmp_path: Path) -> None:
    # The clock is read at the beginning, and before every measurement.
    assert collect(tmp_path, budget_s=30, clock=ticking_clock()).new == 29
    assert len(measured_ids(tmp_path)) == 29
    assert collect(tmp_path, budget_s=10, clock=ticking_clock()).new == 9


def test_a_model_without_spread_gives_none(tmp_path: Path) -> None:
    collect(tmp_path, AnalyticalCostModel, count=3)
    found = load_measurements(tmp_path)
    assert np.isnan([*found.info.spread, *found.info.clock_ghz]).all()
    assert not found.info.late.any()
    assert found.index.hardware == "analytical"


# Failures


def test_failures_are_noted_and_not_tried_again(tmp_path: Path) -> None:
    progress = collect(tmp_path, fake(fails=lambda number: number % 3 == 0), count=30, repeat_every=None, part_size=4)
    assert (progress.measured, progress.failed) == (20, 10)
    assert progress.reasons == {"The device has too little memory.": 10}
    skipped = read_index(tmp_path).failed
    assert [(each.number, each.repeat) for each in skipped] == [(number, 0) for number in range(0, 30, 3)]
    assert {each.reason for each in skipped} == {"The device has too little memory."}
    again = collect(tmp_path, count=30, repeat_every=3)
    assert again.new == again.repeats == 9  # 2, 5, ... 26; none of them failed, and 29 is the last
    assert again.failed == 10


def test_placements_are_kept_for_a_machine_that_works(tmp_path: Path) -> None:
    """A folder may hold failures only; many at the end are none of the placements'."""
    collect(tmp_path, fake(fails=lambda _: True), count=2, repeat_every=None)
    with pytest.raises(InvalidOptionError, match="holds no measurement yet"):
        load_measurements(tmp_path)
    with pytest.raises(RunsFailedError, match="too little memory"):
        collect(tmp_path, fake(fails=lambda number: number == 1 or number >= 10), count=100, repeat_every=None)
    assert [each.number for each in read_index(tmp_path).failed] == [0, 1, 3]
    assert collect(tmp_path, count=12 + MAX_FAILURES, repeat_every=None).new == MAX_FAILURES


# Refusals


@pytest.mark.parametrize(
    ("make_model", "sampler", "message"),
    [
        (Fake, replace(SAMPLER, seed=1), "seed is 0, not 1"),
        (Fake, replace(SAMPLER, workload=Workload(1024)), "batch_size"),
        (fake(version=99), SAMPLER, "source .*A source identifies layout"),
        (fake(hardware="other-device"), SAMPLER, "hardware is 'fake-device', not 'other-device'"),
    ],
)
def test_other_measurements_go_into_another_folder(
    tmp_path: Path, make_model: type[Fake], sampler: PlacementSampler, message: str
) -> None:
    collect(tmp_path, count=3)
    with pytest.raises(InvalidOptionError, match=f"{message}.*Name another folder"):
        collect(tmp_path, make_model, sampler, count=5)
    assert len(measured_ids(tmp_path)) == 3
    (tmp_path / "tables-0000.parquet").unlink()
    with pytest.raises(DamagedFileError, match=r"Part 0 .* is damaged: .* Restore its two files"):
        collect(tmp_path, count=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs an end"),
        ({"budget_s": 0}, "budget_s"),
        ({"count": 0}, "count"),
        ({"count": 5, "repeat_every": 0}, "repeat_every"),
        ({"count": 5, "part_size": 0}, "part_size"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        collect(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        collect(tmp_path, fake(interrupted_at=0), count=5)
    assert not list(tmp_path.iterdir())
