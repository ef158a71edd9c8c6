"""Cost models against measurements: numbers that follow from known factors, and the page with all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import PHASES, AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.calibration import DEVICE, LINKS
from shard_gym.cost_models.data.collecting import collect
from shard_gym.cost_models.data.folder import FailedMeasurement, append_failed
from shard_gym.cost_models.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.data.sampling import CYCLE, PlacementSampler
from shard_gym.cost_models.metrics import errors, ranking
from shard_gym.cost_models.report import REPEATED, Comparison, compare, page, page_name
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Workload

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SHIPPED = "cpu-amd-epyc-2-threads"
SAMPLER = PlacementSampler(Workload(2048), "a100-dgx", 3, 2**30, tables_per_device=8)
FACTORS = np.array([2.0, 0.5, 4.0, 1.25])
REPEAT_FACTOR = 1.1
"""Repeated over first measurements."""


def measure(
    folder: Path,
    sampler: PlacementSampler = SAMPLER,
    count: int = 2 * CYCLE,
    repeat_every: int | None = 10,
    factors: np.ndarray = FACTORS,
) -> Measurements:
    """The analytical model times `factors`, and in repeats times `REPEAT_FACTOR`."""

    class Scaled(AnalyticalCostModel):
        hardware = "fake-device"

        def estimate(self, *args: Any) -> CostEstimate:
            return self._scaled(1.0, *args)

        def measure_again(self, *args: Any) -> CostEstimate:
            return self._scaled(REPEAT_FACTOR, *args)

        def _scaled(self, factor: float, *args: Any) -> CostEstimate:
            phases = super().estimate(*args).phases_ms * factors * factor
            return CostEstimate(phases, float(phases.max(axis=0).sum()))

    collect(Scaled, folder, sampler, count=count, repeat_every=repeat_every)
    return load_measurements(folder)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    return measure(tmp_path_factory.mktemp("measurements"))


@pytest.fixture(scope="module")
def comparison(measurements: Measurements) -> Comparison:
    return compare(measurements, {})


@pytest.fixture(scope="module")
def shipped() -> Comparison:
    return compare(load_measurements(RESULTS / "measurements" / SHIPPED), {})


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
    found = comparison.ranking(scaled)
    assert found is not None
    assert (found.tasks, found.kendall_tau, found.regret) == (2, pytest.approx(1), {1: 0, 5: 0})


def test_errors_and_rankings_are_those_of_the_metrics(measurements: Measurements) -> None:
    model = AnalyticalCostModel()
    found = compare(measurements, {"mine": model})
    assert found.errors("mine") == errors(model, measurements.test)
    assert found.ranking("mine") == ranking(model, measurements.test_tasks)


def test_repeats_are_compared_with_first_measurements(comparison: Comparison, tmp_path: Path) -> None:
    found = comparison.repeat_errors
    assert found is not None
    assert found.cost.mape == pytest.approx(REPEAT_FACTOR - 1)
    assert found.cost.count == 7
    without = compare(measure(tmp_path, count=20, repeat_every=None), {})
    assert without.repeat_errors is None
    assert REPEATED not in page([without], "command", [""]).split("### Errors")[1]


def test_the_analytical_model_may_assume_other_hardware(measurements: Measurements, comparison: Comparison) -> None:
    other = compare(measurements, {}, hardware_profile("v100-nvlink"))
    name = next(iter(other.estimates))
    assert name == "analytical, V100-SXM2-32GB"
    assert (other.estimates[name].cost_ms > next(iter(comparison.estimates.values())).cost_ms).all()
    assert np.array_equal(other.estimates["linear"].cost_ms, comparison.estimates["linear"].cost_ms)


def test_a_data_set_without_test_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="'test'"):
        compare(measure(tmp_path, count=3), {})


# The page


def test_the_page_holds_the_numbers(comparison: Comparison, markdown_rows: Any) -> None:
    text = page([comparison], "shard-gym report-cost-model data", ["images/one.png"])
    assert text.startswith("<!-- Generated by `shard-gym report-cost-model data`; do not edit. -->\n")
    assert "# Cost models against measurements on fake-device\n" in text
    assert "## 2,048 samples, fp16, sgd\n" in text
    assert "![Estimated against measured ms](images/one.png)" in text
    assert f"Measured by `{AnalyticalCostModel().fingerprint}`" in text
    assert "Placements: 56 of " in text
    assert "16 of " in text
    assert "Failed" not in text
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
    order = markdown_rows(text, "### Ranking of placements")
    assert order[f"*{REPEATED}*"] == ["1.000", "-", "-", "-"]
    assert order["analytical, A100-SXM4-80GB, scaled"] == ["1.000", "1.000", "0.00 %", "0.00 %"]
    assert "2 tasks, each with several placements of the same tables (8.0 placements each on average)" in text
    numbers = markdown_rows(text, "### Calibrated numbers")
    assert len(numbers) == 7  # five of the device, two of its links
    calibrated = comparison.calibrated.device.dram_gb_per_s
    assert numbers["`dram_gb_per_s`"] == ["1825", f"{calibrated:.4g}"]
    assert calibrated != 1825


def test_the_page_has_failures_and_spreads(tmp_path: Path) -> None:
    measure(tmp_path, count=20)
    append_failed(tmp_path, [FailedMeasurement(100 + n, 0, "Too large." if n else "Too slow.") for n in range(3)])
    found = load_measurements(tmp_path)
    found = replace(found, info=replace(found.info, spread=np.linspace(0, 0.2, len(found.info))))
    text = page([compare(found, {})], "command", [""])
    assert "Failed: 3 measurements (2 x Too large.; 1 x Too slow.)." in text
    assert "10.0 % of the median; 5 % of the measurements have more than 19.0 %" in text
    assert "![" not in text


def test_the_page_names_modelled_all_to_alls(tmp_path: Path, comparison: Comparison) -> None:
    modelled = "are estimates of the analytical model"
    assert modelled not in page([comparison], "command", [""])
    sequential = compare(measure(tmp_path, repeat_every=None, factors=np.array([2.0, 1.0, 1.0, 1.25])), {})
    assert modelled in page([sequential], "command", [""])


def test_one_device_has_no_all_to_alls(tmp_path: Path, markdown_rows: Any) -> None:
    found = measure(tmp_path, replace(SAMPLER, num_devices=1), 40)
    assert markdown_rows(page([compare(found, {})], "command", [""]), "### Errors")["linear"][2:4] == ["-", "-"]


# The measurements that are part of the project


def test_the_shipped_page_is_that_of_the_shipped_measurements(shipped: Comparison) -> None:
    """Except for its first line, the picture, and the fitted networks, which are not shipped."""
    committed = (RESULTS / page_name(SHIPPED)).read_text(encoding="utf-8").splitlines()
    missing = set(page([shipped], "", [""]).splitlines()[1:]) - set(committed)
    assert not missing


def test_the_profile_of_a_cpu_is_calibrated_on_the_shipped_measurements(shipped: Comparison) -> None:
    """Numbers that have no effect on the measurements keep their initial values."""
    train, profile, found = shipped.measurements.first.part("train"), hardware_profile("cpu"), shipped.calibrated
    assert f"calibrated on {len(train)} placements" in profile.device.sources["dram_gb_per_s"]
    for part, names in (("device", DEVICE), ("links", LINKS)):
        for name in names:
            calibrated = getattr(getattr(found, part), name)
            assert getattr(getattr(profile, part), name) == pytest.approx(calibrated, rel=0.05), name
    assert found.device.l2_bytes == pytest.approx(train.topologies[0].device.l2_bytes, rel=0.01)
