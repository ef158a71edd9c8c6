"""The report: numbers that can be worked out by hand, the noise beside them, and a page that says it all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import PHASES, AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.data.collecting import collect
from shard_gym.cost_models.data.folder import SkippedMeasurement, append_skipped
from shard_gym.cost_models.data.measurements import Measurements, load_measurements, load_workloads
from shard_gym.cost_models.data.sampling import CYCLE, PlacementSampler
from shard_gym.cost_models.data.measurers import LocalMeasurer
from shard_gym.cost_models.metrics import errors, ranking
from shard_gym.cost_models.report import REPEATED, Comparison, compare, page, page_name
from shard_gym.errors import DamagedFileError, InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Workload

SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 3, 2**30, tables_per_device=8)
FACTORS = np.array([2.0, 0.5, 4.0, 1.25])
REPEAT_DELAY = 1.1
"""Of second measurements: so many times the first."""


class Slow(AnalyticalCostModel):
    """The analytical model with other factors; its second instance measures everything a tenth slower."""

    hardware = "a-slow-abacus"
    instances = 0

    def __init__(self) -> None:
        super().__init__()
        self._factors = FACTORS * REPEAT_DELAY**Slow.instances
        Slow.instances += 1

    def estimate(self, *what: Any) -> CostEstimate:
        phases = super().estimate(*what).phases_ms * self._factors
        return CostEstimate(phases, float(phases.max(axis=0).sum()))


def collected(folder: Path, draws: PlacementSampler = SAMPLER, count: int = 2 * CYCLE, every: int | None = 10) -> Path:
    Slow.instances = 0
    collect(LocalMeasurer(Slow, draws), folder, draws, count=count, repeat_every=every)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def measured(folder: Path) -> Measurements:
    return load_measurements(folder)


@pytest.fixture(scope="module")
def comparison(measured: Measurements) -> Comparison:
    return compare(measured, {})


# Reading


def test_every_draw_is_read_once_and_repeats_apart(measured: Measurements) -> None:
    assert len(measured.costs.data) == 2 * CYCLE + 7  # 9, 19, ... 69; 79 is the last
    assert len(measured.first.data) == 2 * CYCLE
    assert measured.repeated is not None
    first, second = measured.repeated
    assert len(first) == len(second) == 7
    assert np.array_equal(first.members, second.members)
    assert np.array_equal(first.devices, second.devices)
    assert second.cost_ms == pytest.approx(REPEAT_DELAY * first.cost_ms)


def test_rivals_are_the_test_placements_of_the_same_tables(measured: Measurements) -> None:
    assert [rows.tolist() for rows in measured.test_task_rows] == [list(range(8)), list(range(8, 16))]
    for data in measured.test_tasks:
        tables = {data.members[data.start[p] : data.start[p + 1]].tobytes() for p in range(len(data))}
        assert len(tables) == 1


def test_too_few_placements_are_no_rivals(tmp_path: Path) -> None:
    assert load_measurements(collected(tmp_path, count=13)).test_task_rows == []  # numbers 4 and 9
    assert len(load_measurements(collected(tmp_path / "more", count=15)).test_task_rows) == 1
    assert load_measurements(tmp_path).test_tasks == []


def test_without_repeats_there_is_no_noise(tmp_path: Path) -> None:
    few = load_measurements(collected(tmp_path, count=20, every=None))
    assert few.repeated is None
    found = compare(few, {})
    assert found.noise is None
    assert REPEATED not in page([found], "do it", [""]).split("### Errors")[1]


def test_folders_are_read_by_batch_size(tmp_path: Path) -> None:
    for name, size in (("b", 512), ("a", 2048)):
        collected(tmp_path / name, replace(SAMPLER, workload=Workload(size)), 12)
    assert list(load_workloads(tmp_path)) == ["b", "a"]
    assert list(load_workloads(tmp_path / "a")) == [""]
    collected(tmp_path / "c", replace(SAMPLER, seed=3), 12)
    with pytest.raises(InvalidOptionError, match="one workload"):
        load_workloads(tmp_path)
    with pytest.raises(DamagedFileError, match="shard-gym collect"):
        load_workloads(tmp_path / "nowhere")


def test_other_hardware_is_another_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected(tmp_path / "a", SAMPLER, 5)
    monkeypatch.setattr(Slow, "hardware", "a-fast-abacus")
    collected(tmp_path / "b", replace(SAMPLER, workload=Workload(512)), 5)
    with pytest.raises(InvalidOptionError, match="a-fast-abacus, a-slow-abacus"):
        load_workloads(tmp_path)


# Numbers


def test_errors_are_those_of_the_factors(comparison: Comparison) -> None:
    analytical, *others = comparison.estimates
    assert analytical == "analytical, A100-SXM4-80GB"
    assert others == [f"{analytical}, scaled", f"{analytical}, calibrated", "linear"]
    found = comparison.errors(analytical)
    for phase, factor in zip(PHASES, FACTORS, strict=True):
        assert found.phases[phase].mape == pytest.approx(abs(1 / factor - 1))
        assert found.phases[phase].ratio == pytest.approx(max(factor, 1 / factor) - 1)


def test_scaling_finds_the_factors(comparison: Comparison) -> None:
    _, scaled, *_ = comparison.estimates
    assert comparison.errors(scaled).cost.mape == pytest.approx(0, abs=1e-9)
    order = comparison.ranking(scaled)
    assert order is not None
    assert order.tasks == 2
    assert order.kendall_tau == pytest.approx(1)
    assert order.regret == {1: 0, 5: 0}


def test_a_model_is_judged_as_elsewhere(measured: Measurements) -> None:
    model = AnalyticalCostModel()
    found = compare(measured, {"mine": model})
    assert found.errors("mine") == errors(model, measured.test)
    assert found.ranking("mine") == ranking(model, measured.test_tasks)


def test_the_noise_is_that_of_second_measurements(comparison: Comparison) -> None:
    noise = comparison.noise
    assert noise is not None
    assert noise.cost.mape == pytest.approx(REPEAT_DELAY - 1)
    assert noise.cost.count == 7


def test_the_analytical_model_may_assume_other_hardware(measured: Measurements, comparison: Comparison) -> None:
    other = compare(measured, {}, hardware_profile("v100-nvlink"))
    name = next(iter(other.estimates))
    assert name == "analytical, V100-SXM2-32GB"
    own = next(iter(comparison.estimates.values()))
    assert (other.estimates[name].cost_ms > own.cost_ms).all()
    assert np.array_equal(other.estimates["linear"].cost_ms, comparison.estimates["linear"].cost_ms)


def test_a_data_set_without_test_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="'test'"):
        compare(load_measurements(collected(tmp_path, count=3)), {})


# The page


def test_the_page_holds_the_numbers(comparison: Comparison, markdown_rows: Any) -> None:
    text = page([comparison], "shard-gym report-cost-model data", ["images/one.png"])
    assert text.startswith("<!-- Generated by `shard-gym report-cost-model data`; do not edit. -->\n")
    assert "# Cost models against measurements on a-slow-abacus\n" in text
    assert "## 2,048 samples, fp16, sgd\n" in text
    assert "![Estimated against measured ms](images/one.png)" in text
    assert f"Measurements by `{AnalyticalCostModel().fingerprint}`" in text
    assert "Placements: 56 of " in text
    assert "16 of " in text
    assert "Could not be measured" not in text
    assert "Interquartile" not in text
    found = markdown_rows(text, "### Errors")
    assert list(found) == [f"*{REPEATED}* (7 placements)", *comparison.estimates]
    assert found[f"*{REPEATED}* (7 placements)"] == ["10.0 % (10.0 %)"] * 5
    assert found["analytical, A100-SXM4-80GB"][1:] == [
        "50.0 % (100.0 %)",
        "100.0 % (100.0 %)",
        "75.0 % (300.0 %)",
        "20.0 % (25.0 %)",
    ]
    order = markdown_rows(text, "### Order of placements")
    assert order[f"*{REPEATED}*"] == ["1.000", "-", "-", "-"]
    assert order["analytical, A100-SXM4-80GB, scaled"] == ["1.000", "1.000", "0.00 %", "0.00 %"]
    assert "2 sets of tables that were placed in several ways (8.0 on average)" in text
    numbers = markdown_rows(text, "### Calibrated numbers")
    assert len(numbers) == 8
    fitted = comparison.calibrated.device.dram_gb_per_s
    assert numbers["`dram_gb_per_s`"] == ["1825", f"{fitted:.4g}"]
    assert fitted != 1825


def test_what_was_skipped_and_spreads_are_said(tmp_path: Path) -> None:
    collected(tmp_path, count=20)
    append_skipped(tmp_path, [SkippedMeasurement(100 + n, 0, "Too large." if n else "Too slow.") for n in range(3)])
    measured = load_measurements(tmp_path)
    noted = replace(measured, notes=replace(measured.info, spread=np.linspace(0, 0.2, len(measured.info))))
    text = page([compare(noted, {})], "do it", [""])
    assert "Could not be measured: 3 draws (2 x Too large.; 1 x Too slow.)." in text
    assert "10.0 % of the median, 19.0 % in the worst twentieth" in text
    assert "![" not in text


def test_modelled_all_to_alls_are_called_so(tmp_path: Path, comparison: Comparison, monkeypatch: Any) -> None:
    modelled = "the all-to-alls are the analytical model's"
    assert modelled not in page([comparison], "do it", [""])
    monkeypatch.setitem(globals(), "FACTORS", np.array([2.0, 1.0, 1.0, 1.25]))
    in_turn = compare(load_measurements(collected(tmp_path, every=None)), {})
    assert modelled in page([in_turn], "do it", [""])


def test_one_device_has_nothing_to_say_of_all_to_alls(tmp_path: Path, markdown_rows: Any) -> None:
    measured = load_measurements(collected(tmp_path, replace(SAMPLER, num_devices=1), 40))
    found = markdown_rows(page([compare(measured, {})], "do it", [""]), "### Errors")
    assert found["linear"][2:4] == ["-", "-"]


def test_a_page_is_named_after_its_hardware() -> None:
    assert page_name("nvidia-h200") == "cost-model-nvidia-h200.md"
